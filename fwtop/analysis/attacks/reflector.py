"""Requests that make this host a reflector.

Sources: Rossow, "Amplification Hell" (NDSS 2014), 5 for what amplifiers see; Thomas et al., "1000 days of UDP
amplification DDoS attacks" (eCrime 2017), from honeypots.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fwtop.analysis.context import AnalysisContext, Trait, count
from fwtop.analysis.engine.entries import Group, Hypothesis, Least, Proof, cut
from fwtop.analysis.measures import payloads
from fwtop.analysis.measures.general import ENOUGH, per_source
from fwtop.analysis.parsers.services import BY_PORT, REFLECTED_REQUESTS
from fwtop.analysis.severity import Room
from fwtop.analysis.spoofing import Spoof
from fwtop.analysis.window.counting import among
from fwtop.analysis.window.traffic import UDP, flow_key
from fwtop.model.rule import Match
from fwtop.model.traffic.severity import Harm, Resource

_FORGED = Spoof(0.9, ("nobody reads so many answers: the requests carry the address of the victim",))


@cut(Proof.CONTENT)
def reflected_requests(context: AnalysisContext) -> Iterator[Group]:
    """Requests with large answers, by service."""
    packets = context.traffic.packets
    pool = context.udp & context.unclaimed & ~context.solicited
    for name, (port, shape) in REFLECTED_REQUESTS.items():
        rows = context.traffic.rows(np.asarray(pool & (packets.dport == port) & (packets.sport != port)))
        if len(rows) < context.config.min_samples:
            continue
        fits = shape(*context.traffic.heads(rows))
        features = context.features(rows[fits])
        least = Least("reflection_pps", "udp", shaped=True)
        title, fit = BY_PORT[port][0].title, float(fits.mean())
        notes = {"service": name, "service_title": title, "fit": fit, "used": port}
        yield Group(context, features, least, notes, known_spoof=_FORGED)


def answered(group: Group) -> list[str]:
    """Write how much this host answered, if the capture shows it."""
    traffic = group.context.traffic
    if not len(traffic.outbound):
        return []
    mine = among(flow_key(traffic.outbound, reverse=True), traffic.flow_key[group.packets.rows])
    if not mine.any():
        return []
    asked = float(traffic.packets.length[group.packets.rows].sum())
    factor = float(traffic.outbound.length[mine].sum()) / asked
    return [f"this host answered with {count(mine.sum())} packets, amplified {factor:.0f} times (bytes)"]


def match_requests(group: Group) -> Match:
    """Match requests to the service's port."""
    return Match(protocol=UDP, dport=group.notes["used"])


ENTRIES = (
    Hypothesis(
        "this host as a reflector", reflected_requests, 1.8,
        kind="{service}_amplification",
        exhausts=(Room(Resource.UPLINK, 2e6, "bps"),),  # 100 Mb/s: each byte is answered by 50
        otherwise=Harm.ABUSE,
        traits=Trait.REFLECTED | Trait.AMPLIFIED,
        title="{service_title} amplification through this host",
        # scanners ask once, clients now and then
        needs=(ENOUGH, per_source.at_least(10), payloads.valid_answers.at_least(0.5)),
        lead="{amount:{service_title} requests} in the name of {senders}, {per_source:count}/s each: "
        "this host is being used as a reflector",
        details=(answered,),
        match=match_requests,
        stopped_by="closing the service to the world; until then, a limit for each source",
    ),
)  # fmt: skip
