"""The Packets tab: rows and pane as pure functions, then its keys on the screen at several sizes."""

from __future__ import annotations

import re

import numpy as np
import pytest
import screen_factory as scenes
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from screen_fakes import FakeFeed
from screen_packets import LONG, MINE, OPTIONS, OTHERS, UNKNOWN, client, flood, listed, syn
from screen_run import Run, running

from fwtop.analysis.packets.recent import Fate, PacketList, Verdict
from fwtop.analysis.proposals.matching import match_rows
from fwtop.dissect.client import Dissection, Layer
from fwtop.guardian.rules.validate import rule_of_wire
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind
from fwtop.model.service import Service
from fwtop.model.traffic.packets import FLAG_MALFORMED
from fwtop.model.traffic.snapshot import Surroundings
from fwtop.ui.actions import packets
from fwtop.ui.actions.row_rules import NoRuleError, rule_from_row
from fwtop.ui.lists.packet_rows import PacketBook, PacketRow, clock_text, info, protocol_of
from fwtop.ui.lists.packets import packet_view, pane_lines, verdict_line
from fwtop.ui.lists.table import GAP, CellContext, fit_columns, row_lines

from frames import ethernet, extension, fragment6, ipv4, ipv6, tcp, udp  # isort: skip

SIZES = [(80, 24), (120, 40), (200, 50)]
HOSTILE = st.binary(min_size=0, max_size=80)
ESCAPES = b"\x1b[2J\x1b]52;c;AAAA\x07\r\n\x9b31m[red]\xe2\x80\xae"


def row(frame: bytes) -> PacketRow:
    return PacketRow(listed([frame]), 0)


@pytest.mark.parametrize(
    ("frame", "protocol", "words"),
    [
        (syn(3), "TCP", "S seq 0xdaa66d13 win 512 opt –"),
        (client(9), "TCP", "S seq 0x00000009 win 64240 opt mss 1460,sack,ts,ws 10"),
        (OTHERS[0], "TCP", "P. seq 0x00000001 win 8192 len 16 GET / HTTP/1.1··"),
        (OTHERS[1], "DNS", "query ANY example.org"),
        (OTHERS[2], "ARP", ""),
        (ethernet(ipv4(udp(9, 9, b"\0" * 30), 17), 0x0800), "UDP", "len 30"),
        (ethernet(ipv4(b"\x08\0\0\0\0\0\0\0ping", 1), 0x0800), "ICMP", "echo request len 4"),
        (ethernet(ipv4(b"\x03\x01\0\0\0\0\0\0", 1), 0x0800), "ICMP", "unreachable code 1 len 0"),
        (
            ethernet(ipv4(b"y" * 32, 17, frag=4, ident=0x1234), 0x0800),
            "UDP",
            "fragment of id 0x1234, 32 bytes",
        ),
        (
            ethernet(ipv6(fragment6(17, 0, 1) + udp(7, 7, b"\0" * 16), 44), 0x86DD),
            "UDP",
            "first fragment of id 0x63 len 16",
        ),
        (ethernet(ipv6(extension(58) + b"\x80\0\0\0\0\0\0\0", 0), 0x86DD), "ICMPv6", "echo request len 0"),
        (ethernet(ipv4(tcp(1, 2, 0), 6), 0x0800), "TCP", "none seq 0x00000001 win 8192"),
        (
            ethernet(ipv4(tcp(1, 2, 2, options=b"\x02\x01\0\0"), 6), 0x0800),
            "TCP",
            "S seq 0x00000001 win 8192 opt malformed",
        ),
        (ethernet(b"\0" * 20, 0x88B5), "0x88b5", ""),
    ],
)
def test_a_packet_in_one_line(frame: bytes, protocol: str, words: str) -> None:
    item = row(frame)
    assert protocol_of(item) == protocol
    assert info(item).removeprefix("malformed ") == words
    assert ("malformed" in info(item)) == bool(item.field("flags") & FLAG_MALFORMED or "malformed" in words)


def test_times_are_utc_with_milliseconds() -> None:
    assert clock_text(1_790_000_000_123_999_999) == "14:13:20.123"
    assert clock_text(10**30) == "–"


