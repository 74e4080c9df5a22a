"""Signatures of packets: the combinations of header fields and first bytes that stand out in a window.

Sources of a spoofed flood change with every packet, but its tool fills in some fields the same way each time.
Packets are grouped by protocol, TCP flags and the busier of their ports; in a group the most common length,
TTL, window, other port and beginning of the payload are fixed one after the other, as long as many of the
packets have them, and what is left over is searched again. Fields without a common value stay open.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from fwtop.analysis.context import AnalysisContext
from fwtop.analysis.proposals.matching import match_rows
from fwtop.analysis.proposals.normal import Normal
from fwtop.analysis.window.traffic import ICMP, ICMP6, TCP, Rows, Traffic, payload
from fwtop.model.rule import Match, PayloadMatch, Range
from fwtop.model.traffic.packets import F64, I64, U16, Fragment, Mask, PacketBatch, Window
from fwtop.model.traffic.protocols import WITH_PORTS
from fwtop.model.traffic.snapshot import PacketSignature
from fwtop.stats.engine import arrived_sums
from fwtop.stats.sources import Drops
from fwtop.stats.sums import DROPPED, WEIGHT, Scale

_SAMPLE = 4_096  # packets to search: a share of 2 % to ±0.4 percentage points
_LEAST = 0.02  # of all packets: rarer combinations don't stand out
_FEW = 10  # samples
_COMMON = 0.97  # of a group's packets have the value: it is fixed at once
_MAIN = 0.4  # of a group's packets have the most common value, else the field stays open
_GROUPS = 16
_ROUNDS = 3  # variants in one group
_NEW = 0.5  # of a signature's packets must not be those of more specific ones
_FLAGS = 0x3F  # those that every mechanism can match
_HEAD = 16  # bytes of the payload's beginning
_WORD = 4  # of them distinguish variants; fewer in common are chance
_NO_WORD = -1
_NOT_IP = -1
_SEARCH_SECONDS = 4.5  # between two searches while the same attacks, or none, are found
_RANGES = ("ip_length", "ttl", "tcp_window")  # fields that rules match by ranges
_BARE = 2  # conditions, family and protocol, that say nothing


class SignatureSearch:
    """The combinations that stand out in consecutive windows.

    While the same attacks, or none, are found they change little: what was found is counted in each window,
    but looked for anew only every few seconds, for the search takes a fifth of the time of a judgement.
    """

    def __init__(self) -> None:
        self._found: list[Match] = []
        self._searched = -_SEARCH_SECONDS
        self._attacks: frozenset[str] | None = None

    def in_window(self, context: AnalysisContext) -> list[Match]:
        """Return the combinations that stand out in a window."""
        traffic = context.traffic
        now = traffic.started + traffic.seconds
        attacks = frozenset(finding.key for finding in context.findings)
        is_recent = 0 <= now - self._searched < _SEARCH_SECONDS
        if not traffic.live or attacks != self._attacks or not is_recent:
            self._found, self._searched, self._attacks = stand_outs(traffic), now, attacks
        return self._found


def packet_signatures(
    window: Window, context: AnalysisContext, normal: Normal, search: SignatureSearch | None = None
) -> tuple[PacketSignature, ...]:
    """Return the signatures of a judged window, those that most exceed their normal share first."""
    traffic, counters = context.traffic, window.counters
    listed = list(_listed(traffic, (search or SignatureSearch()).in_window(context)))
    if not listed:
        return ()
    hits = np.array([hit for _, hit in listed], np.float64)
    # For how many records each one stands, without the packets that GRO joined in it; captures have none
    one_in = traffic.one_in
    if traffic.live and len(traffic):
        one_in = counters.one_in * float(traffic.weight[0] / traffic.packets.weight[0])
    each = arrived_sums(replace(traffic.packets, weight=traffic.weight), one_in)
    whole = each.sum(axis=1) + arrived_sums(traffic.outbound, one_in).sum(axis=1)  # as the exact counts do
    sums = each @ hits.T
    sums[DROPPED] = [float(window.dropped.weight @ match_rows(match, window.dropped)) for match, _ in listed]
    scale = Scale(whole, counters.arrived_packets, counters.arrived_bytes, window.seconds)
    drops = Drops.of(float(window.dropped.weight.sum()), counters, window.dropped)
    claimed = (hits @ (traffic.weight * ~context.unclaimed)) / sums[WEIGHT]
    usual = [float(normal.pps @ match_rows(match, normal.packets)) for match, _ in listed]
    columns = (scale.shares(sums), drops.share(sums, 1.0), usual, claimed.tolist(), _attacks(context, hits))
    found = [
        PacketSignature(match, share, lost, before / max(normal.total_pps, 1e-9), part, attack)
        for (match, _), share, lost, before, part, attack in zip(listed, *columns, strict=True)
    ]
    found.sort(key=lambda one: (-round(one.share.share - one.baseline_share, 3), -one.share.share))
    return tuple(found)


def _listed(traffic: Traffic, found: list[Match]) -> Iterator[tuple[Match, Mask]]:
    """Yield signatures with their packets; a general one only if more specific ones leave enough of it."""
    covered = np.zeros(len(traffic), np.bool_)
    for match in sorted(found, key=_conditions, reverse=True):
        hit = match_rows(match, traffic.packets)
        whole = float(traffic.weight @ hit)
        if whole and float(traffic.weight @ (hit & ~covered)) >= _NEW * whole:
            covered |= hit
            yield match, hit


def _conditions(match: Match) -> int:
    return sum(getattr(match, name) not in (None, ()) for name in match.__struct_fields__)


def _attacks(context: AnalysisContext, hits: F64) -> list[str]:
    """Return for each signature the title of the attack that claims most of its packets."""
    vectors = [one for one in context.findings if not one.state]
    if not vectors:
        return [""] * len(hits)
    parts = np.array([hits[:, one.rows] @ context.traffic.weight[one.rows] for one in vectors]).T
    return [vectors[int(row.argmax())].title if row.any() else "" for row in parts]


def stand_outs(traffic: Traffic) -> list[Match]:
    """Return the combinations that stand out, without counting them."""
    rows = np.linspace(0, len(traffic) - 1, min(_SAMPLE, len(traffic))).astype(np.intp)
    sample = _Sample(traffic.packets.select(rows), traffic.weight[rows])
    return [match for base, group in sample.groups() for match in sample.variants(base, group)]


class _Sample:
    """The packets that are searched."""

    def __init__(self, packets: PacketBatch, weight: F64) -> None:
        self.packets = packets
        self.weight = weight
        self.least = _LEAST * float(weight.sum())
        self.later = packets.fragment == Fragment.LATER
        self.head, self.length = payload(packets, np.arange(len(packets)), _HEAD)
        word = self.head[:, :_WORD].astype(np.int64) @ np.array([1 << 24, 1 << 16, 1 << 8, 1])
        self.word = np.where((self.length >= _WORD) & ~self.later, word, _NO_WORD)
        ported = np.isin(packets.protocol, list(WITH_PORTS)) & ~self.later
        # Each packet's port where many packets share it, else -1, and the weight of all that do
        (self.sport, self.sport_weight), (self.dport, self.dport_weight) = (
            self._busy(port, ported) for port in (packets.sport, packets.dport)
        )

    def groups(self) -> Iterator[tuple[Match, Rows]]:
        """Yield the groups by protocol, flags, ICMP type and busier port, heaviest first."""
        packets = self.packets
        segment = (packets.protocol == TCP) & ~self.later
        segment &= (packets.tcp_header > 0) | (packets.tcp_flags > 0)
        flags = np.where(segment, (packets.tcp_flags & _FLAGS).astype(np.int64), -1)
        message = np.isin(packets.protocol, (ICMP, ICMP6)) & ~self.later
        kind = np.where(message, packets.icmp_type.astype(np.int64), -1)
        by_source = self.sport_weight > self.dport_weight
        sport, dport = np.where(by_source, self.sport, -1), np.where(by_source, -1, self.dport)
        key = packets.family.astype(np.int64) << 8 | packets.protocol
        key = key << 1 | (packets.fragment != Fragment.NONE)
        for column, bits in ((flags, 7), (kind, 9), (sport, 17), (dport, 17)):
            key = key << bits | (column + 1)
        key = np.where(packets.family != 0, key, _NOT_IP)
        _, inverse, counts = np.unique(key, return_inverse=True, return_counts=True)
        sums = np.bincount(inverse, self.weight, len(counts))
        for one in np.argsort(-sums, kind="stable")[:_GROUPS].tolist():
            group = np.flatnonzero(inverse == one)
            first = int(group[0])
            if key[first] == _NOT_IP or not self._enough(group):
                continue
            match = Match(
                family=int(packets.family[first]),
                protocol=int(packets.protocol[first]),
                sport=_known(sport[first]),
                dport=_known(dport[first]),
                tcp_flags=(_FLAGS, int(flags[first])) if flags[first] >= 0 else None,
                icmp_type=_known(kind[first]),
                fragment=True if packets.fragment[first] != Fragment.NONE else None,
            )
            yield match, group

    def _busy(self, port: U16, ported: Mask) -> tuple[I64, F64]:
        rows = np.flatnonzero(ported)
        found, weight = np.full(len(port), -1, np.int64), np.zeros(len(port))
        key = self.packets.protocol[rows].astype(np.int64) << 16 | port[rows]
        _, inverse, counts = np.unique(key, return_inverse=True, return_counts=True)
        sums = np.bincount(inverse, self.weight[rows], len(counts))
        busy = ((sums >= self.least) & (counts >= _FEW))[inverse]
        found[rows[busy]] = port[rows[busy]]
        weight[rows[busy]] = sums[inverse[busy]]
        return found, weight

    def _enough(self, rows: Rows) -> bool:
        return len(rows) >= _FEW and float(self.weight[rows].sum()) >= self.least

    def variants(self, base: Match, group: Rows) -> Iterator[Match]:
        """Yield what stands out in a group."""
        fields_of = [self._numbered[name] for name in ("ip_length", "ttl", "word")]
        if base.tcp_flags is not None and bool((self.packets.tcp_header[group] > 0).all()):
            fields_of.append(self._numbered["tcp_window"])
        if base.sport is not None or base.dport is not None:
            fields_of.append(self._numbered["dport" if base.dport is None else "sport"])
        for _ in range(_ROUNDS):
            if not self._enough(group):
                return
            fixed, inside = self._fixed(fields_of, group)
            match = self._matching(base, fixed, inside)
            if _conditions(match) > _BARE:
                yield match
            if len(inside) == len(group):
                return
            left = np.zeros(len(self.packets), np.bool_)
            left[group], left[inside] = True, False
            group = np.flatnonzero(left)

    @cached_property
    def _numbered(self) -> dict[str, _Numbered]:
        """Columns with their values numbered: counting small numbers is faster than sorting."""
        columns: dict[str, NDArray[np.generic]] = {
            "ip_length": self.packets.ip_length,
            "ttl": self.packets.ttl,
            "word": self.word,
            "tcp_window": self.packets.tcp_window,
            "sport": self.sport,
            "dport": self.dport,
        }
        return {
            name: _Numbered(name, numbers.astype(np.intp), values)
            for name, column in columns.items()
            for values, numbers in [np.unique(column, return_inverse=True)]
        }

    def _fixed(self, open_fields: list[_Numbered], group: Rows) -> tuple[dict[str, int], Rows]:
        """Fix common values one after the other; return them and the packets that have them all."""
        fixed: dict[str, int] = {}
        left = open_fields
        while left:
            tops = [(*field.top(group, self.weight), field) for field in left]
            best = max(tops, key=lambda top: top[0])
            taken = [top for top in tops if top[0] >= _COMMON] or [best]
            if best[0] < _MAIN:
                break
            inside = group
            for _, number, field in taken:
                inside = inside[field.numbers[inside] == number]
            if not self._enough(inside):
                break
            fixed |= {field.name: int(field.values[number]) for _, number, field in taken}
            left = [field for field in left if field.name not in fixed]
            group = inside
        return fixed, group

    def _matching(self, base: Match, fixed: dict[str, int], inside: Rows) -> Match:
        found = replace(
            base,
            sport=_known(fixed.get("sport", -1)) if base.sport is None else base.sport,
            dport=_known(fixed.get("dport", -1)) if base.dport is None else base.dport,
            **{name: Range(fixed[name], fixed[name]) for name in _RANGES if name in fixed},
        )
        if fixed.get("word", _NO_WORD) == _NO_WORD:
            return found
        head = self.head[inside]
        same = (head == head[0]).mean(axis=0) >= _COMMON
        size = int(np.argmin(same)) if not same.all() else _HEAD
        size = max(min(size, int(self.length[inside].min())), _WORD)
        return replace(found, payload=(PayloadMatch(head[0, :size].tobytes(), 0),))


class _Numbered(Struct, frozen=True):
    """A column as numbers from 0, and the values that they stand for."""

    name: str
    numbers: Rows
    values: NDArray[np.generic]

    def top(self, rows: Rows, weight: F64) -> tuple[float, int]:
        """Return the share of the most common value among the rows, and its number."""
        sums = np.bincount(self.numbers[rows], weight[rows])
        best = int(sums.argmax())
        return float(sums[best] / sums.sum()), best


def _known(value: np.int64 | int) -> int | None:
    return int(value) if value >= 0 else None
