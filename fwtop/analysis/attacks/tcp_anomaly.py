"""TCP packets with flags that no stack sends (RFC 9293)."""

from __future__ import annotations

from collections.abc import Iterator

from fwtop.analysis.context import AnalysisContext, Trait
from fwtop.analysis.engine.entries import Group, Hypothesis, Least, Proof, cut, feature
from fwtop.analysis.measures.general import ENOUGH, of_protocol
from fwtop.analysis.window.tcp_view import flag_names
from fwtop.model.rule import Match


@cut(Proof.HANDSHAKES)
def invalid_flags(context: AnalysisContext) -> Iterator[Group]:
    """TCP packets with flags that no stack sends: Xmas, null, SYN+FIN and the like."""
    features = context.features(context.tcp.odd & context.unclaimed)
    if features.n:
        flags = flag_names(features.top("tcp_flags").value)
        yield Group(context, features, Least("reflection_pps", "tcp.odd", shaped=True), {"flags": flags})


@feature("share")
def same_flags(group: Group) -> float:
    """Part that has the most common TCP flags."""
    return group.packets.top("tcp_flags").share


def match_flags(group: Group) -> Match:
    """Match ports and flags that nearly all have."""
    top = group.packets.top("tcp_flags")
    return of_protocol(group, flags=(63, top.value & 63) if top.share > 0.9 else None)


ENTRIES = (
    Hypothesis(
        "TCP packets with invalid flags", invalid_flags, 2.9,
        kind="tcp_anomaly",
        traits=Trait.ODD_FLAGS,
        title="TCP packets with invalid flags ({flags})",
        needs=(ENOUGH,),
        lead="{amount:TCP packets with invalid flags}; {same_flags:percent} have {flags}",
        match=match_flags,
        stopped_by="dropping these flags: no connection needs them",
    ),
)  # fmt: skip
