"""Each attack knows what became of its own packets; the shares agree with the exact counters."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from fwtop.incidents.advisor import Advisor
from fwtop.model.traffic.counters import ConntrackSample, Counters, DropCount, RuleCount
from fwtop.model.traffic.packets import Fragment, Hook, PacketBatch, Window
from fwtop.model.traffic.snapshot import Incident, Sampling, Tables, Totals

SECONDS, WEIGHT = 3.0, 60.0
NETFILTER, NO_SOCKET = 7, 3


def packets(count: int, seed: int = 1, **columns: int) -> PacketBatch:
    """Return packets of forged sources from random ports."""
    chance = np.random.default_rng(seed)
    batch = PacketBatch.zeros(count, 64)
    batch.time_ns[:] = np.sort(chance.integers(0, int(SECONDS * 1e9), count))
    batch.weight[:] = WEIGHT
    batch.family[:] = 4
    batch.ethertype[:] = 0x800
    batch.hook[:] = Hook.INGRESS
    batch.ttl[:] = 55
    batch.src_lo[:] = chance.integers(1 << 24, 200 << 24, count)
    batch.dst_lo[:] = 0xC6120002
    batch.sport[:] = chance.integers(1024, 65_535, count)
    for name, value in columns.items():
        getattr(batch, name)[:] = value
    batch.length[:] = batch.ip_length + 14
    return batch


def syns(count: int, seed: int = 1, **columns: int) -> PacketBatch:
    fields = {"protocol": 6, "dport": 80, "tcp_flags": 2, "ip_length": 40, "tcp_header": 20}
    return packets(count, seed, **{**fields, **columns})


def datagrams(count: int, seed: int = 2, **columns: int) -> PacketBatch:
    return packets(count, seed, **{"protocol": 17, "dport": 27015, "ip_length": 100, **columns})


def clients(connections: int) -> PacketBatch:
    """Return connections of four packets each: a SYN with options, and what follows it."""
    batch = syns(4 * connections, 3, ip_length=60, tcp_header=40, tcp_window=64_240)
    for name in ("src_lo", "sport"):
        getattr(batch, name)[:] = np.repeat(getattr(batch, name)[:connections], 4)
    number = np.arange(4 * connections) % 4
    batch.tcp_flags[:] = np.array([2, 16, 24, 17])[number]
    batch.ip_length[:] = np.array([60, 52, 300, 52])[number]
    batch.tcp_header[:] = np.array([40, 32, 32, 32])[number]
    batch.tcp_seq[:] = np.array([1, 2, 2, 250])[number]
    batch.weight[:] = 1.0
    return batch


def at(hook: Hook, batch: PacketBatch, **columns: int) -> PacketBatch:
    batch = replace(batch, hook=np.full(len(batch), hook, np.uint8))
    for name, value in columns.items():
        getattr(batch, name)[:] = value
    return batch


def judged(
    arrived: PacketBatch,
    dropped: PacketBatch,
    accepted: PacketBatch,
    *drops: DropCount,
    advisor: Advisor | None = None,
    **changes: object,
) -> dict[str, Incident]:
    whole = round(float(arrived.weight.sum()))
    counters = Counters(SECONDS, whole, whole * 60, round(float(accepted.weight.sum())), drops=drops)
    counters = replace(counters, **changes)  # type: ignore[arg-type]
    window = Window(1e9, SECONDS, arrived, dropped, accepted, counters)
    totals = Totals(whole, whole * 60, whole / SECONDS, 0.0, 0, 0)
    found = (advisor or Advisor()).judge(window, Tables(totals, Sampling(WEIGHT, len(arrived), 0)))
    return {attack.kind: attack for attack in found.attacks}


def count(samples: int) -> int:
    return round(samples * WEIGHT)


def test_each_attack_has_the_drops_of_its_own_packets() -> None:
    """My rule drops the SYNs, another firewall half of the datagrams, sockets the rest of them."""
    arrived = PacketBatch.concat([syns(4_000), datagrams(2_000)])
    dropped = PacketBatch.concat(
        [
            at(Hook.DROP, syns(3_900, 5), reason=NETFILTER, rule=9),
            at(Hook.DROP, datagrams(1_000, 6), reason=NETFILTER),
            at(Hook.DROP, datagrams(1_000, 7), reason=NO_SOCKET),
        ]
    )
    accepted = at(Hook.ACCEPTED, PacketBatch.concat([syns(100, 8), datagrams(1_000, 9)]))
    drops = (
        DropCount("netfilter", "NETFILTER_DROP", count(4_900), code=NETFILTER),
        DropCount("socket", "NO_SOCKET", count(1_000), code=NO_SOCKET, before_delivery=False),
    )
    found = judged(arrived, dropped, accepted, *drops)
    syn, udp = found["syn_flood"], found["udp_flood"]
    assert (syn.mine_share, syn.other_share, syn.kernel_share) == pytest.approx((0.975, 0, 0), abs=0.01)
    assert (udp.mine_share, udp.other_share, udp.kernel_share) == pytest.approx((0, 0.5, 0.5), abs=0.01)
    assert (syn.target, udp.target) == ("tcp/80", "udp/27015")
    assert syn.bps == pytest.approx(syn.pps * 54 * 8)
    assert syn.sources == "spoofed"
    assert syn.match is not None
    assert syn.match.dport == 80


def test_what_is_all_dropped_behind_the_input_hook_reaches_nothing() -> None:
    """Chance has the samples of both ends differ: that is no part of an attack that reaches a service."""
    arrived = PacketBatch.concat([syns(2_000), datagrams(2_000), clients(10)])
    accepted = PacketBatch.concat([syns(2_060, 8), datagrams(1_940, 9), clients(10)])
    dropped = PacketBatch.concat([syns(1_950, 5), datagrams(2_050, 6)])
    drop = DropCount("socket", "NO_SOCKET", count(4_000), code=NO_SOCKET, before_delivery=False)
    found = judged(arrived, at(Hook.DROP, dropped, reason=NO_SOCKET), at(Hook.ACCEPTED, accepted), drop)
    shares = [found[kind].kernel_share for kind in ("syn_flood", "udp_flood")]
    assert shares == pytest.approx([1.0, 1.0], abs=0.005)


def test_samples_of_xdp_are_known_and_whatever_passed_it_is_told_by_its_length() -> None:
    """Clients' SYNs have options: they are accepted, and don't make the flood look as if it passed."""
    dropped = at(Hook.XDP, syns(3_000), rule=4)
    accepted = at(Hook.ACCEPTED, clients(200))
    rule = DropCount("xdp", "XDP_RULE", count(3_000), rule="4")
    arrived = PacketBatch.concat([dropped, clients(200)])
    syn = judged(arrived, PacketBatch.empty(), accepted, rule)["syn_flood"]
    assert syn.mine_share > 0.98


def test_sums_over_the_attacks_never_exceed_the_counters() -> None:
    arrived = PacketBatch.concat([syns(3_000), datagrams(3_000)])
    dropped = PacketBatch.concat(
        [at(Hook.DROP, batch, reason=NETFILTER, rule=2) for batch in (syns(2_000, 5), datagrams(1_500, 6))]
    )
    accepted = at(Hook.ACCEPTED, PacketBatch.concat([syns(1_000, 7), datagrams(1_500, 8)]))
    drops = DropCount("netfilter", "NETFILTER_DROP", count(3_500), code=NETFILTER)
    found = judged(arrived, dropped, accepted, drops)
    mine = sum(attack.mine_share * attack.pps for attack in found.values())
    assert mine <= count(3_500) / SECONDS * 1.001
    assert mine == pytest.approx(count(3_500) / SECONDS, rel=0.02)


def test_drops_without_samples_are_those_that_ended_nowhere_else() -> None:
    """A full table drops SYNs with netfilter's reason; which packets, nobody sampled."""
    arrived = PacketBatch.concat([syns(3_000), datagrams(1_000)])
    accepted = at(Hook.ACCEPTED, PacketBatch.concat([syns(1_000, 5), datagrams(1_000, 6)]))
    table = ConntrackSample(262_144, 262_144, new_per_s=40_000.0, drop=count(2_000))
    found = judged(
        arrived,
        PacketBatch.empty(),
        accepted,
        DropCount("conntrack", "TABLE_FULL", count(2_000)),
        conntrack=table,
    )
    assert found["syn_flood"].kernel_share == pytest.approx(2 / 3, abs=0.01)
    assert found["udp_flood"].kernel_share < 0.01
    full = found["conntrack_exhaustion"]
    assert full.cause == found["syn_flood"].id
    assert (full.mine_share, full.target, full.match) == (0.0, "", None)