@pytest.mark.parametrize(
    ("verdict", "who", "words"),
    [
        (MINE, "attack", "▓ rule 118"),
        (replace(MINE, inferred=True), "attack", "▓ rule 118 ~"),
        (Verdict(Fate.OTHER, "NETFILTER_DROP"), "", "▒ NETFILTER_DROP"),
        (Verdict(Fate.KERNEL, "A_VERY_LONG_REASON_NAME", inferred=True), "", "░ A_VERY_LONG… ~"),
        (Verdict(Fate.REACHES, "accepted"), "client", "█ nginx"),
        (UNKNOWN, "", "?"),
    ],
)
def test_verdicts_have_glyphs(verdict: Verdict, who: str, words: str) -> None:
    item = PacketRow(listed([syn(1)], [verdict], [who]), 0)
    around = Surroundings(listeners=(Service("udp", 80, "no"), Service("tcp", 80, "nginx")))
    context = CellContext(0.0, snapshot=scenes.snapshot(surroundings=around))
    assert "".join(text for text, _ in verdict_line(item, context, 16)) == words


def drawn(shown: PacketList, width: int, *, judged: bool = True) -> list[list[str]]:
    items = [PacketRow(shown, place) for place in range(len(shown))]
    view = packet_view(width, items, judged=judged)
    layout = fit_columns(view.columns, width)
    rows = [row_lines(layout, item, CellContext(0.0)) for item in items]
    return [["".join(text for text, _ in line) for line in lines] for lines in rows]


@pytest.mark.one_each
@pytest.mark.parametrize("width", [58, 78, 98, 118, 158, 198])
@pytest.mark.parametrize("judged", [True, False])
def test_addresses_are_never_cut(width: int, judged: bool) -> None:
    assert all(len(line) <= width for lines in drawn(flood(), width, judged=judged) for line in lines)
    items = [PacketRow(flood(), place) for place in range(60)]
    layout = fit_columns(packet_view(width, items, judged=judged).columns, width)
    start = 0
    for column, cells in layout:
        if column.title == "source":
            break
        start += cells + GAP
    for item, lines in zip(items, drawn(flood(), width, judged=judged), strict=True):
        assert "".join(line[start : start + cells].rstrip() for line in lines) == (item.address("src") or "–")


@given(st.lists(HOSTILE, min_size=1, max_size=5), st.integers(1, 240), st.booleans())
@settings(max_examples=80, deadline=None)
def test_hostile_bytes_are_safe_in_every_cell(parts: list[bytes], width: int, judged: bool) -> None:
    frames = [ethernet(part + ESCAPES, 0x0800) for part in parts]
    frames += [ethernet(ipv4(tcp(1, 53, 24, part + ESCAPES, options=OPTIONS), 6), 0x0800) for part in parts]
    frames += [ethernet(ipv4(udp(53, 5353, part + ESCAPES), 17), 0x0800) for part in parts]
    frames += [part + ESCAPES for part in parts]
    shown = listed(frames)
    for lines in drawn(shown, width, judged=judged):
        assert all(line.isprintable() for line in lines)
    for place in range(len(shown)):
        item = PacketRow(shown, place)
        for height in (1, 4, 16):
            pane = pane_lines(item, None, np.ones(len(shown), np.bool_), shown, width=width, height=height)
            assert len(pane) <= height
            assert all(text.isprintable() for line in pane for text, _ in line)


@pytest.mark.parametrize("action", ["block", "like", "string", "xdp", "limit"])
@given(st.lists(HOSTILE, min_size=1, max_size=4))
@settings(max_examples=12, deadline=None)
def test_a_rule_of_a_packet_matches_it_and_is_valid(action: str, parts: list[bytes]) -> None:
    frames = [ethernet(ipv4(part, number), 0x0800) for part in parts for number in (1, 6, 17, 47)]
    frames += [ethernet(ipv6(udp(1, 2, part), 17), 0x86DD) for part in parts]
    frames += [ethernet(ipv4(part, 17, frag=9), 0x0800) for part in parts]
    for frame in [*frames, syn(5), client(6), *OTHERS]:
        item = row(frame)
        try:
            rule = rule_from_row(action, item, 0.0)
        except NoRuleError:
            continue
        assert match_rows(rule.match, item.shown.packets).all()
        assert rule_of_wire(rule.to_dict()).match == rule.match


