"""Onset, peak, pauses and end of each attack, and what is remembered of them between two judgements.

A pause is reported only where the observation proves it: samples are missing for many reasons (duty-cycle
windows, a thin sample, a poll that returned nothing), and none of those is a pause of the attack.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable

import numpy as np
from msgspec import Struct, field

from fwtop.analysis.context import ANY, AnalysisContext, Finding, count
from fwtop.analysis.proposals.matching import match_rows
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import Rows
from fwtop.model.rule import Match
from fwtop.model.traffic.window import Interval

PAUSE_SECONDS = 2.0  # without packets: the attack has stopped, and what follows is another pulse
_PARTS = 50  # of the window, so that a stray packet before the onset doesn't count
_STRONG = 0.1  # of the rate of its strongest part
_SPACINGS = 20  # mean packet spacings: a slow vector hasn't stopped between two packets
_PROVEN_SECONDS = 1.0  # of a pause must be covered by polls that rule the attack out
_QUIET = 0.5  # of the attack's rate: if fewer packets arrived in total, the attack was absent
_EXPECTED = 20.0  # packets of the attack in an interval: fewer may be missing by chance
_ODDS = math.log(1000.0)  # against a sample that misses an attack which goes on


class Activity(Struct, frozen=True):
    """When a vector was active in the window: Unix seconds and packets per second."""

    pulses: tuple[tuple[float, float], ...]  # first and last packet of each, in order
    peak_pps: float  # of the busiest second, where the window is long enough to have one
    over: bool  # whether it stopped before the window ended
    presence: Presence | None = None  # None: every packet was seen, so that each gap is a pause


class Presence(Struct, frozen=True):
    """How a vector shows while it is active: what its absence is tested against."""

    pps: float
    sample_share: float  # of all samples

    def absent(self, interval: Interval) -> bool:
        """Test whether an interval without a sample of the vector rules it out.

        Either fewer packets arrived in total than the vector alone sends (exact counters), or there are so
        many samples of other traffic that one of the vector would be among them.
        """
        expected = self.pps * interval.seconds
        if expected >= _EXPECTED and interval.packets < _QUIET * expected:
            return True
        missed = -math.log1p(-min(self.sample_share, 0.999))
        return interval.samples * missed > _ODDS

    def paused(self, begin: float, end: float, intervals: Iterable[Interval]) -> bool:
        """Test whether the observation proves a pause between two moments without a sample."""
        within = (one for one in intervals if one.started >= begin and one.started + one.seconds <= end)
        return sum(one.seconds for one in within if self.absent(one)) >= _PROVEN_SECONDS


def activity(context: AnalysisContext, finding: Finding, pps: float) -> Activity:
    """Find the pulses of a finding in the window; `pps` is its mean rate."""
    traffic, rows = context.traffic, finding.rows
    finish = traffic.started + traffic.seconds
    if len(rows) == 0:
        return Activity(((finish, finish),), pps, over=False)
    times = traffic.packets.time_ns
    first, last = int(times.min()), int(times.max())
    mine = times[rows]
    place = np.minimum((mine - first) / (last - first + 1) * _PARTS, _PARTS - 1).astype(np.intp)
    rates = np.bincount(place, traffic.weight[rows], _PARTS)
    strong = rates >= _STRONG * rates.max()
    on = (np.sort(mine[strong[place]]) - first) / 1e9
    spacing = float(np.median(np.diff(on))) if len(on) > 1 else traffic.seconds
    pause = max(PAUSE_SECONDS, 2 * traffic.seconds / _PARTS, _SPACINGS * spacing)
    origin = traffic.started if context.clock is None else max(traffic.started, first / 1e9 + context.clock)
    on = np.minimum(origin + on, finish)
    presence = _presence(context, strong, rows) if context.intervals else None

    def stopped(begin: float, end: float) -> bool:
        proven = presence is None or presence.paused(begin, end, context.intervals)
        return end - begin > pause and proven

    gaps = [at for at in np.flatnonzero(np.diff(on) > pause).tolist() if stopped(on[at], on[at + 1])]
    starts, ends = [0, *(at + 1 for at in gaps)], [*gaps, len(on) - 1]
    pulses = tuple((float(on[a]), float(on[b])) for a, b in zip(starts, ends, strict=True))
    # Live rates are means over the window; the timeline keeps their peaks
    peak = Features(traffic, rows).peak_pps
    by_chance = traffic.live or finding.state or peak < context.config.min_samples
    over = not finding.state and stopped(pulses[-1][1], finish)
    return Activity(pulses, pps if by_chance else max(pps, peak), over, presence)


def _presence(context: AnalysisContext, strong: np.ndarray, rows: np.ndarray) -> Presence:
    """Measure a vector over the parts of the window in which it was active."""
    traffic = context.traffic
    times = traffic.packets.time_ns
    first, last = int(times.min()), int(times.max())
    place = np.minimum((times - first) / (last - first + 1) * _PARTS, _PARTS - 1).astype(np.intp)
    active = strong[place]
    among = int(active.sum())
    # The mean over the whole window is the cautious choice: gaps of the observation don't raise it
    return Presence(traffic.pps(rows), float(active[rows].sum()) / among if among else 0.0)


def history(active: Activity, pps: float, track: Track) -> list[str]:
    """Write its peak, its pulses, the vector that it replaced and its end, as far as they apply."""
    notes = []
    if track.peak_pps > 1.2 * pps:
        notes.append(f"its peak was {count(track.peak_pps)} packets/s")
    if track.waves > 1:
        notes.append(f"it comes in pulses: {track.waves} so far")
    if track.follows:
        notes.append(f"it replaced {track.follows}: the attacker changed the vector")
    if active.over:
        notes.append(f"it ended at {time.strftime('%H:%M:%S', time.gmtime(active.pulses[-1][1]))} UTC")
    return notes


def _like(rows: Rows) -> Finding:
    """Return a finding of packets that only look like one."""
    return Finding("", "", rows, 0.0, ())


_REMEMBERED = 256
_FORGET_SECONDS = 3600.0


class Track(Struct):
    """The history of one vector so far, Unix seconds."""

    title: str
    since: float
    until: float  # its last packets
    peak_pps: float
    waves: int = 1
    follows: str = ""
    presence: Presence | None = None
    target: str = ""  # in words, which identify the attack while it lasts
    match: Match = ANY  # header fields that its packets share
    noted: float = 0.0  # end of the last window that it was named in


class Known(Struct, frozen=True):
    """A vector that another observation of the same traffic has seen before; Unix seconds."""

    kind: str
    sport: int | None
    since: float
    until: float
    peak_pps: float


class Timeline(Struct):
    """Recognises vectors by kind and port. One that returns within `linger_seconds` keeps its onset."""

    linger_seconds: float
    tracks: dict[tuple[str, int | None, str], Track] = field(default_factory=dict)
    known: tuple[Known, ...] = ()
    _intervals: deque[Interval] = field(default_factory=deque)

    def observe(self, intervals: Iterable[Interval]) -> None:
        """Remember the polls of a window for as long as a vector may return."""
        newest = self._intervals[-1].started if self._intervals else -math.inf
        self._intervals.extend(one for one in intervals if one.started > newest + 1e-3)
        keep = self._intervals[-1].started - self.linger_seconds if self._intervals else 0.0
        while self._intervals and self._intervals[0].started < keep:
            self._intervals.popleft()

    def note(self, finding: Finding, active: Activity, seen: float = 0.0) -> Track:
        """Record a vector's activity in a window that ends at `seen`, and return its history so far."""
        key = (finding.kind, finding.match.sport, finding.part)
        onset, until = active.pulses[0][0], active.pulses[-1][1]
        track = self.tracks.get(key)
        if track is None or onset - track.until > self.linger_seconds:
            track = self.tracks[key] = Track(finding.title, *active.pulses[0], active.peak_pps)
            self._recall(track, finding)
        for begin, end in active.pulses:
            track.waves += not finding.state and self._paused(track, active, begin)
            track.until = max(track.until, end)
        track.presence, track.match, track.noted = active.presence, finding.match, seen
        track.peak_pps = max(track.peak_pps, active.peak_pps)
        if not finding.state:  # a full table is an effect of a vector, and replaces none
            track.follows = track.follows or self._predecessor(key, track)
        self._trim(until)
        return track

    def _recall(self, track: Track, finding: Finding) -> None:
        """Give a new track the onset that is known from before."""
        for one in self.known:
            same = (one.kind, one.sport) == (finding.kind, finding.match.sport)
            if same and one.since <= track.since <= one.until + self.linger_seconds:
                track.since, track.peak_pps = one.since, max(track.peak_pps, one.peak_pps)

    def follow(self, context: AnalysisContext) -> None:
        """Note which known vectors go on in a window that none of the rules names them in.

        A vector near a threshold is named in one window and not in the next, which is no pause of it.
        """
        traffic = context.traffic
        end = traffic.started + traffic.seconds
        for track in self.tracks.values():
            recent = track.until > traffic.started - self.linger_seconds
            if track.presence is None or not recent or track.noted >= end:
                continue
            rows = np.flatnonzero(match_rows(track.match, traffic.packets) & context.unclaimed)
            if traffic.pps(rows) >= _QUIET * track.presence.pps:
                track.until = max(track.until, activity(context, _like(rows), 0.0).pulses[-1][1])

    def _paused(self, track: Track, active: Activity, begin: float) -> bool:
        """Test whether the vector paused before a pulse: as it was then, and as it is now."""
        if begin - track.until <= PAUSE_SECONDS:
            return False
        known = [one for one in (track.presence, active.presence) if one is not None]
        return all(one.paused(track.until, begin, self._intervals) for one in known)

    def _predecessor(self, key: tuple[str, int | None, str], track: Track) -> str:
        """Name the vector that ended when this one began, and has not come back."""
        for other, earlier in self.tracks.items():
            ended = abs(earlier.until - track.since) < PAUSE_SECONDS < track.until - earlier.until
            if other != key and ended and earlier.since < track.since:
                return earlier.title
        return ""

    def _trim(self, now: float) -> None:
        stale = [key for key, track in self.tracks.items() if now - track.until > _FORGET_SECONDS]
        for key in stale:
            del self.tracks[key]
        if len(self.tracks) > _REMEMBERED:
            del self.tracks[min(self.tracks, key=lambda key: self.tracks[key].until)]