def test_later_fragments_share_the_fate_of_their_datagrams() -> None:
    """Datagrams are dropped when put together: the samples have the port, which later fragments lack."""
    later = packets(2_000, 4, protocol=17, ip_length=1_500, fragment=Fragment.LATER, sport=0)
    arrived = PacketBatch.concat([datagrams(2_000), later])
    dropped = at(Hook.DROP, datagrams(2_000, 5), reason=NETFILTER, rule=3)
    dropped.weight[:] *= 2
    drops = DropCount("netfilter", "NETFILTER_DROP", count(4_000), code=NETFILTER)
    accepted = at(Hook.ACCEPTED, clients(10))
    found = judged(PacketBatch.concat([arrived, clients(10)]), dropped, accepted, drops)
    assert {kind: attack.mine_share > 0.95 for kind, attack in found.items()} == dict.fromkeys(found, True)
    assert len(found) >= 1


def test_what_a_syn_proxy_answers_is_its_rules() -> None:
    answered = RuleCount("6", count(2_900), 0, answers=True, early=False)
    accepted = at(Hook.ACCEPTED, clients(200))
    arrived = PacketBatch.concat([syns(3_000), clients(200)])
    syn = judged(arrived, PacketBatch.empty(), accepted, rules=(answered,))["syn_flood"]
    assert syn.mine_share > 0.97


def test_an_attack_keeps_its_identity_while_part_of_it_goes_elsewhere() -> None:
    advisor = Advisor()

    def number(*batches: PacketBatch) -> int:
        arrived = PacketBatch.concat(list(batches))
        found = judged(arrived, PacketBatch.empty(), at(Hook.ACCEPTED, arrived), advisor=advisor)
        return found["syn_flood"].id

    first = number(syns(3_000))
    assert number(syns(1_500), syns(1_600, 5, dport=443)) == first


def test_a_capture_doesnt_tell() -> None:
    arrived = syns(3_000)
    window = Window(
        1e9,
        SECONDS,
        arrived,
        PacketBatch.empty(),
        PacketBatch.empty(),
        Counters(SECONDS, 3_000, 1),
        live=False,
    )
    tables = Tables(Totals(3_000, 1, 1_000.0, 0.0, 0, 0), Sampling(1.0, 3_000, 0))
    (attack, *_) = Advisor().judge(window, tables).attacks
    assert (attack.mine_share, attack.other_share, attack.kernel_share) == (0.0, 0.0, 0.0)
