"""Signatures of packets: what floods have in common, counted as exhaustive counting counts it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from analysis_factory import make_batch, make_frames, make_tables, make_window
from capture_files import CAPTURES
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from test_analysis_propose import VISITORS, learned

from fwtop.analysis.classify import find_attacks
from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.context import make_context
from fwtop.analysis.memory import Baseline
from fwtop.analysis.packet_signatures import SignatureSearch, packet_signatures, stand_outs
from fwtop.analysis.proposals.normal import normal_traffic
from fwtop.analysis.window.traffic import Traffic
from fwtop.capture.reader import read_capture
from fwtop.incidents.advisor import Advisor
from fwtop.model.rule import Match, PayloadMatch, Range
from fwtop.model.traffic.packets import Hook, NoOrigin, PacketBatch, Window
from fwtop.model.traffic.snapshot import PacketSignature
from fwtop.stats.engine import Engine


def judged(window: Window, advisor: Advisor | None = None) -> tuple[PacketSignature, ...]:
    return (advisor or Advisor()).judge(window, make_tables(window)).signatures


def scene(*items: dict[str, Any], live: bool = False, weight: float = 1.0) -> Window:
    return make_window(make_batch(make_frames(list(items), 5.0), weight=weight), 5.0, live=live)


SYNS = {"protocol": "tcp", "dport": 80, "flags": "S", "ttl": 53, "window": 512, "count": 4000}


def exactly(value: int) -> Range:
    return Range(value, value)


def test_a_spoofed_syn_flood_has_one_signature_with_all_its_constants() -> None:
    first = judged(scene(VISITORS, SYNS))[0]
    assert first.match == Match(
        family=4, protocol=6, dport=80, tcp_flags=(63, 2),
        ip_length=exactly(40), ttl=exactly(53), tcp_window=exactly(512),
    )  # fmt: skip
    assert first.share.packets == 4000
    assert first.attack_share > 0.99
    assert "SYN" in first.attack


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize(("one_in", "joined"), [(1.0, 1.0), (1.0, 4.0), (64.0, 1.0), (64.0, 4.0)])
def test_a_share_is_exact_only_where_every_packet_was_seen(live: bool, one_in: float, joined: float) -> None:
    window = scene(VISITORS, SYNS, live=live, weight=one_in * joined)
    window = replace(window, counters=replace(window.counters, one_in=one_in if live else 1.0))
    share = judged(window)[0].share
    every = one_in == 1.0 if live else one_in * joined == 1.0
    assert (share.share_low == share.share_high) is every


def test_fields_that_vary_stay_open_and_two_tools_are_two_signatures() -> None:
    varied = SYNS | {"ttl": "30-250"}
    other = SYNS | {"ttl": 64, "window": 1024, "count": 3000}
    matches = [one.match for one in judged(scene(varied, other))]
    assert matches[0].ttl is None
    assert (matches[0].tcp_window, matches[0].ip_length) == (exactly(512), exactly(40))
    assert matches[1].ttl == exactly(64)
    assert matches[1].tcp_window == exactly(1024)


def test_payloads_are_told_apart_by_their_first_bytes() -> None:
    items = [{"dport": 27015, "payload": name, "count": 2000} for name in ("quake", "mssql")]
    found = judged(scene(*items))
    assert {one.match.payload for one in found} == {
        (PayloadMatch(b"\xff\xff\xff\xffstatusRespon", 0),), (PayloadMatch(b"\x05\x85\x01ServerName;", 0),)
    }  # fmt: skip


def test_normal_traffic_has_its_share_and_comes_after_the_flood() -> None:
    found = judged(scene(VISITORS, SYNS, live=True), learned())
    assert found[0].baseline_share == 0.0
    assert found[0].match.ttl == exactly(53)
    assert max(one.baseline_share for one in found[1:]) > 0.1
    assert all(one.attack_share < 0.5 for one in found if one.baseline_share > 0.1)


def test_signatures_are_counted_in_each_window_and_searched_for_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searches: list[int] = []

    def counted(traffic: Traffic) -> list[Match]:
        searches.append(len(traffic))
        return stand_outs(traffic)

    monkeypatch.setattr("fwtop.analysis.packet_signatures.stand_outs", counted)
    search, advisor = SignatureSearch(), Advisor()
    for second in range(9):
        window = replace(scene({**VISITORS, "count": 200 + second}, live=True), started=1000.0 + second)
        context = make_context(window, AdviseConfig(), advisor.baseline)
        normal = normal_traffic(context)
        shown = packet_signatures(window, context, normal, search)
        assert [one.share for one in shown] == [
            one.share for one in packet_signatures(window, context, normal)
        ]
    assert len(searches) == 2 + 9  # every 4.5 s, and for each comparison
    for second, made in ((9, True), (10, False), (13, False), (14, True)):
        searches.clear()
        window = replace(scene(VISITORS, SYNS, live=True), started=1000.0 + second)
        context = make_context(window, AdviseConfig(), advisor.baseline)
        context.findings[:] = find_attacks(context)
        assert context.findings
        assert search.in_window(context) == stand_outs(context.traffic)
        assert bool(searches) == made  # an attack's are found at once


def test_random_packets_have_no_signature() -> None:
    numbers = np.random.default_rng(3)
    batch = PacketBatch.zeros(60_000, 60)
    batch.hook[:], batch.weight[:], batch.family[:] = Hook.INGRESS, 1.0, 4
    for name in ("protocol", "ttl", "tcp_flags", "icmp_type"):
        getattr(batch, name)[:] = numbers.integers(1, 256, len(batch))
    for name in ("sport", "dport", "ip_length", "tcp_window"):
        getattr(batch, name)[:] = numbers.integers(0, 65536, len(batch))
    assert judged(make_window(batch, 5.0)) == ()


def naive(match: Match, batch: PacketBatch, row: int) -> bool:
    """Compare field by field."""
    for name in ("family", "protocol", "sport", "dport"):
        wanted = getattr(match, name)
        if wanted is not None and int(getattr(batch, name)[row]) != wanted:
            return False
    for name in ("ip_length", "ttl", "tcp_window"):
        span = getattr(match, name)
        if span is not None and not span.low <= int(getattr(batch, name)[row]) <= span.high:
            return False
    if match.tcp_flags is not None and int(batch.tcp_flags[row]) & match.tcp_flags[0] != match.tcp_flags[1]:
        return False
    start = int(batch.payload_offset[row])
    held = batch.data[
        row, start : min(int(batch.captured[row]), start + int(batch.payload_length[row]))
    ].tobytes()
    return all(held.startswith(one.data) for one in match.payload)


@st.composite
def mixtures(draw: st.DrawFn) -> list[tuple[int, int, int, int, int, int, int]]:
    """Rows of few distinct values: protocol, sport, dport, length, TTL, flags, window."""
    kinds = st.tuples(
        st.sampled_from([6, 17]), st.integers(1, 3), st.integers(1, 3), st.sampled_from([40, 60]),
        st.integers(50, 53), st.sampled_from([2, 16]), st.sampled_from([512, 1024]),
    )  # fmt: skip
    return draw(st.lists(kinds, min_size=1, max_size=400))


def batch_of_rows(rows: list[tuple[int, ...]]) -> PacketBatch:
    batch = PacketBatch.zeros(len(rows), 60)
    batch.hook[:], batch.weight[:], batch.family[:], batch.length[:] = Hook.INGRESS, 1.0, 4, 60
    names = ("protocol", "sport", "dport", "ip_length", "ttl", "tcp_flags", "tcp_window")
    for name, column in zip(names, zip(*rows, strict=True), strict=True):
        getattr(batch, name)[:] = column
    batch.tcp_header[batch.protocol == 6] = 20
    return batch


def check_counts(found: tuple[PacketSignature, ...], batch: PacketBatch) -> None:
    for one in found:
        counted = sum(naive(one.match, batch, row) for row in range(len(batch)))
        assert one.share.packets == counted
        assert one.share.share_low <= counted / len(batch) <= one.share.share_high


@settings(max_examples=50, deadline=None)
@given(mixtures())
def test_shares_are_what_counting_one_by_one_gives(rows: list[tuple[int, ...]]) -> None:
    batch = batch_of_rows(rows)
    window = make_window(batch, 5.0)
    context = make_context(window, AdviseConfig(), Baseline())
    found = packet_signatures(window, context, normal_traffic(context))
    check_counts(found, batch)
    assert len({one.match for one in found}) == len(found) <= 48


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(*(st.integers(0, 65_535) for _ in range(2)), st.integers(20, 1500), st.integers(1, 255)),
    st.floats(0.06, 1.0), st.sampled_from([6, 17]), st.integers(0, 1000),
)  # fmt: skip
def test_a_planted_combination_is_found_with_all_its_fields(
    planted: tuple[int, int, int, int], part: float, protocol: int, seed: int
) -> None:
    dport, window_size, length, ttl = planted
    numbers = np.random.default_rng(seed)
    count = 2000
    batch = PacketBatch.zeros(count, 60)
    batch.hook[:], batch.weight[:], batch.family[:], batch.length[:] = Hook.INGRESS, 1.0, 4, 60
    batch.protocol[:] = numbers.choice([6, 17], count)
    for name in ("sport", "dport", "ip_length", "tcp_window"):
        getattr(batch, name)[:] = numbers.integers(1, 65_536, count)
    batch.ttl[:] = numbers.integers(1, 256, count)
    rows = numbers.permutation(count)[: int(part * count)]
    batch.protocol[rows], batch.dport[rows], batch.ip_length[rows], batch.ttl[rows] = (
        protocol,
        dport,
        length,
        ttl,
    )
    batch.tcp_window[rows] = window_size
    batch.tcp_header[batch.protocol == 6] = 20
    batch.tcp_flags[batch.protocol == 6] = 2
    context = make_context(make_window(batch, 5.0), AdviseConfig(), Baseline())
    found = stand_outs(context.traffic)
    assert any(
        (one.protocol, one.dport, one.ip_length, one.ttl) == (protocol, dport, exactly(length), exactly(ttl))
        and one.tcp_window == (exactly(window_size) if protocol == 6 else None)
        for one in found
    )


def test_dropped_shares_are_those_of_each_signature() -> None:
    other = SYNS | {"dport": 443, "window": 1024, "count": 2000}
    arrived = make_batch(make_frames([SYNS, other], 5.0))
    arrived.hook[(arrived.dport == 80)] = Hook.XDP
    found = {one.match.dport: one.dropped_share for one in judged(make_window(arrived, 5.0))}
    assert found == {80: pytest.approx(1.0), 443: 0.0}


@pytest.mark.parametrize("path", sorted(CAPTURES.glob("*.pcap*")), ids=lambda path: str(path.name))
def test_real_captures_are_counted_exactly(path: Path) -> None:
    engine = Engine(NoOrigin(), window_seconds=None, live=False)
    with path.open("rb") as file:
        for batch in read_capture(file, path.name).batches():
            engine.feed(batch, None, 0.0)
    window, tables = engine.window(), engine.tables()
    found = Advisor().judge(window, tables).signatures
    assert found
    assert found[0].attack_share > 0.99
    packets = make_context(window, AdviseConfig(), Baseline()).traffic.packets
    for one in found:
        if one.match.fragment is None and one.match.icmp_type is None:
            counted = sum(naive(one.match, packets, row) for row in range(len(packets)))
            assert one.share.share == pytest.approx(counted / len(packets))