def test_what_d_and_b_make_of_packets() -> None:
    like = rule_from_row("like", row(syn(1)), 0.0)
    assert like.kind is Kind.XDP
    assert (like.match.dport, like.match.tcp_flags, like.match.ip_length.low) == (80, (63, 2), 40)
    assert like.match.sources == ()
    query = rule_from_row("like", row(OTHERS[1]), 0.0)
    assert query.kind is Kind.STRING
    assert query.match.payload[0].data == bytes.fromhex("12340100000100000000000007657861")
    block = rule_from_row("block", row(OTHERS[0]), 0.0)
    assert [str(prefix) for prefix in block.match.sources] == [LONG]
    for action in ("block", "like"):
        with pytest.raises(NoRuleError, match="not an IP packet"):
            rule_from_row(action, row(OTHERS[2]), 0.0)
    with pytest.raises(NoRuleError, match="d drops what is like it"):
        rule_from_row("notrack", row(syn(1)), 0.0)


def test_d_leaves_out_bytes_that_change_with_every_packet() -> None:
    def query(number: int) -> bytes:
        data = number.to_bytes(2, "big") + b"\1\0\0\1\0\0\0\0\0\0\x08pizzaseo\x03com\0\0\x2e\0\1"
        return ethernet(ipv4(udp(2000 + number, 53, data), 17, f"203.0.113.{number + 1}"), 0x0800)

    shown = listed([query(number * 37) for number in range(6)] + [syn(n) for n in range(20)])
    (found,) = rule_from_row("like", PacketRow(shown, 2), 0.0).match.payload
    assert (found.offset, found.data) == (2, b"\1\0\0\1\0\0\0\0\0\0\x08pizzaseo\x03com\0\0\x2e\0\1")
    (alone,) = rule_from_row("like", PacketRow(listed([query(5)]), 0), 0.0).match.payload
    assert (alone.offset, len(alone.data)) == (0, 16)


def test_a_held_book_does_not_move() -> None:
    book = PacketBook()
    book.offer(flood(20))
    book.hold(True)
    before = [item.number for item in book.rows]
    book.offer(flood(20, first=100))
    book.set_filter("tcp")
    book.set_filter("")
    assert [item.number for item in book.rows] == before
    book.hold(False)
    assert book.rows[0].number == 100


def test_a_wrong_filter_keeps_the_last_right_one() -> None:
    book = PacketBook()
    book.offer(flood(40))
    book.set_filter('fwtop.who == "client"')
    assert len(book.rows) == 3
    book.set_filter('fwtop.who == "client" &&')
    assert str(book.error) == "at 25: expected a field such as tcp.dstport, but the filter ends"
    assert len(book.rows) == 3
    book.set_filter('fwtop.verdict == "rule 118" && ip.ttl < 45')
    assert book.error is None
    assert 0 < len(book.rows) < 40


def test_the_scope_is_the_attacks_target() -> None:
    book = PacketBook()
    book.offer(flood(40))
    for target, count in (("tcp/80", 37), ("udp/53", 1), ("tcp", 38), ("262k/262k", 40), ("", 40)):
        book.set_scope(target)
        assert len(book.rows) == count, target


def test_packets_alike_share_more_than_a_port() -> None:
    book = PacketBook()
    book.offer(flood(40))
    assert int(book.alike(book.rows[0]).sum()) == 34  # without the three clients'
    assert int(book.alike(book.rows[9]).sum()) == 3
    assert int(book.alike(book.rows[-1]).sum()) == 1


# -- on the screen


async def opened(run: Run) -> None:
    run.app.main.tabs.show("packets")
    await run.until(lambda: bool(run.app.main.tabs.packet_panel.rows.items))
    await run.settle()


