"""Captures with the host's replies: counts are those of exhaustive counting, shares are of all packets."""

from __future__ import annotations

import io
from collections.abc import Iterator
from random import Random

import numpy as np
import pytest
from analysis_factory import address, ethernet, icmp, ip, make_frames, tcp, udp
from capture_files import pcap
from hypothesis import given, settings
from hypothesis import strategies as st
from test_analysis_propose import VISITORS

from fwtop.analysis.proposals.matching import match_rows, payload_rows
from fwtop.console.playback.capture import CaptureResult, observe_capture
from fwtop.incidents.advisor import Advisor
from fwtop.model.rule import PayloadMatch
from fwtop.model.traffic.counters import Counters, DropCount
from fwtop.model.traffic.packets import NoOrigin, PacketBatch
from fwtop.model.traffic.snapshot import Share
from fwtop.stats.engine import Engine

HOST = address("10.10.10.10")
FLOOD = {"dport": 27015, "payload": "steam", "ttl": 60, "src": "300"}
Frames = list[tuple[float, bytes]]


def read(frames: Frames) -> CaptureResult:
    frames = sorted(frames, key=lambda frame: frame[0])
    data = pcap([(1_700_000_000 * 10**9 + int(at * 1e9), frame, len(frame)) for at, frame in frames])
    return observe_capture(io.BytesIO(data), "both ways", top=50, lookup=NoOrigin())


def answered(requests: Frames, part: float, how: str) -> Iterator[tuple[float, bytes]]:
    """Yield what the host answers to a part of the packets."""
    rng = Random(5)
    for at, frame in requests:
        if rng.random() >= part:
            continue
        packet = frame[14:]
        client, sport, dport = packet[12:16], packet[20:22], packet[22:24]
        ports = int.from_bytes(dport), int.from_bytes(sport)
        if how == "echo":
            body, protocol = udp(*ports, packet[28:]), 17
        elif how == "reset":
            body, protocol = tcp(*ports, 20, seq=0, ack=int.from_bytes(packet[24:28]) + 1, window=0), 6
        else:
            body, protocol = icmp(3, 3, packet[:28]), 1
        yield at + 0.0005, ethernet(ip(HOST, client, protocol, body, ttl=64))


def check(result: CaptureResult) -> None:
    """Compare all rows of payloads and signatures with what counting every packet gives."""
    window, tables, judgement = result.whole.window, result.snapshot.tables, result.snapshot.judgement
    packets: PacketBatch = window.arrived
    assert len(packets) == tables.totals.packets, "every packet is in memory"
    inbound = ~((packets.src_lo == int.from_bytes(HOST)) & (packets.family == 4))
    rows: list[tuple[Share, np.ndarray[tuple[int], np.dtype[np.bool_]]]] = []
    for payload in judgement.payloads or tables.payloads:
        match = PayloadMatch(payload.data, payload.offset, None, payload.dns_name)
        rows.append((payload.share, payload_rows(match, packets)))
    rows += [(one.share, match_rows(one.match, packets) & inbound) for one in judgement.signatures]
    assert rows
    for share, hit in rows:
        assert share.packets == hit.sum()
        assert share.bytes == pytest.approx(int(packets.length[hit].sum()), rel=1e-6)
        assert share.share == pytest.approx(hit.sum() / len(packets))
        assert (share.share_low, share.share_high) == pytest.approx((share.share, share.share))
        assert share.pps == pytest.approx(hit.sum() / window.seconds)


def test_a_udp_flood_is_not_counted_again_with_its_port_unreachables() -> None:
    """12,000 datagrams and 1,593 answers: 12,000, not 13,593."""
    flood = make_frames([{**FLOOD, "count": 12_000}], 6.0)
    replies = list(answered(flood, 0.15, "unreachable"))[:1_593]
    result = read([*flood, *replies, *make_frames([VISITORS], 6.0)])
    check(result)
    judgement = result.snapshot.judgement
    assert max(row.share.packets for row in judgement.signatures) == 12_000
    assert max(row.share.packets for row in judgement.payloads) == 12_000


def test_a_scan_is_not_counted_again_with_its_resets() -> None:
    scan = make_frames([{"make": "scan", "src": "198.51.100.9", "count": 1_800}], 5.0)
    result = read([*scan, *list(answered(scan, 1.0, "reset"))[:239]])
    check(result)
    assert max(row.share.packets for row in result.snapshot.judgement.signatures) == 1_800


@settings(max_examples=12, deadline=None)
@given(
    count=st.integers(200, 2_500),
    part=st.floats(0.0, 1.0),
    how=st.sampled_from(("echo", "unreachable")),
    payload=st.sampled_from(("zeros", "random_any", "game", "steam", "sip")),
)
def test_whatever_the_host_answers_counts_are_exact(count: int, part: float, how: str, payload: str) -> None:
    flood = make_frames([{**FLOOD, "payload": payload, "src": "40", "count": count}], 4.0)
    check(read([*flood, *answered(flood, part, how), *make_frames([{**VISITORS, "count": 60}], 4.0)]))


def test_live_counts_are_of_the_packets_that_samples_were_taken_of() -> None:
    """What the NIC lost was never sampled: no row may count it."""
    packets = read(make_frames([VISITORS, {**FLOOD, "count": 4_000}], 3.0)).whole.window.arrived
    lost = (DropCount("nic", "ring full", 2_000),)
    counters = Counters(3.0, len(packets), int(packets.length.sum()), drops=lost)
    engine = Engine(NoOrigin(), window_seconds=3.0, live=True)
    engine.feed(packets, counters, 1_700_000_003.0)
    window, tables = engine.window(), engine.tables()
    judgement = Advisor().judge(window, tables)
    assert tables.totals.packets == len(packets) + 2_000
    for rows in (judgement.payloads, judgement.signatures):
        assert max(row.share.packets for row in rows) == 4_000
