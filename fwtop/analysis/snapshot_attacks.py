"""The attacks of a snapshot: what the findings of one window mean, what they hit, and their history.

A pause is reported only where the observation proves it: samples are missing for many reasons (duty-cycle
windows, a thin sample, a poll that returned nothing), and none of those is a pause of the attack.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.analysis.context import ANY, AnalysisContext, Finding, Trait, count
from fwtop.analysis.fate import Fate
from fwtop.analysis.proposals.matching import match_rows
from fwtop.analysis.severity import Load, Surroundings, severity_of
from fwtop.analysis.window.counting import marked
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import Rows, Traffic, weighted_top
from fwtop.model.addresses.address import format_address
from fwtop.model.rule import Match
from fwtop.model.traffic.packets import Interval
from fwtop.model.traffic.protocols import NAMES
from fwtop.model.traffic.severity import Severity
from fwtop.model.traffic.snapshot import Incident
from fwtop.render.numbers import plural

_REAL = 0.3  # probability of forged sources, below which they count as real

_ARP = 0x0806  # ethertype
_MAIN = 0.8  # share of the packets that a target has
_STILL = 0.3  # a target named once is kept while it has this share
_MANY = 1_000  # sources, from which the number of their networks is told
_UNSEEN = 0.02  # share of packets from sources that were not sampled


class Life(Struct, frozen=True):
    """A finding, when it was active in the window, and what became of its packets."""

    finding: Finding
    active: Activity
    fate: Fate

    @property
    def onset(self) -> tuple[float, float]:
        """First and last packet of its first pulse."""
        return self.active.pulses[0]


def attacks_of(
    context: AnalysisContext, lives: Sequence[Life], timeline: Timeline
) -> list[tuple[Incident, Finding]]:
    """Return the attacks and their findings, the most severe first, effects of others last."""
    around = Surroundings.of(context.counters, context.config.link_bits_per_second)
    made: list[Incident] = []
    for life in lives:
        attack = _attack(context, life, timeline)
        attack = replace(attack, severity=_severity(context, life, attack, around))
        same = sum(other.kind == attack.kind and other.target.startswith(attack.target) for other in made)
        made.append(replace(attack, target=f"{attack.target} #{same + 1}") if same else attack)
    cause = _cause(made, lives)
    for at, life in enumerate(lives):
        if Trait.FULL_TABLE in life.finding.traits:
            made[at] = replace(made[at], effect_of=cause)
    others = (one.severity for one, life in zip(made, lives, strict=True) if life.finding.exhausts)
    worst = min(others, key=lambda one: one.order, default=Severity())
    for at, life in enumerate(lives):
        if not life.finding.exhausts:  # a carpet: the others, seen together
            made[at] = replace(made[at], severity=worst)
    named = zip(made, (life.finding for life in lives), strict=True)
    return sorted(named, key=lambda item: (bool(item[0].effect_of), item[0].severity.order, -item[0].share))


def _severity(context: AnalysisContext, life: Life, attack: Incident, around: Surroundings) -> Severity:
    finding, live, sockets = life.finding, context.traffic.live, context.sockets
    port = finding.held.port if finding.held is not None else finding.match.dport
    if sockets is not None and port is not None:
        queue, overflows = sockets.queue(port), sockets.overflows_per_s > 0
        around = replace(around, queue=queue, overflows=overflows)
    is_proven = Trait.REFLECTED in finding.traits or context.sampled
    busiest = 1.0 if live else max(attack.peak_pps / max(attack.pps, 1e-9), 1.0)  # second of a capture
    load = Load(
        attack.pps * busiest,
        attack.bps * busiest,
        finding.asked * busiest,
        finding.connections,
        attack.share,
        attack.reaching_share,
        least=is_proven and not live,
    )
    return severity_of(finding.exhausts, finding.otherwise, load, around if live else Surroundings())


def pps_of(context: AnalysisContext, finding: Finding) -> float:
    """Return the packets (or entries) a second of a finding."""
    return finding.pps if finding.pps is not None else context.traffic.pps(finding.rows)


def _cause(attacks: Sequence[Incident], lives: Sequence[Life]) -> str:
    """Return the key of the attack of which most packets pass, and so fill the table of connections."""
    passing = [
        (life.fate.reaching_pps, attack.pps, attack.key)
        for attack, life in zip(attacks, lives, strict=True)
        if len(life.finding.rows)
    ]
    return max(passing, default=(0.0, 0.0, ""))[2]


def _attack(context: AnalysisContext, life: Life, timeline: Timeline) -> Incident:
    finding, active, fate = life.finding, life.active, life.fate
    sampled = pps_of(context, finding)
    track = timeline.note(finding, active, context.traffic.started + context.traffic.seconds)
    pps = fate.pps or sampled
    if len(finding.rows) or finding.held is not None:
        track.target = target_of(context, finding, track.target)
    spoofed = finding.spoof.probability > context.config.spoof_threshold
    # Another attack of the same kind hits another address
    aside = not finding.part.startswith("port ") and not track.target.startswith(finding.part)
    return Incident(
        finding.kind,
        finding.title,
        min(1.0, context.traffic.share(finding.rows)),
        pps,
        finding.confidence,
        spoofed,
        (*finding.evidence, *_on_sources(finding, spoofed=spoofed), *history(active, pps, track)),
        track.since,
        track.peak_pps,
        track.until if active.over else None,
        bps=context.traffic.bps(finding.rows) * (pps / sampled if sampled > 0 else 1.0),
        target=f"{finding.part} {track.target}" if aside else track.target,
        mine_share=fate.mine,
        other_share=fate.other,
        kernel_share=fate.kernel,
        sources=sources_of(context, finding, spoofed=spoofed),
        match=finding.match if len(finding.rows) or finding.held is not None else None,
        uncertain=not spoofed and finding.spoof.probability >= _REAL,
    )


def _on_sources(finding: Finding, *, spoofed: bool) -> list[str]:
    evidence = []
    if finding.spoof.evidence:
        unsure = "real" if finding.spoof.probability < _REAL else "of uncertain origin"
        verdict = "spoofed" if spoofed else unsure
        evidence.append(f"sources look {verdict}: {'; '.join(finding.spoof.evidence[:3])}")
    if spoofed:
        evidence.append("blocking sources is not offered: it would hit the owners of the spoofed addresses")
    return evidence


def target_of(context: AnalysisContext, finding: Finding, before: str = "") -> str:
    """Name the target: port, origin port of a reflection, else the address and protocol.

    A target named `before` is kept while a good part of the packets still go there, so that the attack keeps
    its identity.
    """
    if finding.held is not None:
        return f"tcp/{finding.held.port}"
    found = _targets(context.traffic, finding.rows)
    if before and any(words == before and share >= _STILL for words, share in found):
        return before
    return next((words for words, share in found if share >= _MAIN), before and "*")


def _targets(traffic: Traffic, rows: Rows) -> list[tuple[str, float]]:
    """Return in words what most packets of an attack have in common, and how many share it."""
    if not len(rows):
        return []
    packets, weight = traffic.packets, traffic.weight[rows]
    if not packets.family[rows].any():
        return [("ARP" if (packets.ethertype[rows] == _ARP).all() else "not IP", 1.0)]
    protocol, ported = packets.protocol[rows], ~traffic.later[rows]
    out = []
    for side, word in (("dport", "/"), ("sport", " from ")):
        ports = getattr(packets, side)[rows]
        heads = ported & (ports > 0)
        keys = protocol[heads].astype(np.uint32) << np.uint32(16) | ports[heads]
        out += [
            (f"{_name(key >> 16)}{word}{key & 0xFFFF}", share)
            for key, share in _top(keys, weight[heads], float(weight[ported].sum()))
        ]
    first = rows[0]
    several = bool((traffic.dest_key != traffic.dest_key[first]).any())
    only = several and bool((traffic.dest_key[rows] == traffic.dest_key[first]).all())
    address = format_address(*(int(getattr(packets, name)[first]) for name in ("family", "dst_hi", "dst_lo")))
    for number, share in _top(protocol, weight, float(weight.sum())):
        out += [(f"{address} {_name(number)}", share)] if only else []
        out.append((_name(number), share))
    return out


def _top(values: np.ndarray, weight: np.ndarray, whole: float) -> list[tuple[int, float]]:
    if not len(values) or whole <= 0:
        return []
    found, sums = weighted_top(values, weight)
    return [(int(value), float(part) / whole) for value, part in zip(found[:4], sums[:4], strict=True)]


def _name(protocol: int) -> str:
    return NAMES.get(protocol, f"protocol {protocol}")


def sources_of(context: AnalysisContext, finding: Finding, *, spoofed: bool) -> str:
    """Tell the senders: forged, or how many, of how many networks."""
    if finding.held is not None:
        return plural(len(finding.held.senders), "source")
    if spoofed:
        return "spoofed"
    if not len(finding.rows) or not context.traffic.packets.family[finding.rows].any():
        return ""
    features = Features(context.traffic, finding.rows)
    words = plural(features.sources, "source")
    if features.packets > 1.05 * features.n and features.singles > _UNSEEN:  # the sample misses some
        words = f"~{_roughly(min(features.likely_sources, features.packets))} sources"
    if features.sources < _MANY:
        return words
    packets, rows = context.traffic.packets, finding.rows
    four = packets.family[rows] == 4
    networks = np.where(four, packets.src_lo[rows] >> np.uint64(16), packets.src_hi[rows] >> np.uint64(32))
    size = "/16s" if bool(four.all()) else "networks" if bool(four.any()) else "/32s"
    return f"{words}, {len(np.unique(networks)):,} {size}"


def _roughly(number: float) -> str:
    """Round to two digits: 340, 1,200, 45k."""
    step = 10 ** max(len(str(int(number))) - 2, 0)
    rounded = round(number / step) * step
    return f"{rounded // 1_000:,}k" if rounded >= 10_000 else f"{rounded:,}"


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
    first = int(times.min())
    parts = np.minimum((times - first) / (int(times.max()) - first + 1) * _PARTS, _PARTS - 1).astype(np.intp)
    rates = np.bincount(parts[rows], traffic.weight[rows], _PARTS)
    active = (rates >= _STRONG * rates.max())[parts]  # packets of the parts in which it was
    on = (np.sort(times[rows[active[rows]]]) - first) / 1e9
    spacing = float(np.median(np.diff(on))) if len(on) > 1 else traffic.seconds
    pause = max(PAUSE_SECONDS, 2 * traffic.seconds / _PARTS, _SPACINGS * spacing)
    origin = traffic.started if context.clock is None else max(traffic.started, first / 1e9 + context.clock)
    on = np.minimum(origin + on, finish)
    # The mean over the whole window is the cautious choice: gaps of the observation don't raise it
    share = marked(active[rows]) / marked(active)
    presence = Presence(traffic.pps(rows), share) if context.intervals else None

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
            for one in self.known:  # its onset may be known from before
                same = (one.kind, one.sport) == key[:2]
                if same and one.since <= track.since <= one.until + self.linger_seconds:
                    track.since, track.peak_pps = one.since, max(track.peak_pps, one.peak_pps)
        for begin, end in active.pulses:
            track.waves += not finding.state and self._paused(track, active, begin)
            track.until = max(track.until, end)
        track.presence, track.match, track.noted = active.presence, finding.match, seen
        track.peak_pps = max(track.peak_pps, active.peak_pps)
        if not finding.state:  # a full table is an effect of a vector, and replaces none
            track.follows = track.follows or self._predecessor(key, track)
        self._trim(until)
        return track

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
                track.until = max(
                    track.until, activity(context, Finding("", "", rows, 0.0, ()), 0.0).pulses[-1][1]
                )

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
