"""Aggregation: exact where every packet is there, right intervals where it is sampled, bounded memory."""

import ipaddress
import random
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from capture_files import CAPTURES
from frames import batch_of, ethernet, ipv4, tcp, udp

from fwtop.capture.reader import read_capture
from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.counters import ConntrackSample, Counters, DropCount, RuleCount
from fwtop.model.traffic.packets import I64, U8, U64, Hook, NoOrigin, OriginColumns, PacketBatch
from fwtop.stats import sources as sources_module
from fwtop.stats.engine import Digest, Engine
from fwtop.stats.ledger import balance
from fwtop.stats.sums import SAMPLES, SUMS, VARIANCE, WEIGHT, KeyedSums, ascending
from fwtop.stats.window import Reservoir, SlidingRows, add_counters


def packets(count: int, width: int = 60) -> PacketBatch:
    """Rows that can be told apart by tcp_seq."""
    batch = PacketBatch.zeros(count, width)
    batch.hook[:] = Hook.INGRESS
    batch.weight[:] = 1.0
    batch.family[:] = 4
    batch.protocol[:] = 17
    batch.length[:] = 60
    batch.tcp_seq[:] = np.arange(count)
    return batch


def test_tallies_add_up_in_any_order() -> None:
    random_numbers = np.random.default_rng(1)
    keys = random_numbers.integers(0, 50, 1000).astype(np.uint64)
    sums = random_numbers.random((SUMS, 1000))
    sums[VARIANCE] = 0.0
    whole = KeyedSums.of(keys, sums, {"tag": keys * np.uint64(3)})
    parts = [KeyedSums.of(keys[i::7], sums[:, i::7], {"tag": keys[i::7] * np.uint64(3)}) for i in range(7)]
    joined = KeyedSums.join(parts[::-1])
    assert joined.keys.tolist() == whole.keys.tolist() == sorted(set(keys.tolist()))
    np.testing.assert_allclose(joined.sums, whole.sums)
    assert (joined.tags["tag"] == joined.keys * np.uint64(3)).all()
    assert whole.sums[WEIGHT, whole.largest(3)].tolist() == sorted(whole.sums[WEIGHT], reverse=True)[:3]


@pytest.mark.parametrize(
    "keys",
    [
        np.random.default_rng(2).integers(0, 1 << 64, 3_000, np.uint64).repeat(2),  # hashes
        np.random.default_rng(2).integers(0, 1 << 16, 5_000).astype(np.uint64),  # ports
        np.random.default_rng(2).integers(0, 99, 5_000).astype(np.uint64)
        | np.uint64(1 << 63),  # low bits only
        np.full(5_000, (1 << 64) - 1, np.uint64),
        np.arange(10).astype(np.uint64)[::-1],
    ],
)
def test_keys_of_each_form_are_put_in_ascending_order(keys: U64) -> None:
    shuffled = np.random.default_rng(3).permutation(keys)
    order, found = ascending(shuffled)
    assert found.tolist() == sorted(keys.tolist()) == shuffled[order].tolist()


def test_a_view_of_the_sliding_rows_is_never_overwritten() -> None:
    rows = SlidingRows()
    views = []
    for tick in range(40):
        batch = packets(50, 60 + tick % 3 * 8)
        batch.tcp_seq[:] = tick
        batch.data[:] = tick
        batch.captured[:] = batch.data.shape[1]
        rows.append(batch)
        if tick >= 4:
            rows.forget(50)
        views.append((tick, rows.rows()))
    for tick, view in views:
        expected = np.repeat(np.arange(max(0, tick - 4) if tick >= 4 else 0, tick + 1), 50)[-len(view) :]
        assert view.tcp_seq.tolist() == expected.tolist()
        assert (view.data[:, 0] == expected).all()
    assert len(views[-1][1]) == 200


def test_the_reservoir_is_uniform_ordered_and_keeps_the_sum_of_weights() -> None:
    hits = np.zeros(10_000)
    for seed in range(60):
        reservoir = Reservoir(500, seed)
        for start in range(0, 10_000, 700):
            part = packets(10_000).select(slice(start, start + 700))
            reservoir.append(part)
        rows = reservoir.rows()
        assert len(rows) == 500
        assert rows.weight.sum() == pytest.approx(10_000)
        assert (np.diff(rows.tcp_seq.astype(np.int64)) > 0).all()
        hits[rows.tcp_seq] += 1
    by_tenth = hits.reshape(10, -1).sum(axis=1)
    assert by_tenth.sum() == 30_000
    assert abs(by_tenth - 3000).max() < 6 * np.sqrt(3000 * 0.9)


