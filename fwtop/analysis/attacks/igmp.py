"""IGMP floods, and the reports of neighbours."""

from __future__ import annotations

from collections.abc import Iterator

from fwtop.analysis.context import AnalysisContext
from fwtop.analysis.engine.entries import Group, Hypothesis, Least, Proof, Says, above, at_most, cut
from fwtop.analysis.measures.general import ENOUGH, match_ip_protocol, pace, sources, spoofed, unclaimed_of
from fwtop.analysis.window.traffic import IGMP


@cut(Proof.VOLUME)
def igmp_packets(context: AnalysisContext) -> Iterator[Group]:
    """IGMP to this host's own addresses; routers and neighbours address groups (RFC 3376 4)."""
    mine = unclaimed_of(context, IGMP) & ~context.traffic.group
    yield Group(context, context.features(mine), Least(normal="other"))


ENTRIES = (
    Hypothesis(
        "IGMP flood", igmp_packets, 0.0,
        kind="igmp_flood",
        needs=(ENOUGH,),
        lead="{amount:IGMP packets} from {senders} to this host's own address; routers address groups",
        evidence=(
            Says(sources, 2, -2.0, 20, 1.5, "the neighbours of a link are fewer"),
            Says(pace, 10, -3.0, 300, 1.5, "{rate:count} packets/s: a router asks once in two minutes"),
            above(spoofed, 0.7, 1.5),
        ),
        match=match_ip_protocol,
        stopped_by="dropping IGMP to this host's own addresses: none is meant for them",
    ),
    Hypothesis("reports of neighbours", igmp_packets, 1.0, needs=(at_most(sources, 19), at_most(pace, 50))),
)  # fmt: skip
