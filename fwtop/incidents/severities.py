"""How severe the incidents of a window are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from fwtop.analysis.context import AnalysisContext, Trait
from fwtop.analysis.severity import Load, Surroundings, severity_of
from fwtop.incidents.tracked import Tracked
from fwtop.incidents.views import Sighted
from fwtop.model.traffic.severity import Severity
from fwtop.model.traffic.snapshot import Incident


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