def feed_of(count: int = 60) -> FakeFeed:
    feed = FakeFeed()
    feed.controls.recent = flood(count)
    layers = (Layer("IP", (("src", "198.55.55.56"), ("ttl", "55"))), Layer("TCP", (("flags", "S"),)))
    feed.controls.dissection = Dissection(layers)
    return feed


@pytest.mark.parametrize("size", SIZES)
async def test_the_tab_lists_the_newest_packets(size: tuple[int, int]) -> None:
    async with running(scenes.spoofed(), size, feed=feed_of()) as run:
        await opened(run)
        text = run.text()
        assert "time UTC" in text
        assert re.search(r"▸ 14:13:20\.059", text)
        assert "▓ rule 118" in text
        assert ("▒ firewall" if size[0] == 80 else "▒ NETFILTER_") in text
        assert "203.0.113.77" in text
        assert "live Space hold" in text
        assert all(len(line) <= size[0] for line in run.lines())


async def test_moving_holds_the_list_and_space_goes_on() -> None:
    feed = feed_of()
    async with running(scenes.spoofed(), SIZES[1], feed=feed) as run:
        await opened(run)
        await run.press("up")
        assert "HELD" in run.text()
        held = run.app.main.tabs.packet_panel.rows.items
        feed.controls.recent = flood(60, first=1000)
        await run.send(scenes.spoofed())
        await run.settle()
        assert run.app.main.tabs.packet_panel.rows.items == held
        await run.press("space")
        assert "HELD" not in run.text()
        assert run.selected_key() == "1059"
        await run.press("space")
        assert "HELD" in run.text()


async def test_a_key_means_the_packet_that_was_seen() -> None:
    feed = feed_of()
    async with running(scenes.spoofed(), SIZES[1], feed=feed) as run:
        await opened(run)
        await run.press("slash", *"tcp", "enter")
        seen = run.app.main.tabs.packet_panel.selected_packet()
        feed.controls.recent = flood(60, first=1000)
        await run.send(scenes.spoofed())
        await run.until(lambda: run.app.main.tabs.packet_panel.selected_packet() != seen)
        await run.press("d")
        await run.until(lambda: run.dialog == "RuleDialog")
        rule = next(value for verb, value in feed.controls.calls if verb == "preview")
        assert rule.match.family == 6, "of the packet before, which the new list no longer has"
        await run.press("escape")
        feed.controls.recent = flood(60, first=2000)
        await run.send(scenes.spoofed())
        await run.settle()
        assert "HELD" in run.text()
        assert run.app.main.tabs.packet_panel.rows.items[0].number == 1000


async def test_b_spares_clients_and_B_does_not() -> None:
    async with running(scenes.spoofed(), SIZES[1], feed=feed_of()) as run:
        await opened(run)
        await run.press("slash", *'fwtop.who == "client"', "enter", "b")
        assert "B previews a block of it" in run.status
        await run.press("B")
        await run.until(lambda: run.dialog == "RuleDialog")


async def test_a_filter_is_checked_while_it_is_typed() -> None:
    async with running(scenes.spoofed(), SIZES[1], feed=feed_of()) as run:
        await opened(run)
        await run.press("slash", *"udp.prt")
        assert 'filter at 1: "udp.prt" is not a field; did you mean udp.port?' in run.text()
        for _ in range(3):
            await run.press("backspace")
        await run.press(*"port==53", "enter")
        assert len(run.app.main.tabs.packet_panel.rows.items) == 1
        assert "/ udp.port==53" in run.text().replace("/udp", "/ udp")
        await run.press("slash", "escape")
        assert len(run.app.main.tabs.packet_panel.rows.items) == 60


async def test_n_walks_through_packets_alike() -> None:
    async with running(scenes.spoofed(), SIZES[1], feed=feed_of()) as run:
        await opened(run)
        await run.press("home", "n")
        assert run.selected_key() == "1"
        assert "2 of 52 alike" in run.status
        await run.press("N", "N")
        assert run.selected_key() == "0"
        assert "this is the first of 52 alike" in run.status
        await run.press("end", "n")
        assert "no other packet shown is like this one" in run.status


