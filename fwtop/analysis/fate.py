"""What became of each attack's packets: dropped by fwtop's rules, other firewalls or the kernel, or accepted.

The counters tell exactly how many packets ended where, but not whose they were. The samples of each end are
assigned to the attacks by what they look like: a packet takes the attack of arrived packets with the same
source and header fields, or, where no such packet was sampled, with fewer fields in common. Samples of XDP
are arrivals themselves, so that their attack is known.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from fwtop.analysis.context import AnalysisContext
from fwtop.analysis.window.traffic import Traffic, mix, subsample
from fwtop.model.traffic.counters import DropCount, lacks_room
from fwtop.model.traffic.packets import F64, U64, Hook, PacketBatch, Window
from fwtop.model.traffic.session import end_of
from fwtop.stats.ledger import attributed, is_before_arrival, number_of

_KNOWN_ROWS = 8_192  # arrived packets to compare with
_ASKED_ROWS = 4_096  # samples of one end: shares to ±1.6 percentage points
_TOO_MUCH = 1.1  # times what arrived of an attack ended somewhere: more than sampling errs by
_ACCOUNTED = 0.5  # of an attack's packets: where less is known to have ended somewhere, the rest may pass
_ENDS = ("mine", "other", "kernel", "crowded", "reaches")
_ACCEPTED = _ENDS.index("reaches")

# From the most to the least that a packet has in common with one that arrived; () is any packet
_LEVELS: tuple[tuple[str, ...], ...] = (
    ("src", "protocol", "dport", "tcp_flags", "ip_length"),
    ("protocol", "dport", "tcp_flags", "ip_length", "tcp_window", "tcp_header", "ttl"),
    ("protocol", "dport", "tcp_flags", "ip_length", "tcp_window", "tcp_header"),
    ("src", "protocol", "sport"),
    ("protocol", "sport", "ip_length"),
    ("protocol", "dport", "tcp_flags"),
    ("protocol", "sport"),
    ("protocol", "tcp_flags"),
    ("protocol",),
    (),
)


class Fate(Struct, frozen=True):
    """Shares of one attack's packets, 0 to 1; what remains reaches services."""

    mine: float = 0.0
    other: float = 0.0
    kernel: float = 0.0  # there is nobody to deliver them to
    crowded: float = 0.0  # by the kernel, too, for lack of room: its queues, tables and memory are full
    reaching_pps: float = 0.0
    pps: float = 0.0  # all that ended somewhere, by exact counters; 0: not known better than by samples


def fates(context: AnalysisContext, window: Window) -> list[Fate]:
    """Return the fate of each finding, in order; of nothing where it isn't known, as in a capture."""
    findings, counters, traffic = context.findings, window.counters, context.traffic
    known = window.live and (counters.drops or counters.accepted_packets is not None)
    if not known or not findings or not len(traffic):
        return [Fate()] * len(findings)
    owner = np.full(len(traffic), len(findings), np.intp)
    for number, finding in enumerate(findings):
        owner[finding.rows] = number
    whole = np.asarray(np.bincount(owner, traffic.weight, len(findings) + 1), np.float64)
    ends = _ends(window, _Likeness(traffic, owner, len(findings) + 1), whole)
    return [
        _fate(ends[:, number], float(whole[number]), max(counters.seconds, 1e-6)) if len(one.rows) else Fate()
        for number, one in enumerate(findings)
    ]


def _fate(packets: F64, arrived: float, seconds: float) -> Fate:
    if (total := float(packets.sum())) <= 0:
        return Fate()
    total = max(total, arrived) if total < _ACCOUNTED * arrived else total
    mine, other, kernel, crowded, accepted = (packets / total).tolist()
    is_better = total / _TOO_MUCH <= arrived <= total * _TOO_MUCH
    return Fate(
        mine, other, kernel, crowded, accepted * total / seconds, total / seconds if is_better else 0.0
    )


def _ends(window: Window, likeness: _Likeness, whole: F64) -> F64:
    """Return packets by end and owner, shape (5, owners); the last owner is all other traffic."""
    counters = window.counters
    ends, before = np.zeros((len(_ENDS), len(whole))), np.zeros((len(_ENDS), len(whole)))
    taken, variance = np.zeros(len(whole)), np.full(len(whole), 1e-9)
    if counters.accepted_packets is not None:
        passed = likeness.shares(window.accepted)
        taken = counters.accepted_packets * passed
        variance += counters.accepted_packets**2 * passed * (1 - passed)
    unsampled: list[tuple[int, int]] = []  # end, packets
    for drop in attributed(counters, window.dropped):
        shares, end = likeness.shares_of(drop, window.dropped), _ENDS.index(_end(drop))
        if is_before_arrival(drop):
            before[end] += drop.packets * (whole / whole.sum() if shares is None else shares)
        elif shares is None:
            unsampled.append((end, drop.packets))
        else:
            ends[end] += drop.packets * shares
            if not drop.before_delivery:  # it was counted as accepted
                taken = taken - drop.packets * shares
                variance += drop.packets**2 * shares * (1 - shares)
    ends[_ACCEPTED] = _none_below_zero(taken, variance)
    left = np.maximum(whole - ends.sum(axis=0), 0.0)
    for end, packets in unsampled:
        ends[end] += np.minimum(packets * left / max(float(left.sum()), 1.0), left)
    if counters.accepted_packets is None:
        ends[_ACCEPTED] = np.maximum(whole - ends.sum(axis=0), 0.0)
    return _evened(ends, whole) + before


