"""The one memory of attacks: when each began, paused and ended, and which letter it has.

Judgement names what a window shows and keeps nothing. The tracker decides which of these sightings continues
which incident (`continued`) and remembers the rest of its life. A pause is one only where the observation
proves it: samples are missing for many reasons, such as a poll that returned nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from string import ascii_uppercase

import numpy as np
from msgspec import Struct, field

from fwtop.analysis.sighting import PAUSE_SECONDS, Presence, Sighting
from fwtop.model.rule import Match
from fwtop.model.traffic.packets import U64, Interval
from fwtop.model.traffic.snapshot import Incident

LEAST_PAUSE_SECONDS = 3.0  # a shorter pause ends nothing
FIRST_PAUSE_SECONDS = 10.0  # the longest that the first pause may last: it is not yet known to pulse
LONGEST_PAUSE_SECONDS = 60.0  # of one that pulses
CEASES_SECONDS = (
    5.0  # between its last packet and the rule that cut it off: windows are long, and keys take time
)
_LONGER = 1.25  # times its pulses: how regular pulses are
_PAUSES = 1.5  # times the longest pause so far


class Tracked(Struct):
    """An incident so far; times are Unix seconds of packets."""

    id: int
    letter: str
    kind: str  # as it became known
    title: str
    began: float
    until: float  # its last packet
    part: str = ""
    match: Match = field(default_factory=Match)  # header fields that its packets share
    target: str = ""
    peak_pps: float = 0.0
    waves: int = 1
    follows: str = ""  # title of the incident that it replaced
    presence: Presence | None = None
    state: bool = False  # about state, such as a full table: no packets of its own
    paused: float | None = None
    ended: float | None = None
    noted: float = 0.0  # end of the last window that it was sighted in
    found_over: float = 0.0  # end of the window that showed its end
    shown: Incident | None = None  # as last shown
    mixed_since: float = 0.0  # end of the first window that shows it with packets of other fields; 0: alone
    alone_until: float = 0.0  # its last packet before that
    cut_since: float = 0.0  # when the first rule against it was installed
    cut_until: float = 0.0  # end of the last window that saw one in force; 0: none did
    cut_peak_pps: float = 0.0  # its peak when the first was seen in force
    held_until: float = 0.0  # end of the last window in which rules dropped what its senders sent on
    held_pps: float | None = None  # as much of it; None: no rule holds it off
    sources: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))  # hashed, of its packets so far
    _pulse_began: float = 0.0
    _longest_pulse: float = 0.0
    _longest_pause: float = 0.0

    def note_pulse(self, begin: float, finish: float, *, after_pause: bool) -> None:
        """Add a pulse or go on with the last one."""
        if after_pause:
            self.waves += 1
            self._longest_pause = max(self._longest_pause, begin - self.until)
        if after_pause or not self._pulse_began:
            self._pulse_began = begin
        self.until = max(self.until, finish)
        self._longest_pulse = max(self._longest_pulse, self.until - self._pulse_began)

    @property
    def pause_limit_seconds(self) -> float:
        """How long it may pause: as long as its own pulses and pauses lasted."""
        own = _LONGER * self._longest_pulse
        if self.waves == 1:
            return max(min(own, FIRST_PAUSE_SECONDS), LEAST_PAUSE_SECONDS)
        longest = max(own, _PAUSES * self._longest_pause)
        return max(min(longest, LONGEST_PAUSE_SECONDS), LEAST_PAUSE_SECONDS)


_UNNAMED_SECONDS = 5.0  # of samples, after which packets like its own are not its own
_SHOWN_SECONDS = 3.0  # after it was found to have ended
_LETTER_SECONDS = 600.0  # after the end, until another incident gets the letter
_MOST = 256
_STILL = 0.3  # share of the packets with which a target once named is kept
_MAIN = 0.8  # share of the packets that a target has


class Tracker:
    """Follows incidents from window to window. One per observation; not thread-safe."""

    def __init__(self, known: Iterable[Incident] = (), blind_seconds: float = 30.0) -> None:
        """`known` are incidents that another observation of the same traffic, or an earlier one, had open.

        One that may only have gone unseen for `blind_seconds` goes on.
        """
        self._blind_seconds = blind_seconds
        self.open: list[Tracked] = []  # those that ended stay for some seconds
        self._past: list[Tracked] = []
        self._intervals: deque[Interval] = deque()
        self._next_id = 1
        self._watched_until = 0.0
        for one in known:
            self._resume(one)

    def take(
        self,
        started: float,
        end: float,
        sightings: Sequence[Sighting],
        intervals: Iterable[Interval] = (),
        *,
        live: bool = True,
        lasting: Callable[[Tracked], float | None] = lambda _: None,
        held: Callable[[Tracked], float | None] = lambda _: None,
    ) -> list[Tracked]:
        """Return the incident of each sighting in a window from `started` to `end` (Unix seconds), in order.

        `lasting` finds out when the packets of one without a sighting were last seen, if they go on unnamed;
        `held` how many packets a second of its senders rules drop, None if none is in force against it.
        In what is not live there is no later window: what is over by the end of it has ended.
        """
        self.observe(intervals)
        self._forget(end)
        going_on = [one for one in self.open if one.ended is None]
        # What no window covers is no pause
        unwatched = max(started - self._watched_until, 0.0)
        if unwatched > self._blind_seconds:
            unwatched = 0.0
        unjudged = (self._watched_until, started)
        self._watched_until = max(end, self._watched_until)

        def may_continue(one: Tracked, sighting: Sighting) -> bool:
            onset = sighting.pulses[0][0]
            if sighting.presence is None and onset >= end:  # no packets: it is so since the last window
                onset = started
            return self._may_continue(one, onset, unwatched)

        before = continued(going_on, sightings, may_continue)
        result = []
        for sighting, tracked in zip(sightings, before, strict=True):
            one = tracked or self._begin(sighting, end)
            self._note(one, sighting, started, end)
            if sighting.over and not live:
                one.paused, one.ended, one.found_over = None, one.until, end
            result.append(one)
        for one in going_on:
            if one.noted < end:
                self._go_on(one, *unjudged)
                self._rest(one, end, lasting(one), is_cut=held(one) is not None)
        for one in self.open:
            self._hold(one, started, end, held)
        for sighting, one in zip(sightings, result, strict=True):
            if not sighting.state:  # a full table is an effect of an attack, and replaces none
                one.follows = one.follows or self._predecessor(one)
        return result

    @property
    def known(self) -> tuple[Tracked, ...]:
        """All that are open or ended not long ago."""
        return (*self.open, *self._past)

    def close(self, number: int) -> None:
        """Forget an incident that the operator says is none."""
        self.open = [one for one in self.open if one.id != number]

    def _begin(self, sighting: Sighting, end: float) -> Tracked:
        onset = sighting.pulses[0][0]
        one = Tracked(self._next_id, self._free_letter(end), sighting.kind, sighting.title, onset, onset)
        self._next_id += 1
        self.open.append(one)
        return one

    def _note(self, one: Tracked, sighting: Sighting, started: float, end: float) -> None:
        if not one.noted or not is_broader(sighting.match, one.match):
            one.mixed_since = 0.0
        elif not one.mixed_since:
            one.mixed_since, one.alone_until = end, one.until
        known = [presence for presence in (one.presence, sighting.presence) if presence is not None]
        for begin, finish in sighting.pulses:
            pause = begin - one.until > PAUSE_SECONDS and not sighting.state
            proven = pause and all(was.paused(one.until, begin, self._intervals) for was in known)
            one.note_pulse(begin, finish, after_pause=proven)
        one.kind, one.title, one.state = sighting.kind, sighting.title, sighting.state
        # A window in which one attack ends and the next of its kind begins may show them as one
        if not one.mixed_since or end - one.mixed_since > end - started:
            one.mixed_since, one.part, one.match = 0.0, sighting.part, sighting.match
            one.presence, one.target = sighting.presence, _target(sighting, one.target)
        one.peak_pps = max(one.peak_pps, sighting.peak_pps)
        one.noted, one.paused, one.held_until = end, one.until if sighting.over else None, 0.0

    def _go_on(self, one: Tracked, begin: float, end: float) -> None:
        """Let one that was on at the last judgement go on until the counters show that it stopped."""
        if one.presence is None or begin - one.until > PAUSE_SECONDS:
            return
        for poll in self._intervals:
            if begin <= poll.started and poll.started + poll.seconds <= end:
                if not one.presence.may_be_in(poll):
                    break
                one.note_pulse(one.until, poll.started + poll.seconds, after_pause=False)

    def _rest(self, one: Tracked, end: float, seen: float | None, *, is_cut: bool) -> None:
        """Decide what it means that no sighting continues an incident: a pause, its end, or a blind spot."""
        unnamed = self._sampled_seconds(one.noted) > _UNNAMED_SECONDS
        was_on = one.paused is None  # a proven pause ends by a name: clients' packets may be alike
        if was_on and seen is not None and seen > one.until and not unnamed:
            one.note_pulse(one.until, seen, after_pause=False)
            one.paused = None
            return
        if one.mixed_since:  # the other packets go on under a name of their own
            one.until, one.mixed_since = one.alone_until, 0.0
        was = one.presence
        proven = unnamed or was is None or was.paused(one.until, end, self._intervals)
        if proven:
            one.paused = one.until
        held = one.held_until and end - one.held_until <= LONGEST_PAUSE_SECONDS
        least = FIRST_PAUSE_SECONDS if is_cut else 0.0  # until it shows whether its senders go on
        limit = max(one.pause_limit_seconds, least) if proven else self._blind_seconds
        if not held and end - one.until > limit:
            one.paused, one.ended, one.found_over = None, one.until, end

    def _hold(
        self, one: Tracked, started: float, end: float, held: Callable[[Tracked], float | None]
    ) -> None:
        """Take note of whether rules hold off one that pauses: it has not ended while its senders go on."""
        pps = held(one) if one.paused is not None else None
        if pps and started >= one.until:  # what is dropped is not of its last second
            one.held_until = end
        elif pps is None:
            one.held_until = 0.0
        one.held_pps = pps if one.held_until else None

    def _sampled_seconds(self, since: float) -> float:
        """Return how long packets were sampled since a moment: what goes on would have been named."""
        return sum(poll.seconds for poll in self._intervals if poll.started >= since and poll.samples)

    def _may_continue(self, one: Tracked, onset: float, unwatched: float) -> bool:
        """Test whether packets that begin at `onset`, after an unwatched time, can be of an incident."""
        pause = onset - one.until - unwatched
        if pause <= one.pause_limit_seconds:
            return True
        proven = one.presence is None or one.presence.paused(one.until, onset, self._intervals)
        return not proven and pause <= self._blind_seconds

    def _predecessor(self, one: Tracked) -> str:
        """Name the incident that stopped when this one began, and has not come back."""
        for other in (*self.open, *self._past):
            stopped = abs(other.until - one.began) < PAUSE_SECONDS < one.until - other.until
            if other is not one and stopped and other.began < one.began:
                return other.title
        return ""

    def observe(self, intervals: Iterable[Interval]) -> None:
        """Remember the polls of a window, also of one that isn't judged, for as long as a pause may last."""
        newest = self._intervals[-1].started if self._intervals else -math.inf
        self._intervals.extend(one for one in intervals if one.started > newest + 1e-3)
        keep = self._intervals[-1].started - LONGEST_PAUSE_SECONDS if self._intervals else 0.0
        while self._intervals and self._intervals[0].started < keep:
            self._intervals.popleft()

    def _forget(self, now: float) -> None:
        over = [one for one in self.open if one.ended is not None and now - one.found_over >= _SHOWN_SECONDS]
        self.open = [one for one in self.open if one not in over][-_MOST:]
        causes = {one.shown.cause for one in self.open if one.shown is not None}
        recent = (
            one for one in (*self._past, *over) if now - one.until < _LETTER_SECONDS or one.id in causes
        )
        self._past = list(recent)[-_MOST:]

    def _free_letter(self, now: float) -> str:
        taken = {one.letter for one in (*self.open, *self._past) if now - one.until < _LETTER_SECONDS}
        return next((letter for letter in ascii_uppercase if letter not in taken), "+")

    def _resume(self, incident: Incident) -> None:
        """Take over an incident as it was last shown."""
        until = incident.last
        one = Tracked(
            incident.id, incident.letter, incident.kind, incident.title, incident.since, until,
            match=incident.match or Match(), target=incident.target, peak_pps=incident.peak_pps,
            paused=incident.paused, ended=incident.ended, noted=until, shown=incident,
        )  # fmt: skip
        one.note_pulse(incident.since, until, after_pause=False)
        (self.open if incident.ended is None else self._past).append(one)
        self._next_id = max(self._next_id, incident.id + 1)
        self._watched_until = max(self._watched_until, until)


