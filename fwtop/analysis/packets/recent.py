"""The newest packets as immutable values, and what became of each.

The hooks sample independently, so most packets were sampled on arrival only. Known for certain is what an
XDP rule dropped, and packets that another hook sampled too. What else the active rules and like packets
tell is inferred, and marked so; the rest is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from fwtop.analysis.proposals.matching import allowed_rows, match_rows
from fwtop.analysis.standing import like_keys
from fwtop.analysis.window.traffic import Rows, mix
from fwtop.model.addresses.roles import AllowedPeer
from fwtop.model.rule import ACTIVE_STATES, Rule, RuleStatus
from fwtop.model.traffic.counters import FIREWALLS
from fwtop.model.traffic.packets import I64, U8, U64, Hook, Mask, PacketBatch
from fwtop.rules.kinds import of

MOST_PACKETS = 2_000
Texts = NDArray[np.str_]
_BEFORE_NS = 1_000_000  # clocks of two CPUs may differ a little
_AFTER_NS = 50_000_000  # from arrival to the last hook, also on a loaded machine
_TIME_BITS = 40  # 18 minutes in nanoseconds; leaves 23 bits for 8 million packets
_ALIKE = 5  # packets of one known fate that tell what became of like ones,
_AGREED = 0.95  # if that is nearly all whose fate is known: a firewall may drop one in a thousand as invalid
_LONG_LIST = 10_000  # sources: searching longer lists would take too long for a glance


class Fate(Enum):
    """What became of a packet."""

    UNKNOWN = "unknown"
    REACHES = "reaches"  # accepted at the end of the input or forward hook
    MINE = "mine"  # dropped by an fwtop rule
    OTHER = "other"  # dropped by another firewall
    KERNEL = "kernel"  # dropped by the kernel for a reason of its own


class Verdict(Struct, frozen=True):
    """A fate with its words: "rule 118", "accepted", "TCP_OLD_DATA"; `inferred`: no sample shows it."""

    fate: Fate
    text: str = ""
    inferred: bool = False


UNKNOWN = Verdict(Fate.UNKNOWN)


class DropReason(Struct, frozen=True):
    """The layer and name of a drop reason; sanitised."""

    layer: str
    name: str


class RecentPackets(Struct, frozen=True, eq=False):
    """What the ring holds at one moment. `numbers` identify packets for the whole observation."""

    arrived: PacketBatch = field(default_factory=PacketBatch.empty)  # oldest first
    numbers: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    dropped: PacketBatch = field(default_factory=PacketBatch.empty)  # samples of the drop hook
    accepted: PacketBatch = field(default_factory=PacketBatch.empty)
    clock_ns: int = 0  # Unix time less packet time
    reasons: Mapping[int, DropReason] = field(default_factory=dict)
    seen: int = 0  # samples since the start of the observation


class PacketList(Struct, frozen=True, eq=False):
    """Packets to list. `verdicts` has an index into `kinds` per packet; in a capture there are none."""

    packets: PacketBatch
    numbers: I64
    clock_ns: int
    who: Texts
    verdicts: U8
    kinds: tuple[Verdict, ...] = (UNKNOWN,)
    judged: bool = True  # False: a capture doesn't tell what became of its packets
    seen: int = 0

    def __len__(self) -> int:
        """Return the number of packets."""
        return len(self.packets)

    @property
    def verdict_texts(self) -> Texts:
        """The words of each packet's verdict."""
        return np.array([kind.text for kind in self.kinds])[self.verdicts]

    def verdict(self, row: int) -> Verdict:
        """Return what became of a packet."""
        return self.kinds[int(self.verdicts[row])]

    def select(self, rows: Mask | NDArray[np.intp]) -> PacketList:
        """Return the packets of these rows."""
        return replace(
            self,
            packets=self.packets.select(rows),
            numbers=self.numbers[rows],
            who=self.who[rows],
            verdicts=self.verdicts[rows],
        )


def captured_packets(packets: PacketBatch) -> PacketList:
    """List the first packets of a capture, or of a window of it."""
    order = np.argsort(packets.time_ns, kind="stable")[:MOST_PACKETS]
    found = packets.select(order)
    n = len(found)
    numbers, who, verdicts = np.arange(n, dtype=np.int64), np.zeros(n, "<U1"), np.zeros(n, np.uint8)
    return PacketList(found, numbers, 0, who, verdicts, judged=False, seen=len(packets))


def kinds_of(verdicts: Sequence[Verdict]) -> tuple[U8, tuple[Verdict, ...]]:
    """Number the distinct verdicts; past 255 of them the rest are unknown."""
    index: dict[Verdict, int] = {UNKNOWN: 0}
    places = [index.setdefault(verdict, len(index)) for verdict in verdicts]
    known = tuple(index)[:256]
    return np.array([place if place < 256 else 0 for place in places], np.uint8), known


ACCEPTED = Verdict(Fate.REACHES, "accepted")