def test_two_reservoirs_of_the_same_packets_hold_the_same() -> None:
    held = []
    for _ in range(2):
        reservoir = Reservoir(100)
        reservoir.append(packets(1000))
        held.append(reservoir.rows().tcp_seq.tolist())
    assert held[0] == held[1]


def test_a_view_of_the_reservoir_is_never_overwritten() -> None:
    reservoir = Reservoir(100, 1)
    reservoir.append(packets(100))
    full = reservoir.rows()
    later = packets(1000)
    later.tcp_seq[:] = 9999
    reservoir.append(later)
    assert full.tcp_seq.tolist() == list(range(100))
    assert (reservoir.rows().tcp_seq == 9999).sum() > 50


def test_a_reservoir_that_is_not_full_holds_everything() -> None:
    reservoir = Reservoir(500, 1)
    reservoir.append(packets(20, 60))
    reservoir.append(packets(30, 90))
    assert reservoir.rows().tcp_seq.tolist() == [*range(20), *range(30)]
    assert reservoir.rows().weight.sum() == 50
    assert len(Reservoir(5).rows()) == 0


class TwoNetworks:
    """Everything in 10.0.0.0/8 belongs to AS64500 in NL, the rest to nobody."""

    stale = ""

    def columns(self, family: U8, hi: U64, lo: U64) -> OriginColumns:
        ours = lo >> np.uint64(24) == 10
        return OriginColumns(
            np.where(ours, ord("N") << 8 | ord("L"), 0).astype(np.uint16),
            np.where(ours, 64500, 0).astype(np.uint32),
        )

    def as_name(self, asn: int) -> str | None:
        return "Example" if asn == 64500 else None


def test_origins_are_counted_and_named() -> None:
    frames = [ethernet(ipv4(udp(1, 2), 17, f"10.0.{i % 5}.1"), 0x0800) for i in range(60)]
    frames += [ethernet(ipv4(udp(1, 2), 17, "192.0.2.9"), 0x0800)] * 40
    engine = Engine(TwoNetworks(), window_seconds=None, live=False)
    engine.feed(batch_of(frames), None, 0.0)
    found = engine.tables().sources
    assert [(row.key, row.share.packets, row.as_name) for row in found.asn] == [("AS64500", 60, "Example")]
    assert [(row.key, row.share.packets) for row in found.country] == [("NL", 60)]
    by_key = {row.key: row for row in found.address}
    assert (by_key["10.0.3.1"].asn, by_key["10.0.3.1"].country) == (64500, "NL")
    assert (by_key["192.0.2.9"].asn, by_key["192.0.2.9"].country) == (None, None)
    assert found.prefix[0].key == "192.0.2.9"


def test_memory_is_bounded_and_heavy_sources_survive_a_forged_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources_module, "MOST", 8000)
    monkeypatch.setattr(sources_module, "_KEPT", 4000)
    numbers = np.random.default_rng(4)
    engine = Engine(NoOrigin(), window_seconds=None, live=False)
    heavy = int(ipaddress.ip_address("198.51.100.7"))
    for _ in range(40):
        batch = packets(20_000)
        batch.src_lo[:] = numbers.integers(0, 1 << 32, 20_000)
        batch.src_lo[:600] = heavy
        batch.src_lo[600:1200] = int(ipaddress.ip_address("203.0.113.0")) + numbers.integers(0, 256, 600)
        batch.family[1200:4000] = 6
        batch.src_hi[1200:4000] = numbers.integers(0, 1 << 63, 2800)
        engine.feed(batch, None, 0.0)
    tables = engine.tables()
    digest = engine._digest
    assert digest is not None
    assert len(digest.sources.address) <= 2 * 65_536 + 4000, "in the end all are folded to /16"
    assert digest.sources.address.sums[SAMPLES].sum() == 800_000, "folding loses no packet"
    assert tables.sources.address[0].key == "198.51.100.7"
    assert tables.sources.address[0].share.packets == 24_000
    assert {row.key for row in tables.sources.prefix} == {"198.51.100.7", "203.0.113.0/24"}
    assert tables.totals.packets == 800_000


