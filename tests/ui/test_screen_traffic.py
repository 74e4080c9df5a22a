"""The Traffic tab: eight views, clients by themselves, drill-down, and the traffic of one attack."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from screen_factory import calm, poison, snapshot
from screen_fakes import FakeFeed
from screen_parts import share
from screen_run import LARGE, SMALL, Run, running
from traffic_scene import BYTES, CLIENTS, LONG, LONGER, SYNS, part_of, source, spoofed_syns

from fwtop.analysis.packets.language import parse_filter
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, PayloadMatch, Range
from fwtop.model.traffic.packets import PacketBatch
from fwtop.model.traffic.snapshot import Origin, PacketSignature, Port, TrafficPart
from fwtop.render.rows.traffic import SOURCE_LISTS
from fwtop.ui.actions.row_actions import packets_of
from fwtop.ui.actions.rule_dialog import RuleDialog
from fwtop.ui.lists.traffic import TRAFFIC_VIEWS, first_view, signature_words, traffic_items

SIZES = (SMALL, (120, 40), LARGE)
NET = TrafficPart(prefix=Prefix.parse("203.0.113.0/24"))


async def tab(run: Run) -> None:
    run.app.main.tabs.show("traffic")
    await run.settle()


async def show(run: Run, view: str) -> None:
    await tab(run)
    run.app.main.tabs.panels["sources"].show_view(view)
    await run.settle()


def joined(run: Run) -> str:
    """The screen without line breaks inside cells."""
    return " ".join(" ".join(run.lines()).split())


@pytest.mark.parametrize("size", SIZES)
async def test_a_spoofed_flood_begins_with_its_signature_not_with_victims(size: tuple[int, int]) -> None:
    async with running(spoofed_syns(), size) as run:
        await tab(run)
        text = joined(run)
        assert all(part in text for word in signature_words(SYNS) for part in word.split())
        assert "attack A" in text
        assert "7.7.4.9" not in text
        await run.press("v")
        assert run.app.main.tabs.panel.view.name == "address"


async def test_no_forged_source_is_selected_without_a_key_and_a_block_of_one_warns() -> None:
    async with running(spoofed_syns()) as run:
        main = run.app.main
        await tab(run)
        chosen = main.tabs.panel.current()
        assert isinstance(chosen, PacketSignature)
        assert chosen.attack_share > 0.5
        for view in SOURCE_LISTS:
            main.tabs.view(view)
            await run.settle()
            rows = main.tabs.panel.rows
            whose = [item.who not in ("", "attack") for item in rows.items]
            assert rows.selected == 0
            assert whose == sorted(whose, reverse=True), "clients are above those who may be forged"
            assert ("others, perhaps forged" in run.text()) is (True in whose)
        main.tabs.view("port")
        await run.settle()
        port = main.tabs.panel.current()
        assert isinstance(port, Port)
        assert f"{port.protocol}/{port.port}" == spoofed_syns().judgement.attacks[0].target
        await run.press("home")
        assert main.tabs.panel.rows.selected == 0, "a key selects the first row all the same"
    scene = spoofed_syns()
    unsigned = replace(scene, judgement=replace(scene.judgement, signatures=()))
    assert first_view(unsigned) == "port", "never a list of victims"


async def test_the_first_view_returns_to_addresses_unless_the_operator_chose_one() -> None:
    assert (first_view(spoofed_syns()), first_view(calm()), first_view(snapshot())) == (
        "signature", "address", "address",
    )  # fmt: skip
    async with running(spoofed_syns()) as run:
        await tab(run)
        await run.send(calm())
        assert run.app.main.tabs.panel.view.name == "address"
        await run.press("v")
        assert run.app.main.tabs.panel.view.name == "prefix"
        await run.send(spoofed_syns())
        assert run.app.main.tabs.panel.view.name == "prefix"


@pytest.mark.one_each
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("view", [view.name for view in TRAFFIC_VIEWS])
async def test_every_view_shows_its_rows_and_cuts_no_address(size: tuple[int, int], view: str) -> None:
    async with running(spoofed_syns(), size) as run:
        await show(run, view)
        await run.press("end")
        await run.press("home")
        text = run.text()
        if view in ("address", "destination"):
            assert LONG in text
        if view == "prefix":
            assert LONGER in text
        rows = traffic_items(spoofed_syns(), view)
        assert run.app.main.tabs.panel.rows.hidden == 0
        assert len(run.app.main.tabs.panel.rows.items) == len(rows)


async def test_clients_stand_in_a_group_of_their_own() -> None:
    async with running(spoofed_syns(), LARGE) as run:
        await show(run, "address")
        keys = [run.app.main.tabs.panel.view.row.key(item) for item in run.app.main.tabs.panel.rows.items]
        assert keys[:3] == list(CLIENTS), "above sources that may be forged"
        lines = run.lines()
        begin, end = (
            next(y for y, line in enumerate(lines) if heading in line)
            for heading in ("clients and known peers", "others, perhaps forged")
        )
        assert all(any(key in line for line in lines[begin + 1 : end]) for key in CLIENTS)
        assert not any(key in line for line in lines[end:] for key in CLIENTS)
        assert sum("clients and known peers" in line for line in lines) == 1
        await run.press("o")
        assert [run.app.main.tabs.panel.view.row.key(item) for item in run.app.main.tabs.panel.rows.items][
            :3
        ] != []
        assert sum("clients and known peers" in line for line in run.lines()) == 1


async def test_stale_data_are_told_only_where_countries_are_shown() -> None:
    seen = snapshot()
    sources = replace(seen.tables.sources, stale="2026-01-02")
    said = "countries of 2026-01-02: fwtop geoip update"
    async with running(replace(seen, tables=replace(seen.tables, sources=sources)), LARGE) as run:
        await show(run, "country")
        assert said in run.text()
        await show(run, "port")
        assert said not in run.text()


async def test_without_an_attack_there_are_no_groups() -> None:
    base = calm()
    rows = tuple(replace(row, who="client") for row in base.tables.sources.address)
    tables = replace(base.tables, sources=replace(base.tables.sources, address=rows))
    async with running(replace(base, tables=tables)) as run:
        await tab(run)
        assert "clients and known" not in run.text()


async def test_a_client_is_blocked_by_its_own_key_only() -> None:
    async with running(spoofed_syns()) as run:
        await show(run, "address")
        for key in ("b", "x"):
            await run.press(key)
            assert "B previews a block" in run.status
            assert run.dialog != "RuleDialog"
        await run.press("B")
        assert isinstance(run.app.screen, RuleDialog)
        assert [str(prefix) for prefix in run.app.screen.rule.match.sources] == [CLIENTS[0]]


async def test_a_signature_becomes_a_rule_with_exactly_its_fields() -> None:
    async with running(spoofed_syns()) as run:
        await tab(run)
        await run.press("b")
        assert isinstance(run.app.screen, RuleDialog)
        rule = run.app.screen.rule
        assert (rule.kind, rule.match) == (Kind.XDP, SYNS)


async def test_a_destination_is_not_blocked_and_enter_shows_it() -> None:
    async with running(spoofed_syns()) as run:
        await show(run, "destination")
        await run.press("b")
        assert "cut the address off" in run.status
        await run.press("r")
        assert "destination 192.0.2.1" in run.text()


async def test_enter_goes_into_a_prefix_and_escape_back_up() -> None:
    feed = FakeFeed()
    feed.controls.parts[NET] = part_of(NET, "203.0.113.77", "203.0.113.78")
    async with running(spoofed_syns(), feed=feed) as run:
        await show(run, "prefix")
        await run.press("enter")
        assert ("traffic", NET) in feed.controls.calls
        assert run.app.main.tabs.panel.view.name == "address"
        assert "Traffic from 203.0.113.0/24" in run.text()
        assert "203.0.113.77" in run.text()
        assert CLIENTS[0] not in run.text()
        await run.press("escape")
        assert run.app.main.tabs.panel.view.name == "prefix"
        assert "203.0.113.0/24" in run.text()
        assert "Traffic from" not in run.text()
        await run.press("escape")
        assert run.app.main.tabs.panel.view.name == "prefix"


async def test_enter_shows_the_packets_of_a_row_and_escape_comes_back() -> None:
    for view, found in (
        ("address", f"ip.src == {CLIENTS[0]}"),
        ("destination", "ip.dst == 192.0.2.1"),
        ("signature", "tcp.dstport == 443"),
    ):
        async with running(spoofed_syns(), (120, 40)) as run:
            await show(run, view)
            await run.press("enter")
            assert run.app.main.tabs.shown.name == "packets"
            assert found in run.app.main.tabs.packet_panel.book.text
            await run.press("escape")
            assert run.app.main.tabs.shown.name == "traffic"
            assert run.app.main.tabs.panel.view.name == view
            assert run.app.main.tabs.packet_panel.book.text == ""


async def test_a_stored_session_has_no_packets_to_go_into() -> None:
    shot = replace(spoofed_syns(), origin=Origin("session", file="web1"))
    async with running(shot, (120, 40)) as run:
        await show(run, "address")
        await run.press("enter")
        assert run.app.main.tabs.shown.name == "traffic"
        assert run.dialog == "DetailsDialog"


async def test_until_the_answer_comes_and_without_one_the_listed_rows_stand_in() -> None:
    feed = FakeFeed()
    async with running(snapshot(), feed=feed) as run:
        await show(run, "prefix")
        await run.press("enter")
        shown = run.app.main.tabs.panel.rows.items
        assert shown
        assert all("203.0.113." in run.app.main.tabs.panel.view.row.key(item) for item in shown)
        assert "from 203.0.113.0/24, as far as listed" in run.text()
        feed.controls.failure = FwtopError("gone")
        await run.send(snapshot())
        assert run.app.is_running


async def test_networks_open_too_and_the_filter_goes_first() -> None:
    async with running(snapshot()) as run:
        await show(run, "asn")
        await run.press("enter")
        assert ("traffic", TrafficPart(asn=64500)) in run.feed.controls.calls
        await run.press("slash", "2", "0", "3", "enter")
        await run.press("escape")
        assert run.app.main.tabs.panel.view.name == "address", "the first Esc drops the filter"
        await run.press("escape")
        assert run.app.main.tabs.panel.view.name == "asn"


async def test_the_selected_attack_scopes_the_traffic() -> None:
    scene = spoofed_syns()
    key = scene.judgement.attacks[0].id
    feed = FakeFeed()
    feed.controls.parts[TrafficPart(key)] = part_of(TrafficPart(key), "203.0.113.5")
    async with running(scene, (120, 40), feed=feed) as run:
        await run.go("attacks")
        await run.press("enter")
        await tab(run)
        assert ("traffic", TrafficPart(key)) in feed.controls.calls
        assert "Traffic of A" in run.text()
        await show(run, "address")
        assert "203.0.113.5" in run.text()
        assert CLIENTS[0] not in run.text()
        await run.press("0", "home")
        assert CLIENTS[0] in run.text()
        assert "Traffic of A" not in run.text()


async def test_an_attack_that_cannot_be_told_apart_says_so() -> None:
    scene = spoofed_syns()
    async with running(scene, (120, 40)) as run:
        run.app.main.desk.scope.choose(scene.judgement.attacks[0])
        await run.send(scene)
        await tab(run)
        assert "Traffic of all: A can't be told apart" in run.text()


@pytest.mark.parametrize("scene", [poison, spoofed_syns])
async def test_hostile_bytes_stay_text(scene: object) -> None:
    async with running(scene(), (120, 40)) as run:  # type: ignore[operator]
        for view in TRAFFIC_VIEWS:
            await show(run, view.name)
            assert not any(
                ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for line in run.lines() for char in line
            )
            await run.press("r")
            assert "\x1b" not in run.text()
            await run.press("escape")


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 130), st.integers(1, 60), st.sampled_from([view.name for view in TRAFFIC_VIEWS]))
def test_no_size_ends_the_program(width: int, height: int, view: str) -> None:
    import asyncio

    async def look() -> None:
        async with running(spoofed_syns(), (width, height)) as run:
            await show(run, view)
            await run.press("end", "up", "home")
            assert run.app.is_running

    asyncio.run(look())


RANGES = st.one_of(st.none(), st.integers(0, 65_535).map(lambda value: Range(value, value)))
MATCHES = st.builds(
    Match,
    family=st.sampled_from([4, 6]),
    protocol=st.sampled_from([1, 6, 17, 47, 50, 58, 132]),
    sport=st.one_of(st.none(), st.integers(0, 65_535)),
    dport=st.one_of(st.none(), st.integers(0, 65_535)),
    ip_length=RANGES,
    ttl=st.one_of(st.none(), st.integers(0, 255).map(lambda value: Range(value, value))),
    tcp_flags=st.one_of(st.none(), st.integers(0, 63).map(lambda value: (63, value))),
    tcp_window=RANGES,
    icmp_type=st.one_of(st.none(), st.integers(0, 255)),
    fragment=st.sampled_from([None, True]),
    payload=st.one_of(
        st.just(()), st.binary(min_size=4, max_size=16).map(lambda data: (PayloadMatch(data, 0),))
    ),
)


@given(MATCHES)
def test_the_filter_of_any_signature_is_valid(match: Match) -> None:
    text = packets_of(PacketSignature(match, share(0.1), 0.0, 0.0))
    assert parse_filter(text) is not None


def test_filters_name_the_row() -> None:
    assert packets_of(source("203.0.113.9", 0.1, "")) == "ip.src == 203.0.113.9"
    assert packets_of(source(LONG, 0.1, "")) == f"ipv6.src == {LONG}"
    assert packets_of(Port("udp", "dst", 53, None, share(0.1))) == "udp.dstport == 53"
    assert packets_of(PacketSignature(SYNS, share(0.1), 0.0, 0.0)) == (
        "ip && tcp && tcp.dstport == 443 && ip.len == 40 && ip.ttl == 53"
        " && tcp.flags & 0x3f == 0x02 && tcp.window_size_value == 512"
    )
    assert "udp.payload contains 47:45:54" in packets_of(PacketSignature(BYTES, share(0.1), 0.0, 0.0))
    assert len(PacketBatch.empty()) == 0


@pytest.mark.parametrize("width", [20, 30, 45, 80])
async def test_an_address_wraps_where_its_column_cannot_hold_it(width: int) -> None:
    async with running(spoofed_syns(), (width, 30)) as run:
        await show(run, "address")
        if run.app.main.tabs.panel.display:
            assert LONG in "".join(
                line.strip().removeprefix("▸").strip().split(" ")[0] for line in run.lines()
            )


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(0.0, 1.0, "?"), (0.4, 0.96, "40–96 %"), (0.97, 1.0, ">99.9 %"), (0.0, 0.32, "0–32 %")],
)
async def test_the_dropped_share_of_few_samples_is_an_interval(low: float, high: float, text: str) -> None:
    """A source of which all is dropped must not read as 0.4 % because few of its drops were sampled."""
    base = snapshot()
    first, *others = base.tables.sources.address
    first = replace(first, dropped_share=0.9999, dropped_low=low, dropped_high=high)
    sources = replace(base.tables.sources, address=(first, *others))
    async with running(replace(base, tables=replace(base.tables, sources=sources)), LARGE) as run:
        await run.press("right_square_bracket")
        row = next(line for line in run.lines() if first.key in line and "%" in line)
        assert f" {text} " in row