def _none_below_zero(estimates: F64, variance: F64) -> F64:
    """Return the estimates nearest to these that have their sum, none below zero; the surer one moves less.

    What is left of two sampled counts is noise where all is dropped. Cut off at zero, it would add up to more
    than what was accepted: an attack on a closed port would reach a service in part.
    """
    found, free, whole = estimates.copy(), np.ones(len(estimates), np.bool_), max(float(estimates.sum()), 0.0)
    while free.any():
        found[free] -= (float(found[free].sum()) - whole) * variance[free] / float(variance[free].sum())
        below = free & (found < 0)
        if not below.any():
            break
        found[below] = 0.0
        free &= ~below
    return found


def _end(drop: DropCount) -> str:
    end = end_of(drop)
    return "crowded" if end == "kernel" and lacks_room(drop.layer, drop.reason) else end


def _evened(ends: F64, whole: F64) -> F64:
    """Move what some owners have too much of to those for whom hardly anything is accounted.

    A datagram is dropped or accepted as a whole, and so counts for the owner of its first fragment. Its later
    ones may belong to another, such as a fragment flood.
    """
    sums = ends.sum(axis=0)
    excess = np.where(sums > _TOO_MUCH * whole, sums - whole, 0.0)
    lack = np.where(sums < _ACCOUNTED * whole, whole - sums, 0.0)
    if not excess.any() or not lack.any():
        return ends
    moved = ends * (excess / np.maximum(sums, 1e-9))
    pool = moved.sum(axis=1)
    part = min(1.0, float(lack.sum() / pool.sum()))
    shares = lack / lack.sum()
    return np.asarray(ends - part * moved + part * np.outer(pool, shares), np.float64)


class _Likeness:
    """Assigns samples to the owners of the arrived packets that they resemble."""

    def __init__(self, traffic: Traffic, owner: np.ndarray, owners: int) -> None:
        self._traffic = traffic
        self._owner = owner
        self._owners = owners
        # What XDP dropped can't turn up behind it
        passed = np.flatnonzero(traffic.packets.hook != Hook.XDP)
        rows = passed if len(passed) else np.arange(len(traffic))
        rows = rows[:: max(1, -(-len(rows) // _KNOWN_ROWS))]
        self._known = traffic.packets.select(rows)
        self._weights = np.zeros((len(rows), owners))
        self._weights[np.arange(len(rows)), owner[rows]] = traffic.weight[rows]
        self._cells: dict[tuple[str, ...], tuple[U64, F64]] = {}

    def shares_of(self, drop: DropCount, dropped: PacketBatch) -> F64 | None:
        """Return the shares of the owners in the drops of one row; None without samples of it."""
        if drop.layer == "xdp" and drop.rule is not None:
            packets = self._traffic.packets
            mine = (packets.hook == Hook.XDP) & (packets.rule == number_of(drop.rule))
            sums = np.bincount(self._owner[mine], self._traffic.weight[mine], self._owners)
            return sums / sums.sum() if sums.sum() > 0 else None
        if drop.code is None:
            return None
        rows = np.flatnonzero(dropped.reason == drop.code)
        named = rows[dropped.rule[rows] == number_of(drop.rule)]
        rows = named if len(named) else rows  # counters know of a rule that no sample names
        return self.shares(dropped.select(rows)) if len(rows) else None

    def shares(self, samples: PacketBatch) -> F64:
        """Return the share of each owner in the samples' weight."""
        if not len(samples):
            return np.zeros(self._owners)
        samples, _ = subsample(samples, _ASKED_ROWS)
        sums = np.zeros(self._owners)
        open_rows = np.arange(len(samples))
        for level in _LEVELS:
            rest = samples.select(open_rows)
            keys, cells = self._cell(level)
            asked = _keys(rest, level)
            place = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
            found = keys[place] == asked
            sums += rest.weight[found] @ cells[place[found]]
            open_rows = open_rows[~found]
            if not len(open_rows):
                break
        return np.asarray(sums / sums.sum(), np.float64)

    def _cell(self, level: tuple[str, ...]) -> tuple[U64, F64]:
        """Return the distinct keys of a level, and the owners' shares of each."""
        if level not in self._cells:
            keys, place = np.unique(_keys(self._known, level), return_inverse=True)
            sums = np.stack([np.bincount(place, column, len(keys)) for column in self._weights.T], axis=1)
            self._cells[level] = keys, sums / np.maximum(sums.sum(axis=1, keepdims=True), 1e-12)
        return self._cells[level]


def _keys(packets: PacketBatch, names: Sequence[str]) -> U64:
    keys = np.zeros(len(packets), np.uint64)
    for name in names:
        column = mix(packets.src_hi, packets.src_lo) if name == "src" else getattr(packets, name)
        keys = mix(keys + np.uint64(1), column.astype(np.uint64))
    return keys
