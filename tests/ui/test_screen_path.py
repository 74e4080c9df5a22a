"""The Path: every stage passes on what it got less what it drops, at any size."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from screen_factory import calm, conntrack_full, poison, protected, snapshot, trial
from screen_parts import SECONDS, block_rule
from screen_run import running

from fwtop.model.rule import Kind, Match, RuleStatus, State
from fwtop.model.service import Service
from fwtop.model.traffic.counters import ConntrackSample
from fwtop.model.traffic.snapshot import (
    Core,
    FilterChain,
    LedgerRow,
    Origin,
    PacketSocket,
    Queue,
    Ring,
    Snapshot,
    Surroundings,
)
from fwtop.render.drop_words import reason_words
from fwtop.ui.header.lines import rates_line
from fwtop.ui.lists.path import RECORDED, bar_cells, path_lines, stage_details
from fwtop.ui.lists.stages import Stage, stages_of
from fwtop.ui.style import BAD, DIM, ELSEWHERE, GOOD, Line, width_of

SIZES = ((80, 24), (120, 40), (200, 50))
AROUND = Surroundings(
    (
        Service(
            "tcp",
            80,
            "nginx",
            520.0,
            ("172.17.0.2",),
            (("192.0.2.1", 8080),),
            "101",
            "",
            "docker 3f2a1b0c9d8e",
        ),
        Service("tcp", 22, "sshd", 47.0, user="root", unit="ssh.service"),
        Service("udp", 53, "named", 33),
    ),
    (Ring("eth0", 256, 4096),),
    (FilterChain("filter", "inet filter input", True), FilterChain("raw", "ip raw PREROUTING", False)),
    (
        Service("udp", 53, "dns", addresses=("192.0.2.53",)),
        Service("tcp", 7443, "", addresses=("192.0.2.9",)),
    ),
)


def text(lines: list[Line]) -> str:
    return "\n".join("".join(part for part, _ in line) for line in lines)


def row(layer: str, reason: str, pps: float, rule: str | None = None, late: float = 0.0) -> LedgerRow:
    packets = round(pps * SECONDS)
    return LedgerRow(layer, reason, packets, pps, rule, filtered=round(late * SECONDS))


def flood(*rows: LedgerRow, arrives: float = 301_000.0, rules: tuple[RuleStatus, ...] = ()) -> Snapshot:
    """A flood whose ledger is given; the rest is delivered."""
    base = snapshot()
    lost = sum(item.pps for item in rows)
    totals = replace(base.tables.totals, pps=arrives, packets=round(arrives * SECONDS))
    book = (*rows, row("delivered", "accepted", arrives - lost))
    tables = replace(base.tables, ledger=book, totals=totals)
    return replace(base, tables=tables, mitigations=rules, surroundings=AROUND)


def by_name(shot: Snapshot) -> dict[str, Stage]:
    return {stage.name: stage for stage in stages_of(shot)}


def whom(stage: Stage) -> list[str]:
    return [drop.by for drop in stage.drops]


RATE = st.floats(0, 1e7)
ROW = st.builds(
    row,
    st.sampled_from(("nic", "backlog", "xdp", "tc", "netfilter", "conntrack", "ip", "socket")),
    st.sampled_from(("RX_MISSED", "NETFILTER_DROP", "A_REASON")),
    RATE,
    st.sampled_from((None, "7")),
)


@given(st.lists(ROW, max_size=9), RATE)
@settings(deadline=None, max_examples=60)
def test_each_stage_passes_what_it_got_less_its_drops(rows: list[LedgerRow], served: float) -> None:
    stages = stages_of(flood(*rows, arrives=sum(item.pps for item in rows) + served))
    way = [stage for stage in stages if stage.name not in ("accepted", "unaccounted")]
    for before, after in pairwise(way):
        assert after.enters == before.passes
    for stage in way:
        assert 0 <= stage.passes <= stage.enters
        assert stage.passes == pytest.approx(stage.enters - sum(drop.pps for drop in stage.drops), abs=1.0)
    accepted = next(stage for stage in stages if stage.name == "accepted")
    assert accepted.passes == pytest.approx(way[-1].passes, rel=1e-6, abs=1.0)
    assert "unaccounted" not in [stage.name for stage in stages]


def test_netfilters_drops_belong_to_the_hook_that_dropped_and_to_whom() -> None:
    rules = tuple(
        RuleStatus(replace(block_rule(number), kind=kind), State.CONFIRMED)
        for number, kind in (("7", Kind.IPSET), ("8", Kind.XDP), ("9", Kind.NFTABLES), ("10", Kind.TC))
    )
    shot = flood(
        row("netfilter", "NETFILTER_DROP", 1000.0, "7"),
        row("xdp", "XDP", 200_000.0, "8"),
        row("netfilter", "NETFILTER_DROP", 500.0, "9"),
        row("tc", "TC_INGRESS", 50.0, "10"),
        row("netfilter", "NETFILTER_DROP (foreign)", 30.0, late=10.0),
        rules=rules,
    )
    found = by_name(shot)
    assert {name: whom(stage) for name, stage in found.items() if stage.drops} == {
        "XDP": ["rule 8"],
        "tc": ["rule 9", "rule 10"],
        "raw": ["rule 7", "ip/ip6 raw PREROUTING"],
        "filter": ["inet filter input (policy drop)"],
    }
    assert found["raw"].dropped == pytest.approx(1020.0)
    assert found["filter"].dropped == pytest.approx(10.0)


def test_several_candidates_are_another_firewall() -> None:
    shot = flood(row("netfilter", "NETFILTER_DROP", 30.0, late=30.0))
    more = (*AROUND.chains, FilterChain("filter", "inet fw in", False))
    assert whom(by_name(replace(shot, surroundings=replace(AROUND, chains=more)))["filter"]) == [
        "other firewall"
    ]
    assert whom(by_name(replace(shot, surroundings=Surroundings()))["filter"]) == ["other firewall"]
    both = (FilterChain("filter", "ip filter INPUT", False), FilterChain("filter", "ip6 filter INPUT", False))
    iptables = replace(shot, surroundings=replace(AROUND, chains=both))
    assert whom(by_name(iptables)["filter"]) == ["ip/ip6 filter INPUT"]


def test_what_nothing_explains_is_told_from_a_thousandth_on() -> None:
    shot = flood()
    short = replace(shot.tables, ledger=(row("delivered", "accepted", 300_000.0),))
    assert by_name(replace(shot, tables=short))["unaccounted"].passes == pytest.approx(1000.0)
    little = replace(shot.tables, ledger=(row("delivered", "accepted", 300_800.0),))
    assert "unaccounted" not in by_name(replace(shot, tables=little))
    much = replace(shot.tables, ledger=(row("delivered", "accepted", 302_000.0),))
    assert "more accepted" in by_name(replace(shot, tables=much))["unaccounted"].note


def test_full_resources_are_alarms() -> None:
    calm_way = by_name(replace(calm(), surroundings=AROUND))
    assert (calm_way["NIC"].note, calm_way["NIC"].alarm) == ("ring 256/4096 ok", False)
    assert not calm_way["conntrack"].alarm
    full = by_name(flood(row("nic", "RX_MISSED", 9000.0)))["NIC"]
    assert full.alarm
    assert full.note == "ring 256/4096 overflows: ethtool -G eth0 rx 4096"
    table = by_name(conntrack_full())["conntrack"]
    assert table.alarm
    assert table.note == "100 % full, evicting 237/s, 1.37k/s clashed"
    off = by_name(replace(calm(), conntrack=ConntrackSample(0, 0)))["conntrack"]
    assert (off.note, off.alarm) == ("not in use", False)


@pytest.mark.parametrize("width", [1, 20, 60])
def test_bars_are_logarithmic_and_something_is_never_nothing(width: int) -> None:
    assert bar_cells(301_000.0, 301_000.0, width) == width
    assert bar_cells(0.1, 301_000.0, width) == 1
    assert bar_cells(0.0, 301_000.0, width) == 0
    lengths = [bar_cells(10.0**n, 1e6, width) for n in range(7)]
    assert lengths == sorted(lengths)


def styles(line: Line, glyph: str) -> set[object]:
    return {style for part, style in line if glyph in part}


def test_glyphs_tell_who_drops_and_red_that_an_attack_gets_through() -> None:
    rules = (RuleStatus(replace(block_rule("7"), kind=Kind.XDP), State.CONFIRMED),)
    rows = (row("netfilter", "NETFILTER_DROP", 90_000.0), row("socket", "SOCKET_RCVBUFF", 9000.0))
    shot = flood(row("xdp", "XDP", 200_000.0, "7"), *rows, rules=rules)
    lines = {line[0][0].strip(): line for line in path_lines(shot, 120, 30)}
    assert styles(lines["XDP"], "▓") == {GOOD}
    assert styles(lines["raw"], "▒") == {ELSEWHERE}
    assert styles(lines["socket"], "░") == {BAD}, "its buffer is full"
    unwanted = path_lines(flood(row("socket", "NO_SOCKET", 9000.0)), 120, 30)
    assert {style for line in unwanted for style in styles(line, "░")} == {DIM}
    open_way = path_lines(flood(), 120, 30)
    assert all(styles(line, "█") == {BAD} for line in open_way if "█" in text([line]))
    quiet = path_lines(calm(), 120, 30)
    assert not any(BAD in styles(line, "█") for line in quiet)


@pytest.mark.parametrize("scene", [calm, snapshot, trial, protected, conntrack_full, poison, flood])
@given(st.integers(58, 240), st.integers(5, 30))
@settings(deadline=None, max_examples=15)
def test_lines_fit_and_tell_the_ends(scene: object, width: int, height: int) -> None:
    shot = replace(scene(), surroundings=AROUND)  # type: ignore[operator]
    lines = path_lines(shot, width, height)
    assert len(lines) <= height
    assert all(width_of(line) == width for line in lines)
    shown = text(lines)
    assert "accepted" in shown
    assert "NIC" in shown
    assert "█" in shown
    assert "nginx:80 520" in shown.replace("\n", "") or width < 100


def test_little_room_keeps_the_stages_that_drop() -> None:
    shot = flood(row("socket", "NO_SOCKET", 5000.0), row("netfilter", "NETFILTER_DROP", 70.0, late=70.0))
    names = [line[0][0].strip() for line in path_lines(shot, 80, 5)]
    assert names == ["stage", "NIC", "filter", "socket", "accepted"]


def test_a_recording_says_that_it_does_not_tell() -> None:
    base = snapshot()
    tables = replace(base.tables, ledger=(LedgerRow("capture", "recorded", 900, 300.0),))
    recorded = replace(base, origin=Origin("capture", file="a.pcap"), tables=tables)
    assert stages_of(recorded) == ()
    assert text(path_lines(recorded, 80, 10)) == RECORDED
    assert path_lines(recorded, 80, 0) == []


def test_details_say_it_in_plain_words() -> None:
    dropped = replace(
        row("socket", "NO_SOCKET", 5000.0), mostly=Match(protocol=17, dport=27015), mostly_share=0.98
    )
    socket = by_name(flood(dropped, row("socket", "TCP_OLD_DATA", 3.0)))["socket"]
    title, lines = stage_details(socket, 0.0)
    assert title == "path: socket"
    shown = text(lines)
    for words in ("no process listens on that port", "UDP to port 27015: 98.0 %", "acknowledged already"):
        assert words in shown
    accepted = by_name(flood())["accepted"]
    served = " ".join(text(stage_details(accepted, 0.0)[1]).split())
    for words in (
        "nginx: tcp port 80 on 172.17.0.2, container docker 3f2a1b0c9d8e, user 101, "
        "published as 192.0.2.1 port 8080, 520 pps",
        "sshd: tcp port 22, ssh.service, user root, 47 pps",
        "dns: udp port 53 on 192.0.2.53",
        "service: tcp port 7443 on 192.0.2.9",
    ):
        assert words in served
    assert reason_words("NOT_SPECIFIED (igmp_rcv)") != ""
    assert reason_words("A_REASON_OF_LINUX_9") == ""


@pytest.mark.one_each
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scene", [calm, snapshot, trial, protected])
async def test_tab_shows_the_funnel_at_every_size(scene: object, size: tuple[int, int]) -> None:
    shot = replace(scene(), surroundings=AROUND)  # type: ignore[operator]
    async with running(shot, size) as run:
        run.app.main.tabs.show("path")
        await run.settle()
        shown = run.text()
        for name in ("NIC", "XDP", "raw", "conntrack", "filter", "socket", "accepted"):
            assert f"{name} " in shown
        assert "sshd:22" in shown
        assert "ring 256/4096 ok" in shown
        assert run.app.main.tabs.panel.spec.name == "path"


async def test_enter_shows_a_stages_drops_and_they_stay_up_to_date() -> None:
    async with running(flood(row("socket", "NO_SOCKET", 5000.0)), (120, 40)) as run:
        run.app.main.tabs.show("path")
        await run.settle()
        assert run.selected_key() == "NIC"
        await run.press(*["down"] * 5)
        assert run.selected_key() == "socket"
        await run.press("enter")
        assert "5.00k pps, 1.7 % of what gets here" in run.text()
        await run.send(flood(row("socket", "NO_SOCKET", 6000.0)))
        assert "6.00k pps" in run.text()
        await run.press("escape")
        await run.press("b")
        assert "no rule fits this row" in run.status


async def test_a_capture_says_so_on_the_tab() -> None:
    base = snapshot()
    tables = replace(base.tables, ledger=(LedgerRow("capture", "recorded", 900, 300.0),))
    recorded = replace(base, origin=Origin("capture", file="a.pcap"), tables=tables)
    async with running(recorded) as run:
        run.app.main.tabs.show("path")
        await run.settle()
        assert "not recorded" in run.text()
        await run.press("enter")
        assert run.status == "nothing is selected"


@pytest.mark.parametrize("size", [(140, 40), (200, 50), (240, 60)])
async def test_a_large_overview_holds_it_too(size: tuple[int, int]) -> None:
    async with running(replace(trial(), surroundings=AROUND), size) as run:
        shown = run.text()
        for words in ("log scale", "rule 8", "accepted", "nginx:80"):
            assert words in shown
        run.app.main.tabs.focus("path")
        await run.settle()
        assert run.app.main.tabs.shown.name == "path"
        assert "log scale" in run.text()


async def test_a_large_tab_shows_the_selected_stage_at_once() -> None:
    async with running(flood(row("socket", "NO_SOCKET", 5000.0)), (200, 50)) as run:
        run.app.main.tabs.show("path")
        await run.settle()
        assert "the network interface and its driver" in run.text()
        await run.press(*["down"] * 5)
        assert "no process listens on that port" in run.text()


@pytest.mark.parametrize("size", [(80, 20), (80, 24), (80, 30), (120, 40), (131, 60), (200, 50), (400, 120)])
async def test_every_panel_of_the_tab_can_be_reached(size: tuple[int, int]) -> None:
    async with running(trial(), size) as run:
        run.app.main.tabs.show("path")
        await run.settle()
        seen = []
        for _ in range(3):
            assert run.app.main.tabs.panel.display
            seen.append(run.app.main.tabs.panel.spec.name)
            await run.press("tab")
        assert sorted(seen) == ["conntrack", "ledger", "path"]


async def test_a_full_table_scrolls_no_stage_out_of_the_smallest_screen() -> None:
    full = replace(flood(row("netfilter", "NETFILTER_DROP", 9_000.0)), conntrack=conntrack_full().conntrack)
    async with running(full, (60, 15)) as run:
        await run.go("path")
        stages = [item.name for item in stages_of(full)]
        assert [name for name in stages if not any(name in line.split() for line in run.lines())] == []


def test_queues_cores_and_packet_sockets_stand_where_they_work() -> None:
    around = Surroundings(
        cores=(Core(1, 0.97, 80_000.0, 0.0, 3.0, 900.0), Core(0, 0.01, 20.0, 0.0, 0.0, 9.0)),
        queues=(Queue("eth0", 0, 90_000.0, 12.0), Queue("eth0", 1, 10_000.0, 0.0)),
        packet_sockets=(
            PacketSocket("tcpdump", 812, "", filtered=False),
            PacketSocket("dhclient", 7, "eth0", filtered=True),
        ),
    )
    stages = {stage.name: stage for stage in stages_of(replace(snapshot(), surroundings=around))}
    assert "queue 0 of 2 takes 90" in stages["NIC"].note
    assert (stages["backlog"].note[:25], stages["backlog"].alarm) == ("core 1 spends 97.0 % in s", True)
    assert (stages["tc"].note, stages["tc"].alarm) == ("tcpdump (812) copies every packet", True)
    details = {name: text(stage_details(stage, 0.0)[1]) for name, stage in stages.items()}
    assert "drops 12" in details["NIC"]
    assert "stopped early" in details["backlog"]
    assert "dhclient, process 7, eth0, filtered" in details["tc"]
    quiet = stages_of(replace(snapshot(), surroundings=Surroundings()))
    assert not {"backlog", "tc"} & {stage.name for stage in quiet if not stage.drops}


@pytest.mark.parametrize(
    ("layer", "reason", "place", "helps"),
    [
        ("socket", "SOCKET_RCVBUFF", "the socket", "SO_RCVBUF"),
        ("socket", "TCP_LISTEN_OVERFLOW", "the socket", "somaxconn"),
        ("nic", "RX_MISSED", "the NIC", "ethtool -G"),
        ("backlog", "CPU_BACKLOG", "the CPU queue", "netdev_max_backlog"),
        ("conntrack", "TABLE_FULL", "conntrack", "nf_conntrack_max"),
    ],
)
async def test_what_is_lost_because_something_is_full_is_no_help_of_the_kernel(
    layer: str, reason: str, place: str, helps: str
) -> None:
    lost, dropped = row(layer, reason, 40_000.0), row("ip", "NO_SOCKET", 5_000.0)
    shot = flood(lost, dropped)
    async with running(shot, (200, 50)) as run:
        header, small = (text([rates_line(shot, None, width, [])]) for width in (200, 80))
        assert f"kernel 5.00k │ lost at {place} 40.0k" in header
        assert "lost 40.0k" in small
        run.app.main.tabs.show("path")
        await run.settle()
        drops = run.app.main.tabs.panels["ledger"]
        assert {item.layer for item in drops.rows.items} == {layer, "ip"}, "what is delivered isn't dropped"
    stage = next(one for one in stages_of(shot) if any(drop.end == "lost" for drop in one.drops))
    assert helps in text(stage_details(stage, 0.0)[1])
    ends = {drop.by: drop.end for one in stages_of(shot) for drop in one.drops}
    assert ends["NO_SOCKET"] == "kernel"
