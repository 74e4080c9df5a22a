"""Which incidents are effects of others: of what fills a table, and of what fwtop's own rules cut off.

Whoever a rule cuts off doesn't stop at once: kernels send SYNs and data again, tools connect anew, and what
is open stays open until the server gives up. That looks like other attacks. It is an effect of the incident
that the rule is against as long as nearly all of it comes from that one's sources, to the same target, began
after the rule, which drops its packets, is no more than the incident was, and brings nothing near its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec.structs import replace

from fwtop.analysis.context import AnalysisContext, Finding, Trait
from fwtop.analysis.window.counting import among
from fwtop.analysis.window.traffic import mix
from fwtop.incidents.tracked import Tracked
from fwtop.incidents.views import Sighted
from fwtop.model.rule import Rule
from fwtop.model.traffic.packets import F64, U64
from fwtop.model.traffic.severity import Harm
from fwtop.model.traffic.snapshot import Incident

_NEARLY_ALL = 0.95  # of the packets, or connections
_MOST = 0.5  # of the packets: fwtop's rules drop them
_NO_MORE = 1.2  # times the incident's peak, for what sampling errs by
_CUT = "a rule cut its senders off"
_REQUEST_SECONDS = 1.0  # after the handshake: what was opened just before a rule lost its request to it
_MOST_SOURCES = 32_768  # remembered of an incident


def with_effects(
    context: AnalysisContext,
    incidents: Sequence[Incident],
    named: Sequence[tuple[Tracked, Sighted]],
    before: Iterable[Tracked],
    rules: Sequence[Rule],
) -> list[Incident]:
    """Return the incidents of a window with their causes, which may be among those `before`.

    An effect of a rule is nobody's attack, and so only unusual.
    """
    cut = [(one, when) for one in before if (when := _cut_at(one, rules)) is not None]
    passing = [
        (sighted.fate.reaching_pps, incident.pps, incident.id, incident)
        for incident, (_, sighted) in zip(incidents, named, strict=True)
        if len(sighted.finding.rows)
    ]
    filling = max(passing)[-1] if passing else None
    made = []
    for incident, (tracked, sighted) in zip(incidents, named, strict=True):
        if Trait.FULL_TABLE in sighted.finding.traits:
            made.append(_filled(incident, tracked, filling))
            continue
        one = _cut_off(context, incident, tracked, sighted.finding, cut)
        if one is incident and not incident.spoofed:
            _remember(context, sighted.finding, tracked)
        made.append(one)
    return made


def _filled(incident: Incident, tracked: Tracked, by: Incident | None) -> Incident:
    """Return a full table as an effect of what fills it, or did while it drains."""
    if by is not None:
        return _effect(incident, by.id, by.kind, by.target)
    before = tracked.shown or incident
    return replace(incident, effect_of=before.effect_of, cause=before.cause)


def _cut_off(
    context: AnalysisContext,
    incident: Incident,
    tracked: Tracked,
    finding: Finding,
    cut: Iterable[tuple[Tracked, float]],
) -> Incident:
    """Return an incident as what it is of those that rules have cut, itself if it is none of them."""
    for cause, since in () if incident.severity.is_near else cut:
        may_be = cause is tracked or _began_after(since, tracked, finding, context)
        if not may_be or not _comes_of(cause, context, finding, incident):
            continue
        if cause is not tracked:
            effect = _effect(incident, cause.id, cause.kind, cause.target)
            name = cause.shown.title if cause.shown is not None else cause.title
            title = f"{'Retries of' if finding.held is None else 'Connections left open by'} {name}"
            severity = replace(incident.severity, harm=Harm.UNUSUAL)
            return replace(effect, title=title, severity=severity)
        shown = tracked.shown
        if shown is not None and shown.kind != incident.kind:  # the same senders, only without answers
            note = f"{_CUT}: what they still send looks like a {incident.title}"
            evidence = (note, *(one for one in shown.evidence if not one.startswith(_CUT)))
            return replace(incident, kind=shown.kind, title=shown.title, evidence=evidence)
    return incident


def _effect(incident: Incident, cause: int, kind: str, target: str) -> Incident:
    return replace(incident, effect_of=f"{kind} {target}".rstrip(), cause=cause)


def _cut_at(one: Tracked, rules: Iterable[Rule]) -> float | None:
    """Return when the first rule in force was installed during an incident whose sources are known."""
    times = [rule.created for rule in rules if one.began <= rule.created <= (one.ended or np.inf)]
    return min(times) if times and len(one.sources) else None


def _began_after(since: float, tracked: Tracked, finding: Finding, context: AnalysisContext) -> bool:
    """Check whether the packets, or nearly all connections, are younger than a rule."""
    if finding.held is None:
        return tracked.began >= since
    age = context.traffic.started + context.traffic.seconds - since + _REQUEST_SECONDS
    return float((finding.held.connections.since_received <= age).mean()) >= _NEARLY_ALL


def _comes_of(cause: Tracked, context: AnalysisContext, finding: Finding, incident: Incident) -> bool:
    holds = cause.shown.holds if cause.shown is not None else 0  # of each a SYN a second, as kernels do
    if incident.target != cause.target or incident.pps > _NO_MORE * max(cause.peak_pps, holds):
        return False
    if finding.held is None and incident.mine_share < _MOST:  # the rule doesn't stop it: another vector
        return False
    sources, weight = _sources(context, finding)
    known = float(weight[among(sources, cause.sources)].sum())
    return known >= _NEARLY_ALL * float(weight.sum()) > 0


def _remember(context: AnalysisContext, finding: Finding, tracked: Tracked) -> None:
    sources, _ = _sources(context, finding)
    if len(tracked.sources) < _MOST_SOURCES:
        tracked.sources = np.union1d(tracked.sources, sources)[:_MOST_SOURCES]


def _sources(context: AnalysisContext, finding: Finding) -> tuple[U64, F64]:
    """Return the source of each packet, or connection, hashed as those of connections are; and its weight."""
    if finding.held is not None:
        return finding.held.source, np.ones(len(finding.held.source))
    packets, rows = context.traffic.packets, finding.rows
    low = np.where(packets.family[rows] == 6, np.uint64(0), packets.src_lo[rows])
    return mix(packets.src_hi[rows], low), context.traffic.weight[rows]