def _target(sighting: Sighting, before: str) -> str:
    """Name the target; one named before is kept while a good part of the packets still go there."""
    if not sighting.targets:
        return before
    if before and any(words == before and share >= _STILL for words, share in sighting.targets):
        return before
    return next((words for words, share in sighting.targets if share >= _MAIN), before and "*")


_BEFORE_SECONDS = 0.5  # that packets were there under another name
_SHARED = 0.3  # of a sighting's packets that go to the incident's target


def continued(
    incidents: Sequence[Tracked],
    sightings: Sequence[Sighting],
    may_continue: Callable[[Tracked, Sighting], bool],
) -> list[Tracked | None]:
    """Return the incident that each sighting continues; the closest pairs first, of equals the oldest.

    It goes by kind, target, signature and continuity. Header fields that contradict each other are two
    attacks, whatever they are called. A sighting of another kind continues an incident only if its packets
    were there before, when they had the other name: near a threshold the same packets are named one way and
    then another. New packets of another kind are a change of vector, and so a new incident.
    """
    pairs = [
        (likeness, -incident.began, place, incident)
        for place, sighting in enumerate(sightings)
        for incident in incidents
        if (likeness := _likeness(incident, sighting)) and may_continue(incident, sighting)
    ]
    result: list[Tracked | None] = [None] * len(sightings)
    taken: set[int] = set()
    for _, _, place, incident in sorted(pairs, key=lambda pair: pair[:3], reverse=True):
        if result[place] is None and incident.id not in taken:
            result[place] = incident
            taken.add(incident.id)
    return result