def verdicts(
    recent: RecentPackets, rules: Iterable[RuleStatus], peers: Sequence[AllowedPeer]
) -> tuple[U8, tuple[Verdict, ...]]:
    """Return for each arrived packet its verdict's index, and the verdicts."""
    packets = recent.arrived
    found: list[Verdict] = [UNKNOWN] * len(packets)
    active = [
        status.rule for status in rules if status.state in ACTIVE_STATES and not status.rule.counts_only
    ]
    matched = _matched(recent, active, peers)
    for row in np.flatnonzero(joined(packets, recent.accepted) >= 0).tolist():
        found[row] = ACCEPTED
    _note_dropped(found, recent, frozenset(rule.id for rule in active if rule.limit is not None))
    for row in np.flatnonzero(packets.hook == Hook.XDP).tolist():
        found[row] = Verdict(Fate.MINE, f"rule {int(packets.rule[row])}")
    for rule, rows in matched:
        for row in np.flatnonzero(rows & (packets.hook == Hook.INGRESS)).tolist():
            if found[row] is UNKNOWN:
                found[row] = Verdict(Fate.MINE, f"rule {rule.id}", inferred=True)
    _infer_from_like(found, packets)
    return kinds_of(found)


def _note_dropped(found: list[Verdict], recent: RecentPackets, limits: frozenset[str]) -> None:
    """Take over rules and reasons of drop samples; which packets exceed a rate is known as a share only."""
    outcome = joined(recent.arrived, recent.dropped)
    for row in np.flatnonzero(outcome >= 0).tolist():
        number, code = (int(column[outcome[row]]) for column in (recent.dropped.rule, recent.dropped.reason))
        if number:
            found[row] = Verdict(Fate.MINE, f"rule {number}", inferred=str(number) in limits)
            continue
        reason = recent.reasons.get(code, DropReason("", f"reason {code}"))
        found[row] = Verdict(Fate.OTHER if reason.layer in FIREWALLS else Fate.KERNEL, reason.name)


def _matched(
    recent: RecentPackets, active: Sequence[Rule], peers: Sequence[AllowedPeer]
) -> list[tuple[Rule, Mask]]:
    """Return the packets that each rule matches; those before its installation and allowed ones pass."""
    packets = recent.arrived
    dropping = [  # all that they match, after arrival
        rule
        for rule in active
        if rule.limit is None and len(rule.match.sources) <= _LONG_LIST
        if of(rule.kind).is_filter and not of(rule.kind).is_compiled
    ]
    if not dropping or not len(packets):
        return []
    passes = allowed_rows(peers, packets)
    unix = packets.time_ns + recent.clock_ns
    since = [(rule, match_rows(rule.match, packets) & (unix >= int(rule.created * 1e9))) for rule in dropping]
    return [(rule, np.asarray(rows & ~passes)) for rule, rows in since]


def _infer_from_like(found: list[Verdict], packets: PacketBatch) -> None:
    """Take over the fate that nearly all like packets had whose fate is known."""
    keys = like_keys(packets).tolist()
    fates: dict[int, list[Verdict]] = {}
    for key, verdict in zip(keys, found, strict=True):
        if verdict is not UNKNOWN:
            fates.setdefault(key, []).append(verdict)
    agreed: dict[int, Verdict] = {}
    for key, known in fates.items():
        (most, count), *_ = Counter((verdict.fate, verdict.text) for verdict in known).most_common(1)
        if count >= max(_ALIKE, _AGREED * len(known)):
            agreed[key] = Verdict(*most, inferred=True)
    for row, key in enumerate(keys):
        if found[row] is UNKNOWN and key in agreed:
            found[row] = agreed[key]


def joined(arrived: PacketBatch, outcomes: PacketBatch) -> I64:
    """Return for each arrived packet the row of its sample at another hook, -1 without one.

    The same packet has the same addresses, ports, identification and sequence number, within 50 ms.
    """
    n = len(arrived)
    if not n or not len(outcomes):
        return np.full(n, -1, np.int64)
    keys = np.concatenate((_packet_keys(arrived), _packet_keys(outcomes)))
    _, number = np.unique(keys, return_inverse=True)
    first = min(int(arrived.time_ns.min()), int(outcomes.time_ns.min()))
    limit = (1 << _TIME_BITS) - 1
    order = np.lexsort((outcomes.time_ns, number[n:]))
    place = _places(number[n:][order], outcomes.time_ns[order], first, limit)
    wanted = _places(number[:n], arrived.time_ns - _BEFORE_NS, first, limit)
    at = np.minimum(np.searchsorted(place, wanted), len(order) - 1)
    candidate: Rows = order[at]
    late = outcomes.time_ns[candidate] - arrived.time_ns
    same = (number[n:][candidate] == number[:n]) & (late >= -_BEFORE_NS) & (late <= _AFTER_NS)
    return np.where(same, candidate, -1).astype(np.int64)


def _places(number: Rows, time_ns: I64, first: int, limit: int) -> I64:
    """Order by number, then by time."""
    ticks = np.clip(time_ns - first, 0, limit)
    return np.asarray(number.astype(np.int64) << _TIME_BITS | ticks)


def _packet_keys(packets: PacketBatch) -> U64:
    ports = packets.sport.astype(np.uint64) << np.uint64(32) | packets.dport.astype(np.uint64)
    ports |= packets.protocol.astype(np.uint64) << np.uint64(48)
    numbers = packets.ip_id.astype(np.uint64) << np.uint64(32) | packets.tcp_seq.astype(np.uint64)
    source, target = mix(packets.src_hi, packets.src_lo), mix(packets.dst_hi, packets.dst_lo)
    return mix(mix(source, ports), mix(target, numbers))
