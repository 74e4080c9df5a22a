"""The advisor: turns windows of packets into incidents, signatures and proposals, with state in between."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec.structs import replace

from fwtop.analysis.classify import find_attacks
from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.context import AnalysisContext, Trait, make_context
from fwtop.analysis.engine.compete import Explained
from fwtop.analysis.engine.weights import calibrated
from fwtop.analysis.fate import fates
from fwtop.analysis.learning import Learner
from fwtop.analysis.memory import Baseline, Memory
from fwtop.analysis.packet_signatures import SignatureSearch, packet_signatures
from fwtop.analysis.severity import Load, Surroundings, severity_of
from fwtop.analysis.shown import JudgedTraffic, shown_payloads
from fwtop.analysis.sighting import seen_until, sighting_of
from fwtop.analysis.standing import Standing
from fwtop.analysis.usual import normal_range, services_used
from fwtop.incidents.advice import Advices
from fwtop.incidents.effects import with_effects
from fwtop.incidents.tracked import Tracked
from fwtop.incidents.tracker import Tracker
from fwtop.incidents.views import Sighted, incident_of, resting
from fwtop.model.rule import Rule
from fwtop.model.traffic.packets import NoOrigin, OriginLookup, Window
from fwtop.model.traffic.severity import Severity
from fwtop.model.traffic.snapshot import Incident, Judgement, Tables
from fwtop.rehearsal.host import KnownPeers

Named = tuple[Tracked, Sighted]


class Advisor:
    """Judges consecutive windows. One per observation; not thread-safe."""

    def __init__(
        self,
        config: AdviseConfig | None = None,
        baseline: Baseline | None = None,
        lookup: OriginLookup | None = None,
        known: Iterable[Incident] = (),
        *,
        explains: bool = False,
    ) -> None:
        """`known` are incidents that another observation has seen before this one began."""
        self.config = config or AdviseConfig()
        self.standing = Standing.unknown()  # of the sources, as of the last judgement
        self.judged: JudgedTraffic | None = None  # the last window
        self.known = KnownPeers()  # rules are rehearsed on them
        self.explained: tuple[Explained, ...] = ()  # the groups of the last window, if asked to explain
        self._explains = explains
        self._lookup = lookup or NoOrigin()
        self.baseline = baseline or Baseline(self.config.baseline_rows)
        self.learner = Learner(self.baseline, self.config)
        self._tracker = Tracker(known, self.config.linger_seconds)
        self._memory = Memory()
        self._advices = Advices()
        self._search = SignatureSearch()

    def judge(self, window: Window, tables: Tables, active: Sequence[Rule] = ()) -> Judgement:
        """Return the incidents of a window, and proposals against what `active` rules leave of them.

        Learn from quiet windows.
        """
        context = make_context(window, self.config, self.baseline, self._memory)
        context.explains, context.known = self._explains, self.known
        context.findings[:] = calibrated(context, find_attacks(context))
        self.explained = tuple(context.explained) if self._explains else ()
        now = window.started + window.seconds
        named = self._track(context, window, now)
        shown = _shown(context, named, self._tracker.known, active)
        by_id = {one.id: sighted.finding for one, sighted in named}
        for number in self.learner.obey(context, [(incident, by_id[incident.id]) for incident in shown]):
            self._tracker.close(number)
        resting_ones = (resting(one) for one in self._tracker.open if one.noted < now)
        tracked = {one.id: one for one in self._tracker.open}
        incidents = tuple(one for one in (*shown, *resting_ones) if one is not None and one.id in tracked)
        # Connections that a rule left open may stay for hours; their sources teach nothing meanwhile
        left = {one.id for one in incidents if one.effect_of and one.holds and not one.severity.is_harmful}
        rest = [one for one in incidents if one.id not in left]
        quiet = not any(one.severity.is_harmful or one.effect_of for one in rest)
        harmful = (one for one in self._tracker.known if one.shown and one.shown.severity.is_harmful)
        attackers = [one.sources for one in harmful if len(one.sources)]
        self.learner.take(context, window, quiet=quiet, attackers=attackers)
        if context.sockets is not None:
            held = {one.id: sighted.finding.held for one, sighted in named if sighted.finding.held}
            remains = [group for number, group in held.items() if number in left]
            calm = quiet and len(remains) == len(held)
            self._memory.connections.learn(self.config, quiet=calm, left=remains)
        self.standing = Standing.of(context, self._lookup)
        normal = self._advices.renew(context, active, [(one, s.finding) for one, s in named], now)
        self.judged = JudgedTraffic.of(window, context, normal, by_id)
        current = [one for one in incidents if one.ended is None or not window.live]
        made = Judgement(
            attacks=incidents,
            proposals=self._advices.proposals([tracked[one.id] for one in current]),
            payloads=shown_payloads(tables, context.traffic, self._advices.signatures(), normal),
            baseline=self.learner.sentence(normal.sentence),
            learning=self.learner.told,
            baseline_packets=len(normal.packets),
            signatures=packet_signatures(window, context, normal, self._search),
            normal_pps=normal_range(self.baseline),
            services=services_used(window.services, context.services, self.baseline, now),
        )
        return of_window(made, tables.totals.pps, tables.totals.pps)

    def watch(self, window: Window) -> None:
        """Take note of a window that isn't judged: its counters tell how long an attack goes on."""
        self._tracker.observe(window.intervals)

    def _track(self, context: AnalysisContext, window: Window, now: float) -> list[Named]:
        """Find the incident of each finding."""
        sighted = [
            Sighted(finding, sighting_of(context, finding), fate)
            for finding, fate in zip(context.findings, fates(context, window), strict=True)
        ]
        sighted.sort(key=lambda one: one.seen.pulses[0])  # a later one may replace an earlier one

        def lasting(one: Tracked) -> float | None:
            return seen_until(context, one.match, one.presence) if one.presence is not None else None

        seen = [one.seen for one in sighted]
        tracked = self._tracker.take(
            window.started, now, seen, window.intervals, live=window.live, lasting=lasting
        )
        return list(zip(tracked, sighted, strict=True))