def _likeness(incident: Tracked, sighting: Sighting) -> int:
    """Return how much a sighting has in common with an incident; 0: it is another."""
    if incident.state != sighting.state or not _agree(incident.match, sighting.match):
        return 0
    hits = any(words == incident.target and share >= _SHARED for words, share in sighting.targets)
    same_part = incident.part == sighting.part
    if incident.kind == sighting.kind:
        if incident.part and sighting.part and not same_part and not hits:
            return 0
        return 4 + 2 * same_part + hits
    renamed = sighting.state or sighting.pulses[0][0] < incident.until - _BEFORE_SECONDS
    return int(renamed and hits)


def _agree(one: Match, other: Match) -> bool:
    """Test whether the same packets can have the header fields of both."""
    names = ("family", "protocol", "sport", "dport", "icmp_type")
    pairs = ((getattr(one, name), getattr(other, name)) for name in names)
    if any(None not in pair and pair[0] != pair[1] for pair in pairs):
        return False
    if one.tcp_flags is None or other.tcp_flags is None:
        return True
    (mask, value), (other_mask, other_value) = one.tcp_flags, other.tcp_flags
    return not (value ^ other_value) & mask & other_mask


def is_broader(one: Match, other: Match) -> bool:
    """Test whether header fields that all packets of `other` share are not shared by all of `one`."""
    names = ("protocol", "sport", "dport", "tcp_flags", "icmp_type")
    return any(getattr(one, name) is None and getattr(other, name) is not None for name in names)
