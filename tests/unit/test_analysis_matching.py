"""A rule's match on columns against the same match on single packets, and what limits and blocks hit."""

from __future__ import annotations

import numpy as np
import pytest
from analysis_factory import ethernet, ip, make_batch, make_frames, make_window, tcp, udp
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fwtop.analysis.proposals.limits import replayed, sustained, usual_rate
from fwtop.analysis.proposals.matching import allowed_rows, match_rows, payload_rows
from fwtop.analysis.proposals.prefixes import Addresses, fewest_prefixes
from fwtop.analysis.proposals.preview import basis, preview_on
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import AllowedPeer, Role
from fwtop.model.rule import Kind, Match, PayloadMatch, Range, RateLimit, Rule
from fwtop.model.traffic.packets import PacketBatch
from fwtop.rehearsal.host import KnownPeers

A, B, SIX = bytes([203, 0, 113, 7]), bytes([10, 0, 0, 1]), bytes.fromhex("20010db8" + "00" * 11 + "05")


def batch_of(*packets: bytes, snap: int = 216) -> PacketBatch:
    return make_batch([(0.001 * i, ethernet(packet)) for i, packet in enumerate(packets)], snap=snap)


PACKETS = batch_of(
    ip(A, B, 17, udp(53, 4000, b"\0\1answer"), ttl=50),
    ip(A, B, 17, udp(4000, 53, b"question"), ttl=64),
    ip(A, B, 6, tcp(1000, 80, 2, seq=1, ack=0, window=512), ttl=64, ip_id=0x1234),
    ip(A, B, 6, tcp(1000, 80, 18, seq=1, ack=2, options=bytes(12), data=b"GET / HTTP"), ttl=64),
    ip(SIX, SIX, 17, udp(53, 99, b"six answer"), ttl=64),
    ip(A, B, 17, b"later part answer", ttl=50, offset=1480),
    ip(A, B, 17, udp(53, 4000, b"first")[:8] + bytes(16), ttl=50, more=True),
)


@pytest.mark.parametrize(
    ("match", "rows"),
    [
        (Match(), [0, 1, 2, 3, 4, 5, 6]),
        (Match(family=6), [4]),
        (Match(protocol=17, sport=53), [0, 4, 6]),
        (Match(dport=53), [1]),
        (Match(fragment=True), [5, 6]),
        (Match(fragment=False, protocol=17), [0, 1, 4]),
        (Match(ttl=Range(40, 60)), [0, 5, 6]),
        (Match(tcp_flags=(18, 2)), [2]),
        (Match(ip_length=Range(40, 40)), [2]),
        (Match(ip_id=Range(0x1234, 0x1234)), [2]),
        (Match(ip_id=Range(0, 0)), [0, 1, 3, 5, 6]),
        (Match(tcp_window=Range(500, 600)), [2]),
        (Match(tcp_window=Range(0, 65535)), [2, 3]),
        (Match(tcp_header=Range(20, 20)), [2]),
        (Match(tcp_seq=Range(1, 1)), [2, 3]),
        (Match(tcp_seq=Range(0, 0)), []),
        (Match(tcp_header=Range(21, 60)), [3]),
        (Match(sources=(Prefix.parse("203.0.113.0/29"),)), [0, 1, 2, 3, 5, 6]),
        (Match(sources=(Prefix.parse("203.0.113.8/29"),)), []),
        (Match(sources=(Prefix.parse("2001:db8::/64"), Prefix.parse("10.0.0.0/8"))), [4]),
        (Match(destinations=(Prefix.parse("10.0.0.1"),), protocol=6), [2, 3]),
        (Match(payload=(PayloadMatch(b"answer"),)), [0, 4, 5]),
        (Match(payload=(PayloadMatch(b"answer", 2),)), [0]),
        (Match(payload=(PayloadMatch(b"\xff1answer"[1:], 1, b"\x00" + b"\xff" * 6),)), [0]),
        (Match(payload=(PayloadMatch(b"GET "), PayloadMatch(b"HTTP"))), [3]),
    ],
)
def test_a_match_finds_the_packets_that_meet_all_its_conditions(match: Match, rows: list[int]) -> None:
    assert np.flatnonzero(match_rows(match, PACKETS)).tolist() == rows


@settings(max_examples=60)
@given(
    st.lists(st.binary(max_size=40), min_size=1, max_size=8),
    st.binary(min_size=1, max_size=5),
    st.one_of(st.none(), st.integers(0, 30)),
)
def test_payload_search_agrees_with_bytes(payloads: list[bytes], wanted: bytes, offset: int | None) -> None:
    batch = batch_of(*(ip(A, B, 17, udp(1, 2, data), ttl=9) for data in payloads))
    found = payload_rows(PayloadMatch(wanted, offset), batch)
    for data, hit in zip(payloads, found.tolist(), strict=True):
        assert hit == (wanted in data if offset is None else data[offset : offset + len(wanted)] == wanted)


