"""What one window shows of an attack: when it was active, what it hits, and how its absence would show.

A pause is reported only where the observation proves it: samples are missing for many reasons (duty-cycle
windows, a thin sample, a poll that returned nothing), and none of those is a pause of the attack.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from fwtop.analysis.context import ANY, AnalysisContext, Finding
from fwtop.analysis.proposals.matching import match_rows
from fwtop.analysis.window.counting import among, marked
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import Rows, Traffic, host_key, weighted_top
from fwtop.model.addresses.address import format_address
from fwtop.model.rule import Match
from fwtop.model.traffic.packets import U64, Interval
from fwtop.model.traffic.protocols import NAMES

_ARP = 0x0806  # ethertype


class Sighting(Struct, frozen=True):
    """A finding, as it is matched with what was seen before."""

    kind: str
    title: str
    pulses: tuple[tuple[float, float], ...]  # first and last packet of each, Unix seconds, in order
    peak_pps: float = 0.0
    part: str = ""  # as in Finding
    match: Match = ANY  # header fields that its packets share
    targets: tuple[tuple[str, float], ...] = ()  # in words, each with its share of the packets
    presence: Presence | None = None  # None: every packet was seen, so that each gap is a pause
    over: bool = False  # it stopped before the window ended
    state: bool = False  # about state, such as a full table: no packets of its own


def sighting_of(context: AnalysisContext, finding: Finding) -> Sighting:
    """Say when and where a finding was in its window."""
    active = activity(context, finding, pps_of(context, finding))
    return Sighting(
        finding.kind,
        finding.title,
        active.pulses,
        active.peak_pps,
        finding.said_part,
        finding.match,
        tuple(_targets_of(context, finding)),
        active.presence,
        active.over,
        finding.state,
    )


def pps_of(context: AnalysisContext, finding: Finding) -> float:
    """Return the packets (or entries) a second of a finding."""
    return finding.pps if finding.pps is not None else context.traffic.pps(finding.rows)


def seen_until(
    context: AnalysisContext, match: Match, presence: Presence, senders: U64 | None = None
) -> float | None:
    """Return when packets like an attack's were last seen in a window that none of the rules names it in.

    An attack near a threshold is named in one window and not in the next, which is no pause of it. Only
    packets of `senders` count where they are given (see `host_key`). None: there are too few of them.
    """
    packets = context.traffic.packets
    rows = np.flatnonzero(match_rows(match, packets) & context.unclaimed)
    if senders is not None:
        rows = rows[
            among(host_key(packets.family[rows], packets.src_hi[rows], packets.src_lo[rows]), senders)
        ]
    if context.traffic.pps(rows) < _QUIET * presence.pps:
        return None
    return activity(context, Finding("", "", rows, 0.0, ()), 0.0).pulses[-1][1]


def _targets_of(context: AnalysisContext, finding: Finding) -> list[tuple[str, float]]:
    if finding.held is not None:
        return [(f"tcp/{finding.held.port}", 1.0)]
    return _targets(context.traffic, finding.rows)


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

    def may_be_in(self, interval: Interval) -> bool:
        """Test whether so many packets arrived in an interval that the vector may be among them."""
        return interval.packets >= _QUIET * self.pps * interval.seconds

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
    if finding.state:  # it is so now, though what holds it sends a packet now and then
        pulses = ((pulses[0][0], finish),)
    # Live rates are means over the window; the timeline keeps their peaks
    peak = Features(traffic, rows).peak_pps
    by_chance = traffic.live or finding.state or peak < context.config.min_samples
    over = stopped(pulses[-1][1], finish)
    return Activity(pulses, pps if by_chance else max(pps, peak), over, presence)