def test_a_long_capture_takes_no_more_memory_than_a_short_one() -> None:
    numbers = np.random.default_rng(4)
    engine = Engine(NoOrigin(), window_seconds=None, live=False)
    tracemalloc.start()
    try:
        sizes = []
        for round_number in range(30):
            batch = packets(16_384, 128)
            batch.src_lo[:] = numbers.integers(0, 1 << 32, len(batch))
            batch.payload_offset[:], batch.payload_length[:], batch.captured[:] = 42, 80, 122
            batch.data[:] = numbers.integers(0, 256, batch.data.shape)
            engine.feed(batch, None, 0.0)
            if round_number % 10 == 9:
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[2] < 160e6
    assert engine.tables().totals.packets == 30 * 16_384
    assert len(engine.window().arrived) == 100_000


def test_lost_records_are_made_up_for_by_the_others_of_their_interval() -> None:
    engine = Engine(NoOrigin(), window_seconds=10.0, live=True)
    quiet, flood = packets(100), packets(100)
    quiet.src_lo[:], flood.src_lo[:] = 1, 2
    engine.feed(quiet, Counters(0.25, 100, 6000), 0.25)
    engine.feed(flood, Counters(0.25, 900, 54_000, records_lost=800), 0.5)
    tables = engine.tables()
    first, second = tables.sources.address
    assert (first.key, second.key) == ("0.0.0.2", "0.0.0.1")
    assert first.share.packets == pytest.approx(900, rel=0.01)
    assert second.share.packets == 100
    assert first.share.share_low < 0.9 < first.share.share_high, "what stands for lost ones is uncertain"
    assert tables.sampling.lost == 800


def test_the_window_slides_by_the_clock() -> None:
    engine = Engine(NoOrigin(), window_seconds=1.0, live=True)
    for tick in range(20):
        batch = packets(10)
        batch.src_lo[:] = tick
        engine.feed(batch, Counters(0.25, 10, 600, protocols={"udp": (10, 600)}), 100 + tick * 0.25)
    window, tables = engine.window(), engine.tables()
    assert sorted(set(window.arrived.src_lo.tolist())) == [16, 17, 18, 19]
    assert (window.seconds, window.started) == (1.0, 103.75)
    assert (tables.totals.packets, tables.totals.pps) == (40, 40.0)
    assert tables.protocols["udp"].packets == 40


def test_a_poll_that_is_longer_than_the_window_is_cut_where_that_begins() -> None:
    """In calm a recorder polls every four seconds: an attack was a rate of seven for its first three."""
    engine = Engine(NoOrigin(), window_seconds=3.0, live=True)
    calm, flood = packets(400), packets(2_000)
    calm.time_ns[:] = np.arange(400) * 10**7
    calm.dst_lo[:], flood.dst_lo[:] = 1, 2
    flood.time_ns[:] = 4 * 10**9 + np.arange(2_000) * 250_000
    calm_counts = Counters(4.0, 400, 24_000, accepted_packets=400, protocols={"udp": (400, 24_000)})
    engine.feed(calm, calm_counts, 104.0)
    assert engine.window().seconds == 4.0, "the newest is whole: what it counted is told once"
    engine.feed(flood, Counters(0.5, 2_000, 120_000), 104.5)
    window, tables = engine.window(), engine.tables()
    assert (window.started, window.seconds) == (101.5, 3.0)
    left = len(window.arrived) - 2_000
    assert left == pytest.approx(250, abs=2)
    assert tables.totals.packets == 2_000 + left
    assert [one.share.packets for one in tables.destinations] == [2_000, left]
    assert window.intervals[0].packets == window.intervals[0].samples == left