def test_search_stops_where_the_sample_ends() -> None:
    batch = batch_of(ip(A, B, 17, udp(1, 2, b"x" * 60 + b"needle"), ttl=9), snap=100)
    assert not payload_rows(PayloadMatch(b"needle"), batch).any()
    assert not payload_rows(PayloadMatch(b"\0\0\0\0"), batch).any()


def rows_of(batch: PacketBatch) -> np.ndarray:
    return np.arange(len(batch))


def test_limit_drops_what_is_above_per_prefix() -> None:
    frames = make_frames([{"src": "9.9.9.9", "count": 900}, {"src": "8.8.8.8", "count": 100}], 1.0)
    batch = make_batch(frames)
    part = sustained(RateLimit(200, 10), batch, rows_of(batch), batch.weight, 1.0)
    fast = batch.src_lo == 0x09090909
    assert part[fast] == pytest.approx(1 - 200 / 900)
    assert not part[~fast].any()
    in_bytes = RateLimit(100, 0, in_bytes=True)
    assert sustained(in_bytes, batch, rows_of(batch), batch.weight, 1.0).min() > 0.9


def test_a_source_that_was_sampled_once_has_no_known_rate() -> None:
    batch = make_batch(make_frames([{"src": "random", "count": 500}], 1.0))
    thin = np.full(len(batch), 1000.0)
    assert not sustained(RateLimit(100, 100), batch, rows_of(batch), thin, 1.0).any()
    steady = make_batch(make_frames([{"src": "9.9.9.9", "count": 50}], 1.0))
    part = sustained(RateLimit(100, 100), steady, rows_of(steady), np.full(50, 20.0), 1.0)
    assert part == pytest.approx(1 - 100 / 981)


def test_normal_bursts_are_replayed_through_the_bucket() -> None:
    """Fifty packets at once every five seconds are 10 a second: a bucket of 50 takes them, one of 10 not."""
    frames = [frame for at in range(10) for frame in bursts("9.9.9.9", 50, at * 5.0)]
    batch = make_batch(frames)
    part = replayed(RateLimit(20, 50), batch, rows_of(batch), batch.weight, 50.0)
    assert not part.any()
    part = replayed(RateLimit(20, 10), batch, rows_of(batch), batch.weight, 50.0)
    assert part.mean() == pytest.approx(0.8, abs=0.02)
    assert usual_rate(RateLimit(1, 1), batch, batch.weight, 50.0) == pytest.approx(11.1, abs=0.2)


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=120),
    st.integers(1, 60),
    st.integers(1, 60),
)
def test_the_replay_agrees_with_a_bucket_of_single_packets(
    steps: list[int], per_second: int, burst: int
) -> None:
    """xt_hashlimit.c with one packet after the other, all in the middle of a tenth of a second."""
    times = np.cumsum(steps) * 0.1 + 0.05
    batch = batch_of(*(ip(A, B, 17, udp(1, 2, b""), ttl=9) for _ in steps))
    batch.time_ns[:] = (times * 1e9).astype(np.int64)
    tokens, last, passed = float(burst), times[0], 0
    for at in times:
        tokens = min(float(burst), tokens + (at - last) * per_second)
        last = at
        if tokens >= 1 - 1e-6:
            tokens, passed = tokens - 1, passed + 1
    part = replayed(RateLimit(per_second, max(burst, 4)), batch, rows_of(batch), batch.weight, 60.0)
    if burst >= 4:
        assert len(steps) - part.sum() == pytest.approx(passed, abs=1 + 0.05 * len(steps))


def bursts(source: str, count: int, at: float) -> list[tuple[float, bytes]]:
    src = Prefix.parse(source).lo.to_bytes(4, "big")
    return [(at + i * 1e-4, ethernet(ip(src, B, 17, udp(1, 2, b"x"), ttl=9))) for i in range(count)]


def addresses(*texts: str) -> Addresses:
    prefixes = [Prefix.parse(text) for text in texts]
    columns = (np.array([getattr(p, name) for p in prefixes]) for name in ("family", "hi", "lo"))
    family, hi, lo = columns
    return Addresses(family.astype(np.uint8), hi.astype(np.uint64), lo.astype(np.uint64))


NOBODY = Addresses(np.zeros(0, np.uint8), np.zeros(0, np.uint64), np.zeros(0, np.uint64))


def test_single_sources_stay_single_and_dense_ones_become_one_prefix() -> None:
    dense = [f"45.9.8.{i}" for i in range(64, 128)]
    attack = addresses("81.2.3.4", *dense)
    cover = fewest_prefixes(attack, np.ones(65), NOBODY, target=1.0, limit=100)
    assert sorted(map(str, cover.prefixes)) == ["45.9.8.64/26", "81.2.3.4"]
    assert cover.share == pytest.approx(1.0)


