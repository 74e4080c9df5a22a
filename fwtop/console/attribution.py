"""Which rule dropped each packet that the drop hook sampled.

The kernel gives one reason for the drops of all netfilter rules, and its count goes by fragments and segments
where a rule's counter goes by the datagram that they make up. So neither can be subtracted from the other.
But each sample shows the packet: if it meets the conditions of an active rule, that rule dropped it, as
fwtop's chains come first. Where the conditions don't decide (rates, or a list of which only the beginning is
known here), the rule's counter says how many of the candidates are its own.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.analysis.proposals.matching import allowed_rows, match_rows
from fwtop.analysis.window.traffic import chances
from fwtop.live.scaling import LONGEST_SECONDS
from fwtop.model.addresses.roles import AllowedPeer
from fwtop.model.rule import ACTIVE_STATES, Match, Rule, RuleStatus
from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.packets import F64, Hook, Mask, PacketBatch
from fwtop.rules.kinds import droppers, of

_READINGS = 4  # of a rule's counter, about a second apart
_CERTAIN = 0.8  # of the bytes that may be a rule's: all are, but for readings at different times
_LINK_BYTES = 14  # in the length of a sample, not in a rule's counter
_FEW = 50  # samples
_LATE_SECONDS = 3.0  # between two polls, at most: in calm, or beside programs that take every CPU


class _Candidates(Struct):
    """Sampled drops that may be a rule's."""

    size: float = 0.0  # bytes that they stand for
    samples: int = 0

    def add(self, sizes: F64) -> None:
        self.size += float(sizes.sum())
        self.samples += len(sizes)


class _Ratio(Struct):
    """What a rule counted, against what it may have dropped: in bytes, which fragments don't change.

    A reading of the counter arrives up to a second late, sometimes more and sometimes less. So the samples'
    own times say which of two readings they lie between.
    """

    counted: int  # bytes at the last reading up to which all samples are here
    counted_at: float | None  # Unix seconds
    next_counted: int = 0  # bytes at a later reading, before which samples may still be on their way
    next_at: float | None = None
    before: _Candidates = field(default_factory=_Candidates)  # up to the later reading
    after: _Candidates = field(default_factory=_Candidates)
    readings: deque[tuple[_Candidates, int]] = field(default_factory=lambda: deque(maxlen=_READINGS))
    is_whole: bool = False  # the present interval began with a reading

    def add(self, times: F64, sizes: F64, newest: float, status: RuleStatus) -> None:
        """Add a poll's candidates and the counter as last read; `newest`: time of the poll's last sample."""
        if self.next_at is None and status.counted_at not in (None, self.counted_at):
            self.next_counted, self.next_at = status.bytes, status.counted_at
        early = times <= (np.inf if self.next_at is None else self.next_at)
        self.before.add(sizes[early])
        self.after.add(sizes[~early])
        if self.next_at is not None and newest > self.next_at:
            self._close()

    def _close(self) -> None:
        # A counter that fell began anew, as the rule was put back: this reading says nothing
        if self.is_whole and self.before.samples and self.next_counted >= self.counted:
            self.readings.append((self.before, self.next_counted - self.counted))
        self.counted, self.counted_at, self.next_at = self.next_counted, self.next_at, None
        self.before, self.after, self.is_whole = self.after, _Candidates(), True

    @property
    def share(self) -> float | None:
        """Share of the candidates that the rule dropped; None while that isn't known."""
        possible = sum(candidates.size for candidates, _ in self.readings)
        if sum(candidates.samples for candidates, _ in self.readings) < _FEW or possible <= 0:
            return None
        share = sum(counted for _, counted in self.readings) / possible
        return 1.0 if share >= _CERTAIN else max(share, 0.0)


