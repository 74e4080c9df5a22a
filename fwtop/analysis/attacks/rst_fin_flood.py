"""RST and FIN floods, and the ends of connections that look like them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from fwtop.analysis.context import AnalysisContext, Trait
from fwtop.analysis.engine.entries import (
    CERTAIN,
    Group,
    Hypothesis,
    Least,
    Proof,
    Says,
    at_least,
    at_most,
    cut,
    feature,
)
from fwtop.analysis.measures.general import ENOUGH, of_protocol, rate, same_port, share, sources
from fwtop.analysis.measures.tcp import OUTSIDE, constant_fields, stray
from fwtop.analysis.window.tcp_view import ACK, FIN, RST, SYN

_EPHEMERAL = 32_768  # the first port of Linux for connections of its own


@cut(Proof.ENDS)
def stray_resets(context: AnalysisContext) -> Iterator[Group]:
    """RSTs that belong to no connection."""
    yield Group(context, context.features(stray(context, context.tcp.rst)), Least(normal="tcp.rst"))


@cut(Proof.ENDS)
def stray_fins(context: AnalysisContext) -> Iterator[Group]:
    """FINs that belong to no connection."""
    yield Group(context, context.features(stray(context, context.tcp.fin)), Least(normal="tcp.fin"))


@feature("packets")
def openings(group: Group) -> float:
    """SYNs and SYN-ACKs that could explain the ends of connections, each once.

    Those of a SYN flood or a reflection began none. In a thin sample, which holds ends of real connections,
    these are estimated from their other packets.
    """
    context = group.context
    tcp, weight = context.tcp, context.traffic.weight
    began = float(weight[(tcp.syn | tcp.syn_ack) & context.unclaimed].sum())
    if context.sparse:
        began = 2 * began + float(weight[tcp.ack & context.unclaimed].sum())
    return began


@feature("times")
def openings_per_end(group: Group) -> float:
    """Connections that were opened, for each packet that ends one."""
    return group[openings] / group.packets.packets


@feature("share")
def refusals(group: Group) -> float:
    """Part that closed ports send to a client's: RST with ACK, number 0, window 0 (RFC 9293 3.10.7.1)."""
    packets, rows = group.context.traffic.packets, group.packets.rows
    closed = ((packets.tcp_flags[rows] & ACK) > 0) & (packets.tcp_seq[rows] == 0)
    return float((closed & (packets.tcp_window[rows] == 0) & (packets.dport[rows] >= _EPHEMERAL)).mean())


match_rst = partial(of_protocol, flags=(RST | SYN, RST))


match_fin = partial(of_protocol, flags=(FIN | SYN | RST, FIN))


_ENDS = "but only {openings:count} SYNs or SYN-ACKs that could explain them"

ENTRIES = (
    Hypothesis(
        "RST flood", stray_resets, 2.0,
        kind="rst_flood",
        traits=Trait.APART,
        needs=(ENOUGH, at_least(share, 0.02)),
        lead=("{amount:RST packets} from {senders}, " + _ENDS, "{same_port:percent} go to port {port:.0f}"),
        details=(constant_fields,),
        match=match_rst,
        stopped_by=OUTSIDE,
    ),
    Hypothesis(
        "refusals of a scan that this host makes", stray_resets, 0.0,
        needs=(at_least(refusals, 0.9), at_least(same_port, 0.9)),
        evidence=(Says(rate, 2_000, 5.0, 20_000, -2.0),),
    ),
    Hypothesis(
        "FIN flood", stray_fins, 2.0,
        kind="fin_flood",
        traits=Trait.APART,
        needs=(ENOUGH, at_least(share, 0.02)),
        lead=("{amount:FIN packets} from {senders}, " + _ENDS, "{same_port:percent} go to port {port:.0f}"),
        details=(constant_fields,),
        match=match_fin,
        stopped_by=OUTSIDE,
    ),
    *(
        explanation
        for cut in (stray_resets, stray_fins)
        for explanation in (
            Hypothesis("ends of as many connections", cut, CERTAIN, needs=(at_least(openings_per_end, 1),)),
            Hypothesis(
                "ends of connections of a few hosts", cut, CERTAIN,
                needs=(at_most(sources, 2), at_most(rate, 299)),
            ),
        )
    ),
)  # fmt: skip