def test_no_prefix_holds_a_normal_source() -> None:
    dense = [f"45.9.8.{i}" for i in range(256) if i != 77]
    cover = fewest_prefixes(addresses(*dense), np.ones(255), addresses("45.9.8.77"), target=1.0, limit=300)
    assert not any(prefix.contains(Prefix.parse("45.9.8.77")) for prefix in cover.prefixes)
    assert sum(1 << (32 - prefix.length) for prefix in cover.prefixes) == 255


def test_the_tail_is_left_out_and_six_is_cut_at_64() -> None:
    heavy = addresses("2a01:1:2:3::5", "2a01:1:2:3::6", "45.1.1.1", "46.2.2.2")
    cover = fewest_prefixes(heavy, np.array([50.0, 40.0, 9.0, 1.0]), NOBODY, target=0.95, limit=10)
    assert [str(prefix) for prefix in cover.prefixes] == ["2a01:1:2:3::/64", "45.1.1.1"]
    assert cover.share == pytest.approx(0.99)


def test_letters_of_a_name_match_in_either_case_and_its_type_as_it_is() -> None:
    """HTTPS records have type 65, the number of the letter A; 97, that of a, is another type."""
    match = PayloadMatch(b"\3Www\0\0\x41", 12, dns_name="www")
    assert match.compared_bits == b"\xff\xdf\xdf\xdf\xff\xff\xff"


@pytest.mark.parametrize(
    ("role", "port", "rows"),
    [
        (Role.OPERATOR, 0, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (Role.SSH, 1000, [4]),
        (Role.DNS, 0, [0]),
        (Role.NTP, 0, [2]),
        (Role.GATEWAY, 0, [5, 6, 7]),
        (Role.OWN, 0, []),
    ],
)
def test_what_passes_in_a_role_is_not_dropped(role: Role, port: int, rows: list[int]) -> None:
    packets = batch_of(
        ip(A, B, 17, udp(53, 4000, b"answer"), ttl=9),
        ip(A, B, 17, udp(53, 1023, b"to a service"), ttl=9),
        ip(A, B, 17, udp(123, 123, b"time"), ttl=9),
        ip(A, B, 6, tcp(1000, 22, 2, seq=1, ack=0), ttl=9),
        ip(A, B, 6, tcp(1000, 22, 16, seq=1, ack=2), ttl=9),
        ip(A, B, 1, bytes(8), ttl=9),
        ip(A, B, 89, bytes(8), ttl=9),
        ip(A, B, 17, udp(5000, 3784, b"bfd"), ttl=9),
        ip(A, B, 17, udp(5000, 80, b"flood"), ttl=9),
    )
    peer = AllowedPeer(Prefix.parse("203.0.113.7"), role, port)
    assert np.flatnonzero(allowed_rows([peer], packets)).tolist() == rows
    assert not allowed_rows([AllowedPeer(Prefix.parse("192.0.2.1"), role, port)], packets).any()
    if role is Role.SSH:
        logins = AllowedPeer(peer.prefix, role, login_port=22)
        assert np.flatnonzero(allowed_rows([logins], packets)).tolist() == [3, 4]


def test_preview_counts_nothing_that_the_allow_list_lets_pass() -> None:
    batch = batch_of(*(ip(A, B, 17, udp(53, 4000 + i, bytes(500)), ttl=9) for i in range(500)))
    judged = basis(make_window(batch, 1.0))
    rule = Rule("", Kind.IPSET, Match(sources=(Prefix.parse("203.0.113.7"),)), "x", 60)
    resolver = AllowedPeer(Prefix.parse("203.0.113.7"), Role.DNS)
    assert preview_on(rule, judged).total_pps > 400
    spared = preview_on(rule, judged, KnownPeers((resolver,)))
    assert (spared.total_pps, spared.collateral_pps) == (0.0, 0.0)


def test_preview_says_what_active_rules_stop_already() -> None:
    bots = [ip(bytes([31, 0, 2, n % 20]), B, 17, udp(4000, 9999, b"x" * 400), ttl=50) for n in range(1_000)]
    window = make_window(batch_of(*bots), 1.0)
    half = Rule(
        "1", Kind.IPSET, Match(sources=tuple(Prefix.parse(f"31.0.2.{n}") for n in range(10))), "x", 60
    )
    whole = Rule("", Kind.XDP, Match(protocol=17, dport=9999), "y", 60)
    (title, share), *_ = preview_on(whole, basis(window)).attacks
    assert share > 0.99
    assert preview_on(whole, basis(window)).already == ()
    beside = preview_on(whole, basis(window, active=[half]))
    assert dict(beside.already)[title] == pytest.approx(0.5, abs=0.01)
    assert dict(beside.together)[title] > 0.99
    again = preview_on(half, basis(window, active=[whole]))
    assert dict(again.together) == dict(again.already)
    derived = replace(half, origin="country:DE")  # only the guardian knows its sources
    assert preview_on(whole, basis(window, active=[derived])).already == ()
