"""The ring of recent packets, what became of each, who sent it, and the file they are written to."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import numpy as np
import pytest
from frames import batch_of, ethernet, ipv4, ipv6, tcp, udp
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fwtop.analysis.packets.recent import Fate, PacketList, RecentPackets, captured_packets, joined, verdicts
from fwtop.analysis.standing import Standing, like_keys, who_of
from fwtop.capture.reader import read_capture
from fwtop.console.packet_ring import PacketRing
from fwtop.console.samples import pcap_bytes, write_packets
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import AllowedPeer, Role
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, RateLimit, Rule, RuleStatus, State
from fwtop.model.traffic.counters import Counters, DropCount
from fwtop.model.traffic.packets import FLAG_OUTBOUND, Hook, PacketBatch

MS = 1_000_000
REASONS = (
    DropCount("netfilter", "NETFILTER_DROP", 5, code=8),
    DropCount("socket", "NO_SOCKET", 1, code=3),
    DropCount("ip", "evil\x1b[31m", 1, code=9),
)
COUNTERS = Counters(1.0, 10, 1000, drops=REASONS)


def syn(number: int, port: int = 80, flags: int = 2) -> bytes:
    source = f"203.0.113.{number % 250 + 1}"
    segment = tcp(1000 + number % 60_000, port, flags, seq=number)
    return ethernet(ipv4(segment, 6, source, ident=number & 0xFFFF), 0x0800)


def sampled(frames: list[bytes], hook: Hook = Hook.INGRESS, *, at: int = 0, reason: int = 0) -> PacketBatch:
    return batch_of(frames, hook=hook, time_ns=at * MS, reason=reason)


def rule(match: Match, kind: Kind = Kind.IPSET, *, created: float = 0.0, number: str = "7") -> RuleStatus:
    return RuleStatus(Rule(number, kind, match, "", 600, created), State.CONFIRMED)


def words(ring: PacketRing, *rules: RuleStatus, peers: tuple[AllowedPeer, ...] = ()) -> list[str]:
    places, kinds = verdicts(ring.latest, rules, peers)
    marks = {Fate.UNKNOWN: "?", Fate.REACHES: "█", Fate.MINE: "▓", Fate.OTHER: "▒", Fate.KERNEL: "░"}
    shown = [f"{marks[kind.fate]} {kind.text}{' ~' if kind.inferred else ''}".strip() for kind in kinds]
    return [shown[place] for place in places]


def ring_of(*batches: PacketBatch, counters: Counters = COUNTERS) -> PacketRing:
    ring = PacketRing()
    for batch in batches:
        ring.add(batch, counters)
    return ring


def test_the_ring_keeps_the_newest_and_numbers_them_for_good() -> None:
    ring = PacketRing(most=10)
    ring.add(sampled([syn(n) for n in range(4)]), COUNTERS)
    first = ring.latest
    ring.add(sampled([syn(n) for n in range(4, 12)], at=1), COUNTERS)
    assert first.numbers.tolist() == [0, 1, 2, 3]  # unchanged
    assert ring.latest.numbers.tolist() == list(range(2, 12))
    assert ring.latest.arrived.tcp_seq.tolist() == list(range(2, 12))
    ring.add(sampled([syn(n) for n in range(12, 50)], at=2), COUNTERS)
    assert ring.latest.numbers.tolist() == list(range(40, 50))
    assert ring.latest.arrived.tcp_seq.tolist() == list(range(40, 50))
    assert ring.latest.seen == 50


def test_packets_of_many_polls_are_joined() -> None:
    ring = PacketRing(most=200)
    for number in range(150):  # more polls than wait to be joined
        ring.add(sampled([syn(number)], at=number), COUNTERS)
        ring.add(sampled([syn(number)], Hook.ACCEPTED, at=number), COUNTERS)
    latest = ring.latest
    assert latest.arrived.tcp_seq.tolist() == list(range(150))
    assert latest.accepted.tcp_seq.tolist() == list(range(150))
    assert latest.numbers.tolist() == list(range(150))


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from(list(Hook))), max_size=8))
@settings(max_examples=60, deadline=None)
def test_the_ring_is_bounded(parts: list[tuple[int, Hook]]) -> None:
    ring = PacketRing(most=16)
    arrived = 0
    for place, (count, hook) in enumerate(parts):
        ring.add(sampled([syn(n) for n in range(count)], hook, at=place), COUNTERS)
        arrived += count * (hook in (Hook.INGRESS, Hook.XDP))
    latest = ring.latest
    assert len(latest.arrived) == len(latest.numbers) == min(arrived, 16)
    assert latest.numbers.tolist() == list(range(arrived))[-16:]
    assert latest.arrived.data.base is None or len(latest.arrived.data.base) <= 64


def test_the_ring_is_read_while_it_is_written() -> None:
    ring, written = PacketRing(most=50), 7 * 300

    def write() -> None:
        for number in range(0, written, 7):
            ring.add(sampled([syn(number + n) for n in range(7)]), COUNTERS)

    thread = threading.Thread(target=write)
    thread.start()
    is_writing = True
    while is_writing:
        is_writing = thread.is_alive()
        latest = ring.latest
        assert len(latest.arrived) == len(latest.numbers)
        assert (latest.arrived.tcp_seq == latest.numbers).all()
    assert latest.numbers.max() == written - 1


def test_samples_of_other_hooks_tell_what_became_of_a_packet() -> None:
    frames = [syn(n) for n in range(5)]
    ring = ring_of(
        sampled(frames, at=10),
        sampled([frames[1]], Hook.DROP, at=11, reason=8),
        sampled([frames[2]], Hook.DROP, at=12, reason=3),
        sampled([frames[3]], Hook.ACCEPTED, at=12),
        sampled([frames[4]], Hook.ACCEPTED, at=12),
        sampled([frames[4]], Hook.DROP, at=13, reason=9),
    )
    assert words(ring) == ["?", "▒ NETFILTER_DROP", "░ NO_SOCKET", "█ accepted", "░ evil·[31m"]


def test_an_xdp_sample_carries_its_rule() -> None:
    batch = sampled([syn(1)], Hook.XDP)
    assert words(ring_of(replace(batch, rule=np.array([118], np.uint32)))) == ["▓ rule 118"]


def test_a_late_or_different_sample_is_no_verdict() -> None:
    late = sampled([syn(1)], Hook.DROP, at=500, reason=8)
    early = sampled([syn(1)], Hook.DROP, at=0, reason=8)
    other = sampled([syn(2)], Hook.DROP, at=100, reason=8)
    assert words(ring_of(sampled([syn(1)], at=100), late, early, other)) == ["?"]


def test_active_rules_tell_what_they_must_have_dropped() -> None:
    block = rule(Match(sources=(Prefix.parse("203.0.113.0/24"),)))
    ring = ring_of(sampled([syn(1), ethernet(ipv4(udp(9, 9), 17), 0x0800)]))
    assert words(ring, block) == ["▓ rule 7 ~", "?"]
    assert words(ring, replace(block, state=State.EXPIRED)) == ["?", "?"]
    assert words(ring, replace(block, rule=replace(block.rule, created=1e12))) == ["?", "?"]
    assert words(ring, replace(block, rule=replace(block.rule, kind=Kind.XDP))) == ["?", "?"]
    limited = replace(block.rule, kind=Kind.HASHLIMIT, limit=RateLimit(10, 10))
    assert words(ring, replace(block, rule=limited)) == ["?", "?"]
    friend = AllowedPeer(Prefix.parse("203.0.113.2"), Role.OPERATOR)
    assert words(ring, block, peers=(friend,)) == ["?", "?"]


def test_drop_samples_carry_the_rule_that_they_are_attributed_to() -> None:
    limit = rule(Match(dport=80), Kind.HASHLIMIT, number="9")
    limit = replace(limit, rule=replace(limit.rule, limit=RateLimit(10, 10)))
    frames = [syn(1), syn(2), syn(3)]
    drops = sampled(frames, Hook.DROP, at=1, reason=8)
    ring = ring_of(sampled(frames), replace(drops, rule=np.array([7, 9, 0], np.uint32)))
    assert words(ring, limit) == ["▓ rule 7", "▓ rule 9 ~", "▒ NETFILTER_DROP"]


def test_like_packets_share_a_fate_that_is_nearly_always_the_same() -> None:
    frames = [syn(n) for n in range(8)]
    ring = ring_of(sampled([*frames, syn(9, 81)]), sampled(frames[:5], Hook.DROP, at=1, reason=8))
    assert words(ring) == ["▒ NETFILTER_DROP"] * 5 + ["▒ NETFILTER_DROP ~"] * 3 + ["?"]
    ring.add(sampled(frames[5:6], Hook.ACCEPTED, at=1), COUNTERS)
    assert words(ring)[6:] == ["?", "?", "?"]


def test_one_stray_packet_leaves_no_flood_without_a_verdict() -> None:
    frames = [syn(n) for n in range(32)]
    drops = sampled(frames[:30], Hook.DROP, at=1, reason=8)
    stray = replace(drops, reason=np.array([8] * 29 + [3], drops.reason.dtype))
    assert words(ring_of(sampled(frames), stray))[28:] == [
        "▒ NETFILTER_DROP", "░ NO_SOCKET", "▒ NETFILTER_DROP ~", "▒ NETFILTER_DROP ~",
    ]  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 120)), max_size=12), st.integers(0, 120))
@example([(1, 1), (1, 0)], 1)  # the earlier one is a nanosecond too early
@settings(max_examples=150, deadline=None)
def test_joining_equals_the_naive_search(outcomes: list[tuple[int, int]], at: int) -> None:
    arrived = sampled([syn(n) for n in range(3)], at=at)
    later = PacketBatch.concat([sampled([syn(number)], Hook.DROP, at=time) for number, time in outcomes])
    found = joined(arrived, later)
    for row in range(3):
        time = int(arrived.time_ns[row])
        fitting = [
            int(later.time_ns[place])
            for place, (number, _) in enumerate(outcomes)
            if number == row and -MS <= int(later.time_ns[place]) - time <= 50 * MS
        ]
        if not fitting:
            assert found[row] == -1
        else:
            assert int(later.time_ns[found[row]]) == min(fitting)


def test_who_sent_a_packet() -> None:
    frames = [ethernet(ipv4(tcp(5000 + n, 80), 6, f"192.0.2.{n}"), 0x0800) for n in range(4)]
    six = ethernet(ipv6(tcp(1, 80), 6, "2001:db8::7"), 0x86DD)
    batch = batch_of([*frames, six])
    peers = (
        AllowedPeer(Prefix.parse("192.0.2.1"), Role.SSH, 50000),
        AllowedPeer(Prefix.parse("192.0.2.0/31"), Role.OPERATOR),
        AllowedPeer(Prefix.parse("2001:db8::/64"), Role.DNS),
    )
    first = batch.select(slice(1, 4))
    standing = Standing(
        first.family,
        first.src_hi,
        first.src_lo,
        np.ones(3),
        np.array([1.0, 0.9, 0.0]),
        np.array([1, 0, 1]) > 0,
    )
    assert who_of(batch, peers, standing).tolist() == ["allowed", "you", "attack", "client", "resolver"]
    assert who_of(batch, (), Standing.unknown()).tolist() == [""] * 5


def listed(frames: list[bytes], *, link: int = 1) -> PacketList:
    batch = batch_of(frames, link=link, time_ns=1_700_000_000_123_456_789)
    return captured_packets(batch)


def test_written_packets_read_back_the_same(tmp_path: Path) -> None:
    shown = listed([syn(1), ethernet(ipv6(udp(53, 9, b"answer"), 17), 0x86DD, ((0x8100, 42),))])
    path = Path(write_packets(shown, (tmp_path / "missing", tmp_path)))
    assert path.parent == tmp_path
    assert path.stat().st_mode & 0o777 == 0o600
    read = PacketBatch.concat(list(read_capture(path).batches()))
    for name in ("time_ns", "length", "captured", "vlan", "src_lo", "dport", "tcp_seq"):
        assert getattr(read, name).tolist() == getattr(shown.packets, name).tolist(), name
    assert write_packets(shown, (tmp_path,)) != str(path)


def test_packets_without_ethernet_are_written_so() -> None:
    frames = [ipv4(udp(1, 2, b"abc"), 17), ipv6(tcp(3, 4), 6)]
    content = pcap_bytes(listed(frames, link=0).packets, 0)
    assert content[20:24] == b"\x65\0\0\0"  # LINKTYPE_RAW
    read = PacketBatch.concat(list(read_capture(io.BytesIO(content), "raw.pcap").batches()))
    assert read.dport.tolist() == [2, 4]
    assert read.length.tolist() == [len(frame) for frame in frames]


def test_a_file_that_cant_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(FwtopError, match=r"nothing was written to .*: No such file or directory"):
        write_packets(listed([syn(1)]), (tmp_path / "missing",))


def test_an_empty_ring_has_an_empty_list() -> None:
    places, kinds = verdicts(RecentPackets(), (), ())
    assert len(places) == 0
    assert len(kinds) == 1


def test_what_came_after_the_judgement_is_told_by_its_likeness() -> None:
    """Forged sources are new with every packet, and so are clients."""
    talk = [tcp(4000, 80, 2, seq=99), *(tcp(4000, 80, 16, b"x" * 20, seq=100 + 20 * n) for n in range(6))]
    frames = [ethernet(ipv4(part, 6, "198.51.100.9"), 0x0800) for part in talk]
    batch = batch_of([*frames, *(syn(n * 7919) for n in range(20))])
    assert who_of(batch, (), Standing.unknown()).tolist() == ["client"] * 7 + [""] * 20
    standing = replace(Standing.unknown(), attack_keys=like_keys(batch_of([syn(1)])))
    assert who_of(batch, (), standing).tolist() == ["client"] * 7 + ["attack"] * 20
    some = np.where(np.arange(len(batch)) % 2, FLAG_OUTBOUND, 0).astype(np.uint8)
    assert len(who_of(replace(batch, flags=some), (), standing)) == len(batch)