def _shown(
    context: AnalysisContext, named: Sequence[Named], before: Iterable[Tracked], rules: Sequence[Rule]
) -> list[Incident]:
    """Return the incidents that a window shows, the most severe first, effects of others last."""
    made = with_severities(context, [incident_of(context, sighted, one) for one, sighted in named], named)
    made = with_effects(context, made, named, before, rules)
    for incident, (one, _) in zip(made, named, strict=True):
        one.shown = incident
    return sorted(made, key=lambda one: (bool(one.effect_of), one.severity.order, -one.share))


def of_window(judgement: Judgement, judged_pps: float, total_pps: float) -> Judgement:
    """Give a judgement, made of a window with so many packets a second, the rates of the present one.

    The attacks' shares hold until the next judgement, so that all rates shown together add up. None exceeds
    the total: connection tracking counts outbound connections, too.
    """
    factor = total_pps / judged_pps if judged_pps > 0 else 1.0
    attacks = tuple(
        replace(attack, pps=min(attack.pps * factor, total_pps), bps=attack.bps * factor)
        for attack in judgement.attacks
    )
    return replace(judgement, attacks=attacks)


def with_severities(
    context: AnalysisContext, incidents: Sequence[Incident], named: Sequence[tuple[Tracked, Sighted]]
) -> list[Incident]:
    """Return incidents with their severity. The class is the worst that each has had: it doesn't waver."""
    around = Surroundings.of(context.counters, context.config.link_bits_per_second)
    made = []
    for incident, (tracked, sighted) in zip(incidents, named, strict=True):
        severity = _severity(context, sighted, incident, around)
        before = tracked.shown.severity if tracked.shown is not None else severity
        made.append(
            severity if severity.harm.rank <= before.harm.rank else replace(severity, harm=before.harm)
        )
    own = [one for one, (_, sighted) in zip(made, named, strict=True) if sighted.finding.exhausts]
    worst = min(own, key=lambda one: one.order, default=Severity())
    return [
        replace(
            incident, severity=one if sighted.finding.exhausts else worst
        )  # a carpet: the others together
        for incident, one, (_, sighted) in zip(incidents, made, named, strict=True)
    ]


def _severity(
    context: AnalysisContext, sighted: Sighted, incident: Incident, around: Surroundings
) -> Severity:
    finding, live, sockets = sighted.finding, context.traffic.live, context.sockets
    port = finding.held.port if finding.held is not None else finding.match.dport
    if sockets is not None and port is not None:
        queue, overflows = sockets.queue(port), sockets.overflows_per_s > 0
        around = replace(around, queue=queue, overflows=overflows)
    is_proven = Trait.REFLECTED in finding.traits or context.sampled
    busiest = 1.0 if live else max(incident.peak_pps / max(incident.pps, 1e-9), 1.0)  # second of a capture
    time = context.traffic.packets.time_ns[finding.rows]
    load = Load(
        incident.pps * busiest,
        incident.bps * busiest,
        finding.asked * busiest,
        finding.connections,
        incident.share,
        incident.reaching_share,
        half=float(np.ptp(np.quantile(time, (0.25, 0.75)))) / 1e9 if live and len(time) else math.inf,
        window=context.traffic.seconds,
        least=is_proven and not live,
    )
    return severity_of(finding.exhausts, finding.otherwise, load, around if live else Surroundings())
