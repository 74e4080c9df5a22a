"""Which rule dropped each packet that the drop hook sampled.

The kernel gives one reason for the drops of all netfilter rules, and its count goes by fragments and segments
where a rule's counter goes by the datagram that they make up. So neither can be subtracted from the other.
But each sample shows the packet: if it meets the conditions of an active rule, that rule dropped it, as
fwtop's chains come first. Where the conditions don't decide (rates, or a list of which only the beginning is
known here), the rule's counter says which share of the packets that may be its own are.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fwtop.analysis.proposals.allowed import allowed_rows
from fwtop.analysis.proposals.matching import match_rows
from fwtop.analysis.window.traffic import chances
from fwtop.model.addresses.roles import AllowedPeer
from fwtop.model.rule import ACTIVE_STATES, Kind, Match, RuleStatus
from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.packets import Hook, Mask, PacketBatch

NETFILTER_KINDS = frozenset(
    {Kind.IPSET, Kind.HASHLIMIT, Kind.STRING, Kind.NFTABLES, Kind.CONNLIMIT, Kind.PROTECT}
)
_REASONS = {
    "NETFILTER_DROP": NETFILTER_KINDS,
    "TC_INGRESS": frozenset({Kind.XDP, Kind.TC}),  # compiled rules run at tc where XDP can't
}
_READINGS = 4  # of a rule's counter, about a second apart
_CERTAIN = 0.8  # of the bytes that may be a rule's: all are, but for readings at different times
_LINK_BYTES = 14  # in the length of a sample, not in a rule's counter
_FEW = 50  # samples


@dataclass
class _Ratio:
    """What a rule counted, against what it may have dropped: in bytes, which fragments don't change."""

    counted: int  # at the last reading
    waiting: float = 0.0  # bytes of samples since
    samples: int = 0
    readings: deque[tuple[float, float, int]] = field(default_factory=lambda: deque(maxlen=_READINGS))
    is_whole: bool = False  # the present interval began with a reading

    def add(self, size: float, samples: int, counted: int) -> None:
        """Add the samples of a poll and the counter as last read."""
        self.waiting += size
        self.samples += samples
        if counted == self.counted:
            return
        if self.is_whole:
            self.readings.append((self.waiting, counted - self.counted, self.samples))
        self.counted, self.waiting, self.samples, self.is_whole = counted, 0.0, 0, True

    @property
    def share(self) -> float | None:
        """Share of the candidates that the rule dropped; None while that isn't known."""
        possible = sum(reading[0] for reading in self.readings)
        if sum(reading[2] for reading in self.readings) < _FEW or possible <= 0:
            return None
        share = sum(reading[1] for reading in self.readings) / possible
        return 1.0 if share >= _CERTAIN else max(share, 0.0)


class DropAttribution:
    """Marks sampled drops with the number of the rule that dropped them, as samples of XDP are."""

    def __init__(self) -> None:
        self._ratios: dict[str, _Ratio] = {}
        self._drawn = 0  # how often chance has decided

    def mark(
        self,
        batch: PacketBatch,
        counters: Counters,
        statuses: Iterable[RuleStatus],
        allowed: Sequence[AllowedPeer] = (),
    ) -> PacketBatch:
        """Return the batch with `rule` set on drops by active rules."""
        active = [status for status in statuses if status.state in ACTIVE_STATES and status.rule.id.isdigit()]
        self._ratios = {key: self._ratios[key] for key in self._ratios if key in {s.rule.id for s in active}}
        codes = {drop.code: drop.reason for drop in counters.drops if drop.code is not None}
        chosen = [(code, _REASONS[reason]) for code, reason in codes.items() if reason in _REASONS]
        if not active or not chosen:
            return batch
        numbers = batch.rule.copy()
        for code, kinds in chosen:
            rows = np.flatnonzero((batch.hook == Hook.DROP) & (batch.reason == code))
            rules = [status for status in active if status.rule.kind in kinds]
            if len(rows) and rules:
                numbers[rows] = self._numbers(batch.select(rows), rules, allowed)
        return replace(batch, rule=numbers)

    def _numbers(
        self, drops: PacketBatch, rules: list[RuleStatus], allowed: Sequence[AllowedPeer]
    ) -> np.ndarray:
        """Return for each drop the number of its rule, 0 for none."""
        numbers = np.zeros(len(drops), np.uint32)
        free = ~allowed_rows(allowed, drops)
        clock = time.time() - time.monotonic()
        for status in rules:
            rule = status.rule
            hit = free & (numbers == 0) & match_rows(_known(status), drops)
            hit &= drops.time_ns / 1e9 + clock >= rule.created
            hit &= self._chosen(status, drops, hit)
            numbers[hit] = int(rule.id)
        return numbers

    def _chosen(self, status: RuleStatus, drops: PacketBatch, hit: Mask) -> Mask:
        """Choose among the candidates as many as the rule's counter says."""
        size = drops.weight[hit] * np.maximum(drops.length[hit].astype(np.float64) - _LINK_BYTES, 1.0)
        ratio = self._ratios.setdefault(status.rule.id, _Ratio(status.bytes))
        if status.rule.kind in NETFILTER_KINDS:
            ratio.add(float(size.sum()), int(hit.sum()), status.bytes)
        share = ratio.share
        if share is None:
            # A rate limit or a list that is known in part decides nothing by itself
            share = float(status.rule.limit is None and not status.sources_left)
        if share in (0.0, 1.0):
            return np.full(len(drops), share == 1.0)
        self._drawn += 1
        return np.asarray(chances(len(drops), self._drawn) < share)


def _known(status: RuleStatus) -> Match:
    """Return the conditions without a list of sources that is known in part only."""
    match = status.rule.match
    return replace(match, sources=()) if status.sources_left else match
