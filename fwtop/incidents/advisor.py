"""The advisor: turns windows of packets into incidents, signatures and proposals that last."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fwtop.analysis.classify import find_attacks
from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.context import AnalysisContext, Finding, Trait, make_context
from fwtop.analysis.engine.compete import Explained
from fwtop.analysis.engine.weights import calibrated
from fwtop.analysis.fate import fates
from fwtop.analysis.learning import Learner
from fwtop.analysis.memory import Baseline, Memory, normal_range, services_used
from fwtop.analysis.packet_signatures import SignatureSearch, packet_signatures
from fwtop.analysis.proposals.effect import Remainder, Remaining
from fwtop.analysis.proposals.normal import Normal, normal_traffic, with_unexplained
from fwtop.analysis.proposals.propose import Offer, offers
from fwtop.analysis.proposals.signatures import Signature, matches, signatures
from fwtop.analysis.proposals.upstream import pressure
from fwtop.analysis.severity import Load, Surroundings, severity_of
from fwtop.analysis.shown import JudgedTraffic, shown_payloads
from fwtop.analysis.sighting import seen_until, sighting_of
from fwtop.analysis.standing import Standing
from fwtop.analysis.window.features import Features
from fwtop.incidents.effects import parted, with_effects
from fwtop.incidents.held_off import HeldOff
from fwtop.incidents.tracker import Tracked, Tracker
from fwtop.incidents.views import Sighted, incident_of, resting
from fwtop.model.rule import Rule
from fwtop.model.traffic.packets import U64, NoOrigin, OriginLookup, Window
from fwtop.model.traffic.severity import Severity
from fwtop.model.traffic.snapshot import Incident, Judgement, Proposal, Tables
from fwtop.rehearsal.host import KnownPeers
from fwtop.rules.kinds import command_line

_KEEP_SECONDS = 2.5
_AT_ONCE = 8  # unchanged incidents whose proposals are renewed in one judgement: the rest waits for the next
_SHARE = 0.05  # of all packets: a larger change renews the proposals
_FACTOR = 1.25  # a larger change of the rate renews the proposals


class Premises(Struct, frozen=True):
    """What the proposals against an incident depend on, coarsely."""

    share: float
    pps: float
    spoofed: bool
    guess: bool
    overloaded: bool  # packets are lost before any rule, or the link is full
    rules: frozenset[str]  # ids of the active ones

    def still_hold(self, now: Premises) -> bool:
        """Test whether the same proposals apply."""
        same = ("spoofed", "guess", "overloaded", "rules")
        low, high = sorted((self.pps, now.pps))
        near = abs(self.share - now.share) <= _SHARE and high <= _FACTOR * low + 1.0
        return near and all(getattr(self, name) == getattr(now, name) for name in same)


class Advice(Struct, frozen=True):
    """The proposals against an incident, made at a time (Unix seconds)."""

    premises: Premises
    made: float
    signatures: Sequence[Signature]
    offers: Sequence[Offer]


class Advices:
    """Keeps and renews the advice on each incident. One per observation; not thread-safe."""

    def __init__(self) -> None:
        self._held: dict[int, Advice] = {}  # by the incident's id

    def renew(
        self,
        context: AnalysisContext,
        active: Sequence[Rule],
        named: Sequence[tuple[Tracked, Finding]],
        now: float,
    ) -> Normal:
        """Make proposals anew where an incident changed or they are old; return the normal traffic."""
        normal, overloaded = normal_traffic(context), bool(pressure(context))
        rules = frozenset(rule.id for rule in active)
        premises = {
            one.id: Premises(
                context.traffic.share(finding.rows),
                context.traffic.pps(finding.rows),
                finding.spoof.probability > context.config.spoof_threshold,
                normal.guess,
                overloaded,
                rules,
            )
            for one, finding in named
        }
        due = set(self._due(premises, now))
        remaining = Remaining.of(context, active, only_driver=overloaded) if due else Remaining((), ())
        left = {
            one.id: remainder
            for one, finding in named
            for remainder in remaining.attacks
            if one.id in due and remainder.whole is finding
        }
        found = {number: _signatures(context, one, normal) for number, one in left.items()}
        known = {one.id: found.get(one.id) or self._found(one.id) for one, _ in named}
        normal = with_unexplained(context, normal, matches({f.key: known[one.id] for one, f in named}))
        for number, one in left.items():
            before = tuple(offer.key for offer in self._held[number].offers) if number in self._held else ()
            made = offers(context, one, normal, found[number], before=before, remaining=remaining)
            self._held[number] = Advice(premises[number], now, found[number], made)
        return normal

    def _due(self, premises: Mapping[int, Premises], now: float) -> Iterator[int]:
        old = []
        for number, present in premises.items():
            held = self._held.get(number)
            if held is None or not held.premises.still_hold(present) or now < held.made:
                yield number
            elif now - held.made >= _KEEP_SECONDS:
                old.append((held.made, number))
        yield from (number for _, number in sorted(old)[:_AT_ONCE])

    def _found(self, number: int) -> Sequence[Signature]:
        return self._held[number].signatures if number in self._held else ()

    def signatures(self) -> Iterator[Signature]:
        """Yield the signatures of all incidents."""
        return chain.from_iterable(held.signatures for held in self._held.values())

    def proposals(self, incidents: Sequence[Tracked]) -> tuple[Proposal, ...]:
        """Return the proposals against incidents, given the worst first: best of each first.

        What nobody should take while there is another comes after these, and a paused attack's last while
        another is on.
        """
        self._held = {one.id: self._held[one.id] for one in incidents if one.id in self._held}
        vectors: list[list[tuple[str, Proposal]]] = []
        state: list[list[tuple[str, Proposal]]] = []
        paused: list[tuple[str, Proposal]] = []
        some_are_on = any(one.paused is None and not one.state for one in incidents)
        for one in incidents:
            if one.id in self._held:
                made = [
                    (f"{one.id} {offer.key}", replace(offer.proposal, incident=one.id))
                    for offer in self._held[one.id].offers
                ]
                if one.paused is not None and some_are_on:
                    paused += made
                else:
                    (state if one.state else vectors).append(made)
        first = [made[0] for made in vectors if made]
        rest = [item for made in vectors for item in made[1:]]
        against = [*first, *rest, *chain.from_iterable(state)]
        offered = dict([*sorted(against, key=lambda item: item[1].is_last_resort), *paused])
        return tuple(_numbered(one, key, number) for number, (key, one) in enumerate(offered.items(), 1))


def _signatures(context: AnalysisContext, left: Remainder, normal: Normal) -> Sequence[Signature]:
    return signatures(context, left.finding if left.is_worth_a_rule else left.whole, normal)


def _numbered(proposal: Proposal, key: str, number: int) -> Proposal:
    proposal = replace(proposal, number=number, key=key)
    if proposal.rule is None:
        return proposal
    rule = replace(proposal.rule, created_by=f"proposal {number}")
    return replace(proposal, fwtop=command_line(rule) or f"fwtop apply {number}", rule=rule)


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
        self.attackers: Sequence[U64] = ()  # as of AnalysisContext
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
        context.findings[:] = calibrated(
            context, parted(context, find_attacks(context), self._tracker.known, active)
        )
        self.explained = tuple(context.explained) if self._explains else ()
        now = window.started + window.seconds
        named = self._track(context, window, now, active)
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
        self.attackers = context.attackers = attackers
        self.learner.take(context, window, quiet=quiet)
        if context.sockets is not None:
            held = {one.id: sighted.finding.held for one, sighted in named if sighted.finding.held}
            remains = [group for number, group in held.items() if number in left]
            calm = quiet and len(remains) == len(held)
            self._memory.connections.learn(self.config, quiet=calm, left=remains)
        cut_off = [one.sources for one in self._tracker.known if one.cut_until >= now]
        self.standing = Standing.of(context, self._lookup, cut_off)
        normal = self._advices.renew(context, active, [(one, s.finding) for one, s in named], now)
        self.judged = JudgedTraffic.of(window, context, normal, by_id)
        # Against what a rule holds off nothing is left to do
        left_to_do = (one for one in incidents if one.held_pps is None)
        current = [one for one in left_to_do if one.ended is None or not window.live]
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

    def _track(
        self, context: AnalysisContext, window: Window, now: float, active: Sequence[Rule]
    ) -> list[Named]:
        """Find the incident of each finding."""
        sighted = [
            Sighted(finding, sighting_of(context, finding), fate)
            for finding, fate in zip(context.findings, fates(context, window), strict=True)
        ]
        sighted.sort(key=lambda one: one.seen.pulses[0])  # a later one may replace an earlier one

        held_off = HeldOff(context, active)

        def lasting(one: Tracked) -> float | None:
            if one.presence is None:
                return None
            # Clients' packets are like theirs, and a rule leaves these alone
            senders = one.sources if held_off.has_rule(one) else None
            return seen_until(context, one.match, one.presence, senders)

        seen = [one.seen for one in sighted]
        tracked = self._tracker.take(
            window.started, now, seen, window.intervals, live=window.live, lasting=lasting, held=held_off.pps
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
    # Of an attack that begins the mean of a window holds hardly any; what is bearable has to go on
    peak = Features(context.traffic, finding.rows).peak_pps if live else incident.peak_pps
    mean = context.traffic.pps(finding.rows) if live else incident.pps
    busiest = 1.0 if live and finding.bearable else max(peak / max(mean, 1e-9), 1.0)
    time = context.traffic.packets.time_ns[finding.rows]
    load = Load(
        incident.pps * busiest,
        incident.bps * busiest,
        finding.asked * busiest,
        finding.connections,
        incident.share,
        incident.reaching_share,
        bearable=finding.bearable,
        half=float(np.ptp(np.quantile(time, (0.25, 0.75)))) / 1e9 if live and len(time) else math.inf,
        window=context.traffic.seconds / busiest,
        least=is_proven and not live,
    )
    return severity_of(finding.exhausts, finding.otherwise, load, around if live else Surroundings())