async def test_d_and_b_preview_rules_of_the_selected_packet() -> None:
    feed = feed_of()
    async with running(scenes.spoofed(), SIZES[1], feed=feed) as run:
        await opened(run)
        await run.press("home", "d")
        await run.until(lambda: run.dialog == "RuleDialog")
        rule = next(value for verb, value in feed.controls.calls if verb == "preview")
        assert rule.match.tcp_window.low == 512
        await run.press("escape", "b")
        await run.until(lambda: run.dialog == "RuleDialog")
        rules = [value for verb, value in feed.controls.calls if verb == "preview"]
        assert str(rules[-1].match.sources[0]) == "198.0.0.1"


async def test_w_writes_what_the_filter_shows() -> None:
    feed = feed_of()
    async with running(scenes.spoofed(), SIZES[1], feed=feed) as run:
        await opened(run)
        await run.press("slash", *"udp", "enter", "w")
        await run.until(lambda: "write_packets" in feed.controls.verbs())
        await run.settle()
        written = dict(feed.controls.calls)["write_packets"]
        assert len(written) == 1
        assert "1 packets written to /var/lib/fwtop/sessions/" in run.status
        feed.controls.failure = FwtopError("the disk is full")
        await run.press("w")
        await run.until(lambda: "the disk is full" in run.status)


async def test_the_selected_packet_is_decoded_when_the_cursor_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packets, "_PAUSE_SECONDS", 2.0)  # longer than two keys take on a busy machine
    feed = feed_of()
    async with running(scenes.spoofed(), SIZES[2], feed=feed) as run:
        await opened(run)
        await run.settle()
        assert "dissect_packet" not in feed.controls.verbs()  # a live list isn't decoded as it runs
        await run.press("up", "up")
        await run.until(lambda: "dissect_packet" in feed.controls.verbs())
        await run.settle()
        asked = [value for verb, value in feed.controls.calls if verb == "dissect_packet"]
        assert asked == [57]  # not the one that the cursor passed
        assert "└ TCP flags S" in run.text()
        await run.press("enter")
        await run.until(lambda: run.dialog == "DetailsDialog")
        await run.settle()
        assert "TCP" in run.text()


async def test_a_capture_has_no_verdicts_and_is_not_held() -> None:
    feed = feed_of()
    feed.controls.recent = replace(flood(), judged=False)
    shot = scenes.spoofed()
    async with running(
        replace(shot, origin=replace(shot.origin, kind="capture")), SIZES[1], feed=feed
    ) as run:
        await opened(run)
        await run.press("up")
        assert "verdict" not in run.text()
        assert "HELD" not in run.text()


async def test_no_packets_at_all() -> None:
    async with running(scenes.spoofed(), SIZES[0]) as run:
        run.app.main.tabs.show("packets")
        await run.settle()
        assert "no packet yet" in run.text()
        await run.press("n", "w", "d", "b", "enter", "up", "space", "home", "end")
        assert run.dialog == "MainScreen"


@pytest.mark.parametrize("size", [(1, 1), (60, 15), (61, 16), (80, 20), (100, 30), (400, 120)])
async def test_no_line_is_wider_than_a_terminal_of_any_size(size: tuple[int, int]) -> None:
    async with running(scenes.poison(), size, feed=feed_of()) as run:
        run.app.main.tabs.show("packets")
        await run.settle()
        await run.press("up", "slash", "t", "enter", "space")
        assert all(len(line) <= size[0] for line in run.lines())


async def test_a_stored_session_says_that_it_keeps_no_packets() -> None:
    shot = scenes.spoofed()
    async with running(replace(shot, origin=replace(shot.origin, kind="session")), SIZES[0]) as run:
        run.app.main.tabs.show("packets")
        await run.settle()
        assert "a stored session keeps no packets" in run.text()


async def test_a_key_before_the_first_packets_holds_nothing() -> None:
    feed = feed_of()
    shown, feed.controls.recent = feed.controls.recent, None
    async with running(scenes.spoofed(), SIZES[1], feed=feed) as run:
        await run.go("packets")
        await run.press("up")
        assert "no packet yet" in run.text()
        feed.controls.recent = shown
        await run.send(scenes.spoofed())
        assert "live Space hold" in run.text()