class DropAttribution:
    """Marks sampled drops with the number of the rule that dropped them, as samples of XDP are."""

    def __init__(self) -> None:
        self._ratios: dict[str, _Ratio] = {}
        self._before: dict[tuple[str, int], RuleStatus] = {}  # active at the last poll, by id and stamp
        self._gone: dict[tuple[str, int], tuple[RuleStatus, float]] = {}  # and until when, Unix seconds
        self._drawn = 0  # how often chance has decided

    def mark(
        self,
        batch: PacketBatch,
        counters: Counters,
        statuses: Iterable[RuleStatus],
        allowed: Sequence[AllowedPeer] = (),
    ) -> PacketBatch:
        """Return the batch with `rule` set on drops by active rules, and on the last of those just gone."""
        active = [status for status in statuses if status.state in ACTIVE_STATES and status.rule.id.isdigit()]
        known = [*((status, math.inf) for status in active), *self._just_gone(active)]
        ids = {status.rule.id for status, _ in known}
        self._ratios = {key: self._ratios[key] for key in self._ratios if key in ids}
        codes = {drop.code: drop.reason for drop in counters.drops if drop.code is not None}
        if not known or not codes:
            return batch
        numbers = batch.rule.copy()
        for code, reason in codes.items():
            found = ((*one, droppers(one[0].rule, reason)) for one in known)
            rules = [one for one in found if one[2]]
            rules.sort(key=lambda one: min(of(part.kind).layer for part in one[2]))  # who gets packets first
            rows = np.flatnonzero((batch.hook == Hook.DROP) & (batch.reason == code))
            if len(rows) and rules:
                numbers[rows] = self._numbers(batch.select(rows), rules, allowed)
        return replace(batch, rule=numbers)

    def _just_gone(self, active: Iterable[RuleStatus]) -> Iterable[tuple[RuleStatus, float]]:
        """Return the rules, as they were, that ended or were changed lately, and until when they dropped.

        Samples wait in buffers, and the guardian tells at once: the last drops come when the rule is no more.
        """
        now, present = time.time(), {(status.rule.id, status.stamp): status for status in active}
        self._gone |= {key: (old, now) for key, old in self._before.items() if key not in present}
        fresh = now - LONGEST_SECONDS - _LATE_SECONDS
        self._gone = {key: one for key, one in self._gone.items() if one[1] > fresh and key not in present}
        self._before = present
        return self._gone.values()

    def _numbers(
        self,
        drops: PacketBatch,
        rules: Iterable[tuple[RuleStatus, float, Sequence[Rule]]],
        allowed: Sequence[AllowedPeer],
    ) -> np.ndarray:
        """Return for each drop the number of its rule, 0 for none."""
        numbers = np.zeros(len(drops), np.uint32)
        free = ~allowed_rows(allowed, drops)
        times = drops.time_ns / 1e9 + (time.time() - time.monotonic())  # Unix seconds
        for status, until, parts in rules:
            met = np.logical_or.reduce([match_rows(_known(part, status), drops) for part in parts])
            hit = free & (numbers == 0) & met & (times >= status.rule.created) & (times <= until)
            hit &= self._chosen(status, parts, drops, times, hit)
            numbers[hit] = int(status.rule.id)
        return numbers

    def _chosen(
        self, status: RuleStatus, parts: Sequence[Rule], drops: PacketBatch, times: F64, hit: Mask
    ) -> Mask:
        """Choose among the candidates as many as the rule's counter says, if it counts drops alone."""
        sizes = drops.weight[hit] * np.maximum(drops.length[hit].astype(np.float64) - _LINK_BYTES, 1.0)
        ratio = self._ratios.setdefault(status.rule.id, _Ratio(status.bytes, status.counted_at))
        if not any(of(part.kind).answers or of(part.kind).is_compiled for part in parts):
            ratio.add(times[hit], sizes, float(times.max()), status)
        share = ratio.share
        if share is None:
            # Conditions without the sources decide nothing by themselves. A limit that has not dropped yet is
            # unlikely: packets that another firewall drops beyond it would have to meet it, too.
            share = float(not status.sources_left)
        if share in (0.0, 1.0):
            return np.full(len(drops), share == 1.0)
        self._drawn += 1
        return np.asarray(chances(len(drops), self._drawn) < share)


def _known(part: Rule, status: RuleStatus) -> Match:
    """Return the conditions without a list of sources that is known in part only."""
    return replace(part.match, sources=()) if status.sources_left else part.match
