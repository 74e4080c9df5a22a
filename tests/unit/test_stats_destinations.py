"""Destinations: counted as exhaustive counting counts them, bounded, and absent from old sessions."""

from __future__ import annotations

import ipaddress
from collections import Counter

import numpy as np
import pytest
from capture_files import CAPTURES
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_samples import START, snapshot
from test_stats import packets

from fwtop.capture.reader import read_capture
from fwtop.model.traffic.counters import Counters, DropCount
from fwtop.model.traffic.packets import Hook, NoOrigin, PacketBatch
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.stats import destinations
from fwtop.stats.engine import Engine
from fwtop.stats.sums import SAMPLES
from fwtop.store.database import decode_value, encode_value


def sent_to(addresses: list[str]) -> PacketBatch:
    batch = packets(len(addresses))
    for row, text in enumerate(addresses):
        address = ipaddress.ip_address(text)
        batch.family[row] = address.version
        batch.dst_hi[row], batch.dst_lo[row] = int(address) >> 64, int(address) & 0xFFFFFFFFFFFFFFFF
    return batch


FEW = ["192.0.2.1", "192.0.2.2", "0.0.0.1", "::1", "2001:db8::1", "2001:db8:0:1::1", "ff02::1"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(FEW), min_size=1, max_size=60),
    st.integers(1, 60),
    st.sampled_from([None, 100.0]),
)
def test_they_are_what_counting_one_by_one_gives(sent: list[str], size: int, seconds: float | None) -> None:
    engine = Engine(NoOrigin(), window_seconds=seconds, live=False)
    for start in range(0, len(sent), size):
        engine.feed(sent_to(sent[start : start + size]), None, float(start))
    rows = engine.tables().destinations
    assert {row.key: row.share.packets for row in rows} == Counter(sent)
    assert [row.share.packets for row in rows] == sorted((row.share.packets for row in rows), reverse=True)
    for row in rows:
        assert row.share.share_low == row.share.share == row.share.share_high
        assert row.share.bytes == 60 * row.share.packets
        assert str(row.prefix) == row.key


def test_drops_are_those_of_each_destination() -> None:
    batch = sent_to(["192.0.2.1"] * 200 + ["192.0.2.2"] * 100 + ["192.0.2.1"] * 200)
    batch.hook[300:] = Hook.DROP
    engine = Engine(NoOrigin(), window_seconds=1.0, live=True)
    drops = (DropCount("netfilter", "NETFILTER_DROP", 200),)
    engine.feed(batch, Counters(1.0, 300, 18_000, 100, 6000, drops=drops), 1.0)
    found = {row.key: row.dropped_share for row in engine.tables().destinations}
    assert found == {"192.0.2.1": pytest.approx(1.0), "192.0.2.2": 0.0}


def test_a_scan_of_a_large_network_keeps_what_is_heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(destinations, "MOST", 1000)
    numbers = np.random.default_rng(4)
    engine = Engine(NoOrigin(), window_seconds=None, live=False)
    for _ in range(20):
        batch = packets(20_000)
        batch.dst_lo[:] = numbers.integers(0, 1 << 32, len(batch))
        batch.dst_lo[:500] = 7
        engine.feed(batch, None, 0.0)
    first = engine.tables().destinations[0]
    assert (first.key, first.share.packets) == ("0.0.0.7", 10_000)
    assert engine._digest is not None
    assert len(engine._digest.destinations) <= 1000
    assert engine._digest.destinations.sums[SAMPLES].sum() >= 10_000


@pytest.mark.parametrize("name", ["pkt.TCP.synflood.spoofed.pcap", "amp.dns.RRSIG.fragmented.pcap"])
def test_real_captures_are_counted_exactly(name: str) -> None:
    path = CAPTURES / name
    if not path.exists():
        pytest.skip("the captures are not here")
    engine = Engine(NoOrigin(), window_seconds=None, live=False)
    truth: Counter[tuple[int, int, int]] = Counter()
    with path.open("rb") as file:
        for batch in read_capture(file, name).batches():
            engine.feed(batch, None, 0.0)
            columns = (batch.family.tolist(), batch.dst_hi.tolist(), batch.dst_lo.tolist())
            truth.update(row for row in zip(*columns, strict=True) if row[0])
    rows = engine.tables().destinations
    found = {(row.prefix.family, row.prefix.hi, row.prefix.lo): row.share.packets for row in rows}
    assert found == dict(truth.most_common(len(found)))


def test_a_session_keeps_them() -> None:
    assert decode_value(Snapshot, encode_value(snapshot(START))) == snapshot(START)


INSIDE, OUTSIDE = 3, 2
SERVER, RESOLVER, DARK, CLIENT = "192.0.2.80", "2001:db8::53", "192.0.2.99", "198.51.100.7"


def flow(source: str, sport: int, target: str, dport: int, ifindex: int) -> PacketBatch:
    batch = sent_to([target])
    address = ipaddress.ip_address(source)
    batch.src_hi[0], batch.src_lo[0] = int(address) >> 64, int(address) & 0xFFFFFFFFFFFFFFFF
    batch.protocol[0], batch.sport[0], batch.dport[0], batch.ifindex[0] = 17, sport, dport, ifindex
    return batch


def parts(*sent: PacketBatch) -> dict[str, tuple[str, tuple[str, ...]]]:
    engine = Engine(NoOrigin(), window_seconds=5.0, live=True)
    engine.feed(PacketBatch.concat(list(sent)), None, 1.0)
    return {row.key: (row.part, row.serves) for row in engine.tables().destinations}


def test_who_answers_from_behind_is_a_service_and_who_never_does_is_dark() -> None:
    syn = flow(CLIENT, 40000, SERVER, 80, OUTSIDE)
    answer = flow(SERVER, 80, CLIENT, 40000, INSIDE)
    answer.protocol[0], answer.tcp_flags[0] = 6, 0x12
    question = flow("2001:db8:f::1", 40001, RESOLVER, 53, OUTSIDE)
    reply = flow(RESOLVER, 53, "2001:db8:f::1", 40001, INSIDE)
    stray = flow(CLIENT, 1, DARK, 9, OUTSIDE)
    assert parts(syn, answer, question, reply, stray) == {
        SERVER: ("service", ("tcp/80",)),
        RESOLVER: ("service", ("udp/53",)),
        DARK: ("dark", ()),
        CLIENT: ("", ()),
        "2001:db8:f::1": ("", ()),
    }


def test_nobody_outside_can_answer_for_an_address_behind() -> None:
    syn = flow(CLIENT, 40000, SERVER, 80, OUTSIDE)
    forged = flow(SERVER, 80, CLIENT, 40000, OUTSIDE)
    forged.protocol[0], forged.tcp_flags[0] = 6, 0x12
    elsewhere = flow(CLIENT, 1, DARK, 9, INSIDE)
    assert {part for part, _ in parts(syn, forged, elsewhere).values()} == {""}