@pytest.mark.parametrize(("a_second", "since"), [(6_000, 5.0), (900, 3.0)])
def test_the_window_begins_where_other_rules_came_into_force(a_second: int, since: float) -> None:
    """A second that is wholly under the new rules tells more than three that are not, if it has packets."""
    engine = Engine(NoOrigin(), window_seconds=3.0, live=True)
    begun = []
    for half in range(20):
        now = (half + 1) / 2
        engine.feed(packets(a_second // 2), Counters(0.5, a_second // 2, 60), now)
        if now == 5.0:
            engine.rules_changed()
        window = engine.window()
        begun.append(window.started)
        assert len(window.arrived) == window.counters.arrived_packets == a_second * window.seconds
    assert begun[10] == 2.5  # half a second is not enough
    assert begun[11] == since
    assert begun[14] == 5.0
    assert begun[-1] == 7.0


def test_drops_of_xdp_count_as_arrived_and_as_dropped() -> None:
    batch = packets(300)
    batch.src_lo[:] = np.repeat([1, 2, 3], 100)
    batch.hook[:100] = Hook.XDP
    engine = Engine(NoOrigin(), window_seconds=1.0, live=True)
    drops = (DropCount("xdp", "RULE", 100, rule="7"),)
    engine.feed(batch, Counters(1.0, 300, 18_000, 200, 12_000, drops=drops), 1.0)
    tables = engine.tables()
    assert [round(row.dropped_share, 3) for row in tables.sources.address] == [1.0, 0.0, 0.0]
    assert [(row.layer, row.packets, row.rule) for row in tables.ledger] == [
        ("xdp", 100, "7"), ("delivered", 200, None),
    ]  # fmt: skip


def test_the_ledger_always_adds_up() -> None:
    chance = random.Random(5)
    layers = ("xdp", "tc", "netfilter", "ip", "socket")
    for _ in range(300):
        drops = tuple(
            DropCount(layer, "NETFILTER_DROP" if layer == "netfilter" else "R", chance.randrange(100),
                      rule="x" if layer == "xdp" else None, before_delivery=layer != "socket")
            for layer in layers
        )  # fmt: skip
        rules = tuple(RuleCount(str(i), chance.randrange(60), 0) for i in range(2))
        accepted = chance.choice((None, chance.randrange(100, 300)))
        counters = Counters(1.0, chance.randrange(600, 900), 0, accepted, drops=drops, rules=rules)
        book = balance(counters, PacketBatch.empty(), PacketBatch.empty())
        assert sum(row.packets for row in book.rows) == counters.arrived_packets
        netfilter = sum(row.packets for row in book.rows if row.layer == "netfilter")
        assert netfilter == drops[2].packets
        assert all(row.packets > 0 for row in book.rows if row.layer == "netfilter")


def test_what_never_reached_tc_is_in_the_totals_and_the_ledger() -> None:
    drops = (
        DropCount("nic", "RX_MISSED", 500), DropCount("xdp", "XDP_DROP (foreign)", 300, 18_000),
        DropCount("xdp", "XDP_RULE", 100, 6000, "7"), DropCount("netfilter", "NETFILTER_DROP", 40),
    )  # fmt: skip
    engine = Engine(NoOrigin(), window_seconds=1.0, live=True)
    engine.feed(packets(100), Counters(1.0, 200, 12_000, 60, 3600, drops=drops), 1.0)
    tables = engine.tables()
    assert (tables.totals.packets, tables.totals.bytes, tables.totals.pps) == (1000, 30_000, 1000.0)
    assert (tables.totals.dropped, tables.totals.accepted) == (940, 60)
    assert sum(row.packets for row in tables.ledger) == 1000
    assert {row.layer for row in tables.ledger} == {"nic", "xdp", "netfilter", "delivered"}


def test_counters_of_intervals_add_up() -> None:
    one = Counters(0.5, 100, 6000, None, drops=(DropCount("ip", "R", 1),), protocols={"udp": (1, 2)},
                   conntrack=ConntrackSample(5, 10, 600.0, insert_failed=2),
                   records_lost=3, softirq_share=0.2)  # fmt: skip
    two = Counters(0.5, 50, 3000, 40, 2400, drops=(DropCount("ip", "R", 2), DropCount("ip", "Q", 4)),
                   protocols={"udp": (3, 4), "tcp": (5, 6)}, rules=(RuleCount("1", 5, 50),), watched=0.4,
                   conntrack=ConntrackSample(7, 10, insert_failed=1), softirq_share=0.4)  # fmt: skip
    both = add_counters([one, two])
    assert (both.seconds, both.arrived_packets, both.accepted_packets, both.records_lost) == (1.0, 150, 40, 3)
    assert {(drop.reason, drop.packets) for drop in both.drops} == {("R", 3), ("Q", 4)}
    assert both.protocols == {"udp": (4, 6), "tcp": (5, 6)}
    assert both.rules == (RuleCount("1", 5, 50),)
    assert both.conntrack is not None
    assert (both.conntrack.count, both.conntrack.insert_failed) == (7, 3)
    assert both.conntrack.new_per_s == pytest.approx(300)  # not that of the last moment alone
    assert both.softirq_share == pytest.approx(0.3)
    assert both.watched == pytest.approx((100 * 1.0 + 50 * 0.4) / 150)


def test_nothing_fed_gives_empty_tables() -> None:
    for live, seconds in ((True, 3.0), (True, None), (False, None)):
        engine = Engine(NoOrigin(), window_seconds=seconds, live=live)
        assert engine.tables().totals.packets == 0
        assert len(engine.window().arrived) == 0
        engine.feed(PacketBatch.empty(), Counters(0.25, 0, 0, 0, 0) if live else None, 5.0)
        tables = engine.tables()
        assert (tables.totals.packets, tables.sources.address, tables.payloads) == (0, (), ())


def test_since_the_start_equals_one_big_window() -> None:
    chance = random.Random(2)
    frames = [
        ethernet(
            ipv4(tcp(chance.randrange(9), 80, 2, b"payload %d" % chance.randrange(4)), 6, f"10.0.0.{i % 40}"),
            0x0800,
        )
        for i in range(4000)
    ]
    whole, parts = (Engine(NoOrigin(), window_seconds=None, live=False) for _ in range(2))
    batch = batch_of(frames)
    whole.feed(batch, None, 0.0)
    for start in range(0, 4000, 13):
        parts.feed(batch.select(slice(start, start + 13)), None, 0.0)
    assert whole.tables() == parts.tables()


def test_one_digest_of_random_bytes() -> None:
    chance = random.Random(1)
    frames = [chance.randbytes(chance.randrange(120)) for _ in range(2000)]
    udp_frames = [
        ethernet(ipv4(udp(53, 53, chance.randbytes(chance.randrange(200))), 17), 0x0800) for _ in range(2000)
    ]
    for width in (216, 64, 44, 20, 0):
        batch = batch_of(frames + udp_frames, width=width)
        digest = Digest.of(batch, batch.select(slice(0, 0)), 1.0, NoOrigin())
        assert digest.total[SAMPLES] == 4000


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="needs the captures")
def test_captures_are_counted_exactly() -> None:
    for path in sorted(CAPTURES.glob("*.pcap*")):
        batches = list(read_capture(path).batches())
        engine = Engine(NoOrigin(), window_seconds=None, live=False)
        for batch in batches:
            engine.feed(batch, None, 0.0)
        rows = PacketBatch.concat(batches)
        tables = engine.tables()
        assert tables.totals.packets == len(rows)
        assert tables.totals.bytes == int(rows.length.sum())
        best = Counter(rows.src_lo[rows.family == 4].tolist()).most_common(20)
        assert [row.share.packets for row in tables.sources.address[:20]] == [number for _, number in best]
        for row in tables.sources.address[:20]:
            assert row.share.packets == int((rows.src_lo == int(ipaddress.ip_address(row.key))).sum())
        for prefix in tables.sources.prefix:
            assert prefix.prefix is not None
            shift = np.uint64(32 - prefix.prefix.length)
            inside = int((rows.src_lo >> shift == np.uint64(prefix.prefix.lo) >> shift).sum())
            below = sum(
                other.share.packets
                for other in tables.sources.prefix
                if other.prefix and other is not prefix and prefix.prefix.contains(other.prefix)
            )
            assert prefix.share.packets == inside - below


def test_of_a_source_mostly_all_or_nothing_is_dropped() -> None:
    """20 sources of which all is dropped, 200 that lose nothing, 1 in 30 sampled at either hook."""
    chance = np.random.default_rng(3)
    sizes = np.concatenate((np.full(20, 20_000), np.full(200, 60)))

    def sampled(source_sizes: I64, hook: Hook) -> PacketBatch:
        seen = chance.poisson(source_sizes / 30)
        batch = packets(int(seen.sum()))
        batch.src_lo[:] = np.repeat(np.arange(len(source_sizes)) + 1, seen)
        batch.weight[:] = 30.0
        batch.hook[:] = hook
        return batch

    batch = PacketBatch.concat(
        [sampled(sizes, Hook.INGRESS), sampled(np.where(sizes > 1000, sizes, 0), Hook.DROP)]
    )
    drops = (DropCount("netfilter", "NETFILTER_DROP", 400_000, code=7),)
    engine = Engine(NoOrigin(), window_seconds=3.0, live=True, top=300)
    engine.feed(batch, Counters(3.0, 412_000, 412_000 * 60, 12_000, drops=drops, one_in=30.0), 3.0)
    rows = engine.tables().sources.address
    greatest = [row.dropped_share for row in rows if row.prefix is not None and row.prefix.lo <= 20]
    assert len(greatest) == 20
    assert min(greatest) > 0.97, "chance alone would show 85 % of one or another"
    assert {row.dropped_share for row in rows if row.prefix is not None and row.prefix.lo > 20} == {0.0}


def test_a_vector_that_ended_is_gone_when_the_window_has_passed() -> None:
    """A pulse wave: one flood for ten seconds, then another that is sampled a tenth as densely."""
    engine = Engine(NoOrigin(), window_seconds=3.0, live=True)
    shares = {}
    for tick in range(80):
        second = tick >= 40
        batch = packets(100)
        batch.dport[:] = 80 if second else 27_015
        batch.weight[:] = 500 if second else 50
        sent = int(batch.weight.sum())
        engine.feed(batch, Counters(0.25, sent, sent * 60, one_in=float(batch.weight[0])), tick * 0.25)
        ports = {row.port: row.share.share for row in engine.tables().ports if row.side == "dst"}
        shares[tick] = ports.get(27_015, 0.0)
        assert sum(ports.values()) == pytest.approx(1.0)
    assert shares[39] == 1.0
    assert shares[45] == pytest.approx(6 * 5000 / (6 * 5000 + 6 * 50_000), rel=0.01)
    assert shares[50] > 0.0
    assert shares[51] == 0.0


def test_few_samples_of_a_source_say_nothing_and_borrow_nothing() -> None:
    """Half of all traffic is dropped; of two sources only a handful of packets was sampled."""
    chance = np.random.default_rng(4)
    arrived, lost = packets(4_000), packets(2_000)
    arrived.src_lo[:] = chance.integers(1, 4, 4_000)  # 1 and 2 lose everything, 3 nothing
    arrived.src_lo[:6], arrived.src_lo[6:10] = 50, 60
    lost.src_lo[:] = chance.integers(1, 3, 2_000)
    lost.src_lo[:3] = 50
    lost.hook[:] = Hook.DROP
    batch = PacketBatch.concat([arrived, lost])
    batch.weight[:] = 100.0
    drops = (DropCount("netfilter", "NETFILTER_DROP", 266_000, code=7),)
    engine = Engine(NoOrigin(), window_seconds=3.0, live=True, top=300)
    engine.feed(batch, Counters(3.0, 400_000, 24_000_000, 134_000, drops=drops, one_in=100.0), 3.0)
    rows = {row.prefix.lo: row for row in engine.tables().sources.address if row.prefix is not None}
    assert [rows[number].dropped_share for number in (1, 2, 3)] == [1.0, 1.0, 0.0]
    assert rows[1].dropped_low > 0.8
    assert rows[3].dropped_high < 0.05
    for number in (50, 60):  # too few to tell
        assert rows[number].dropped_low < 0.1
        assert rows[number].dropped_high > 0.45
    assert 0.45 < rows[50].dropped_share < 0.9, "its own estimate"


def test_named_sources_are_listed_however_little_they_send() -> None:
    engine = Engine(NoOrigin(), window_seconds=None, live=False, top=3)
    batch = packets(1000)
    batch.src_lo[:] = np.arange(1000) % 90
    batch.src_lo[:100], batch.src_lo[100:105] = 1000, 2000
    batch.family[995:], batch.src_hi[995:], batch.src_lo[995:] = 6, 1 << 61, 7
    engine.feed(batch, None, 0.0)
    named = [Prefix.parse(text) for text in ("0.0.7.208", "0.0.3.232", "2000::7", "192.0.2.1")]
    plain, rows = engine.tables().sources.address, engine.tables(named).sources.address
    assert rows[:3] == plain
    assert [(row.key, row.share.packets) for row in rows[3:]] == [("0.0.7.208", 5), ("2000::7", 5)]
    assert Engine(NoOrigin(), window_seconds=None, live=False).tables(named).sources.address == ()
