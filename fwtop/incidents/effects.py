"""Which incidents are effects of others: of what fills a table, and of what fwtop's own rules cut off.

Whoever a rule cuts off doesn't stop at once: kernels send SYNs and data again, tools connect anew, and what
is open stays open until the server gives up, even after the rule. That looks like other attacks. Packets are
an effect of the incident that the rule is against as long as nearly all of them come from that one's sources,
to the same target, began after the rule, which drops them, are no more than the incident was, and bring
nothing near its end. Connections are one for as long as they last, whatever they occupy, if they come from
these sources and nearly all were opened while the rule was there: new ones that keep coming are an attack.
A flood of others at the same time is parted from what is sent again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec.structs import replace

from fwtop.analysis.classify import limited
from fwtop.analysis.connections import SILENT_SECONDS, Held
from fwtop.analysis.context import AnalysisContext, Finding, Trait
from fwtop.analysis.proposals.bystanders import has_return_path
from fwtop.analysis.spoofing import Spoof
from fwtop.analysis.window.counting import among
from fwtop.analysis.window.traffic import host_key
from fwtop.incidents.tracker import CEASES_SECONDS, Tracked
from fwtop.incidents.views import Sighted
from fwtop.model.rule import Rule
from fwtop.model.traffic.packets import F64, U64
from fwtop.model.traffic.severity import Harm
from fwtop.model.traffic.snapshot import Incident
from fwtop.render.numbers import plural

_NEARLY_ALL = 0.95  # of the packets, or connections
_MOST = 0.5  # of the packets: fwtop's rules drop them
_NO_MORE = 1.2  # times the incident's peak, for what sampling errs by
# Where tools go on at their pace: a connection was three packets or more, an attempt is six SYNs in a minute
_ATTEMPTS = 2.2
_COMPLETED = Spoof(0.0, ("the kernel has completed their connections",))
_CUT = "a rule cut its senders off"
_AGAIN = "that a rule cut off"
_REQUEST_SECONDS = 1.0  # after the handshake: what was opened just before a rule lost its request to it
_JUDGED_SECONDS = 2.0  # between two judgements, at most: how late the end of a rule is noticed
_FAIR = 0.25  # of their mean pace: they keep coming
_OPEN = "are still open; no new ones come"
_MOST_SOURCES = 32_768  # remembered of an incident
_KEPT = ("kind", "title", "spoofed", "uncertain", "sources", "completes")  # of one whose senders were cut off


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
    known = list(before)
    now = context.traffic.started + context.traffic.seconds
    for earlier in known:
        if (when := _cut_at(earlier, rules)) is not None:
            earlier.cut_peak_pps = earlier.cut_peak_pps or earlier.peak_pps
            earlier.cut_since, earlier.cut_until = when, now
    cut = [one for one in known if one.cut_until and not (one.shown and one.shown.effect_of)]
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


def parted(
    context: AnalysisContext, findings: Sequence[Finding], known: Iterable[Tracked], rules: Sequence[Rule]
) -> list[Finding]:
    """Part what senders send again that rules cut off from a flood of others: that is an attack of its own.

    Of another kind than what was cut: more senders of that one are the same attack, and as real as they were.
    """
    cut = [one for one in known if one.shown and not one.shown.effect_of and _cut_at(one, rules) is not None]
    return [part for finding in findings for part in _parted(context, _proven(context, finding, cut), cut)]


def _proven(context: AnalysisContext, finding: Finding, cut: Iterable[Tracked]) -> Finding:
    """Return requests as those of real senders if the kernel has completed their connections.

    So it has where they go on as the attack of such senders, of which a rule cut most off.
    """
    if not finding.requests:
        return finding
    same = [
        one.shown
        for one in cut
        if one.kind == finding.kind and one.match.dport == finding.match.dport and one.ended is None
    ]
    goes_on = any(shown is not None and not (shown.spoofed or shown.uncertain) for shown in same)
    if goes_on or (context.traffic.live and has_return_path(context, finding)):
        return replace(finding, spoof=_COMPLETED)
    return finding


def _parted(context: AnalysisContext, finding: Finding, cut: Iterable[Tracked]) -> list[Finding]:
    senders = [one.sources for one in cut if one.shown and one.shown.kind != finding.kind]
    if not senders or Trait.OPENINGS not in finding.traits or not len(finding.rows):
        return [finding]
    sources, weight = _sources(context, finding)
    theirs = among(sources, np.concatenate(senders))
    others = context.features(finding.rows[~theirs])
    least, floor = context.config.min_samples, context.config.flood_pps
    if theirs.sum() < least or context.prominence(others, floor_pps=floor, normal="tcp.syn") < 1:
        whole = float(weight.sum())
        return [replace(finding, retries=float(weight[theirs].sum()) >= _NEARLY_ALL * whole)]
    note = f"beside what others send {_AGAIN}"
    again = limited(context, finding, finding.rows[theirs], _AGAIN)
    return [limited(context, finding, others.rows, note), replace(again, retries=True)]


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
    cut: Iterable[Tracked],
) -> Incident:
    """Return an incident as what it is of those that rules have cut, itself if it is none of them."""
    causes = [one for one in cut if one.target == incident.target]
    senders = np.concatenate([one.sources for one in causes]) if causes else np.zeros(0, np.uint64)
    for cause in causes:
        may_be = cause is tracked or _began_after(cause, tracked, finding, context)
        may_be = may_be or _began_with(cause, tracked, incident)
        if not may_be or not _comes_of(cause, senders, context, finding, incident):
            continue
        if cause is not tracked:
            effect = _effect(incident, cause.id, cause.kind, cause.target)
            name = cause.shown.title if cause.shown is not None else cause.title
            title, evidence = f"Retries of {name}", incident.evidence
            if finding.held is not None:
                title = f"Connections left open by {name}"
                evidence = (f"{plural(finding.held.number, 'connection')} of its sources {_OPEN}", *evidence)
            severity = replace(incident.severity, harm=Harm.UNUSUAL)
            return replace(effect, title=title, severity=severity, evidence=evidence)
        shown = tracked.shown
        if shown is not None and shown.kind != incident.kind:  # the same senders, only without answers
            note = f"{_CUT}: what they still send looks like a {incident.title}"
            evidence = (note, *(one for one in shown.evidence if not one.startswith(_CUT)))
            same = {name: getattr(shown, name) for name in _KEPT}
            return replace(incident, evidence=evidence, **same)
    return incident


def _effect(incident: Incident, cause: int, kind: str, target: str) -> Incident:
    return replace(incident, effect_of=f"{kind} {target}".rstrip(), cause=cause)


def _cut_at(one: Tracked, rules: Iterable[Rule]) -> float | None:
    """Return when the first rule in force was installed during an incident whose sources are known."""
    last = np.inf if one.ended is None else one.ended + CEASES_SECONDS
    times = [rule.created for rule in rules if one.began <= rule.created <= last]
    return min(times) if times and len(one.sources) else None


def _began_after(cause: Tracked, tracked: Tracked, finding: Finding, context: AnalysisContext) -> bool:
    """Check whether the packets are younger than a rule, or nearly all connections are of its time."""
    if finding.held is None:
        return tracked.began >= cause.cut_since
    now = context.traffic.started + context.traffic.seconds
    age = finding.held.connections.since_received
    after = age <= now - cause.cut_since + _REQUEST_SECONDS
    return float((after & (age >= now - cause.cut_until - _JUDGED_SECONDS)).mean()) >= _NEARLY_ALL


def _began_with(cause: Tracked, tracked: Tracked, incident: Incident) -> bool:
    """Check whether what is new since a rule began as part of its cause: a slow attack opens by SYNs, too."""
    is_new = tracked.shown is None or tracked.shown.cause == cause.id
    return is_new and cause.began - 1.0 <= tracked.began < cause.cut_since and incident.mine_share >= _MOST


def _comes_of(
    cause: Tracked, senders: U64, context: AnalysisContext, finding: Finding, incident: Incident
) -> bool:
    """Check whether an incident is no more than its cause was, by sources that rules have cut."""
    holds = cause.shown.holds if cause.shown is not None else 0  # of each a SYN a second, as kernels do
    opens = Trait.OPENINGS in finding.traits and cause.shown is not None and cause.shown.completes
    if incident.pps > (_ATTEMPTS if opens else _NO_MORE) * max(cause.cut_peak_pps, holds):
        return False
    now = context.traffic.started + context.traffic.seconds
    stopped = incident.mine_share >= _MOST and now - cause.cut_until <= _JUDGED_SECONDS
    if finding.held is None and not stopped and not _ends_connections(context, finding):
        return False  # no rule against the cause stops it: another vector, or another attack in their names
    stays = cause.id != incident.id and finding.held is not None and not _keep_coming(finding.held, context)
    if incident.severity.is_near and not stays and incident.mine_share < _NEARLY_ALL:
        return False
    sources, weight = _sources(context, finding)
    known = float(weight[among(sources, senders)].sum())
    return known >= _NEARLY_ALL * float(weight.sum()) > 0


def _ends_connections(context: AnalysisContext, finding: Finding) -> bool:
    """Check whether nearly all packets end connections, as whoever gets no answer to a request does."""
    tcp, weight = context.tcp, context.traffic.weight[finding.rows]
    ends = (tcp.fin | tcp.rst)[finding.rows]
    return float(weight[ends].sum()) >= _NEARLY_ALL * float(weight.sum())


def _keep_coming(held: Held, context: AnalysisContext) -> bool:
    """Check whether connections were opened of late at a fair part of the pace at which all of them were."""
    age, seconds = held.connections.since_received, context.traffic.seconds
    youngest = float(age.min())
    late = youngest < seconds + SILENT_SECONDS and float((age < youngest + seconds).mean())
    return late * (float(age.max()) - youngest) >= _FAIR * seconds


def _remember(context: AnalysisContext, finding: Finding, tracked: Tracked) -> None:
    sources, _ = _sources(context, finding)
    if len(tracked.sources) < _MOST_SOURCES:
        tracked.sources = np.union1d(tracked.sources, sources)[:_MOST_SOURCES]


def _sources(context: AnalysisContext, finding: Finding) -> tuple[U64, F64]:
    """Return the source of each packet, or connection, hashed as those of connections are; and its weight."""
    if finding.held is not None:
        return finding.held.source, np.ones(len(finding.held.source))
    packets, rows = context.traffic.packets, finding.rows
    source = host_key(packets.family[rows], packets.src_hi[rows], packets.src_lo[rows])
    return source, context.traffic.weight[rows]
