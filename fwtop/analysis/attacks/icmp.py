"""ICMP and ICMPv6 floods, reflected echo replies, and the pings of monitoring."""

from __future__ import annotations

from collections.abc import Iterator

from fwtop.analysis.context import AnalysisContext, Trait
from fwtop.analysis.engine.entries import (
    CERTAIN,
    Group,
    Hypothesis,
    Least,
    Proof,
    at_least,
    at_most,
    cut,
    feature,
    if_so,
    is_so,
)
from fwtop.analysis.measures.general import ENOUGH, pace, sources
from fwtop.analysis.parsers import icmp
from fwtop.analysis.window.tcp_view import errors_to_probes
from fwtop.analysis.window.traffic import ICMP, ICMP6
from fwtop.model.rule import Match

_NAMES = {
    0: "echo reply",
    3: "destination unreachable",
    8: "echo request",
    11: "time exceeded",
    13: "timestamp",
}
_NAMES6 = {
    1: "destination unreachable",
    3: "time exceeded",
    128: "echo request",
    129: "echo reply",
    133: "router solicitation",
    134: "router advertisement",
    135: "neighbour solicitation",
    136: "neighbour advertisement",
    137: "redirect",
}


@cut(Proof.VOLUME)
def icmp_packets(context: AnalysisContext) -> Iterator[Group]:
    """ICMP and ICMPv6, but neighbour discovery at its usual rate.

    Errors count only if they are most of the traffic: beside another attack they are its backscatter. Those
    that answer a scan by this host don't.
    """
    packets = context.traffic.packets
    ordinary = icmp.neighbours(context.traffic)
    ordinary &= ~icmp.neighbour_flood(context.traffic, context.config.flood_pps)
    family = (packets.protocol == ICMP) | ((packets.protocol == ICMP6) & ~ordinary)
    pool = family & context.unclaimed & (packets.family != 0) & ~errors_to_probes(context.traffic)
    every = context.features(pool)
    if not every.n:
        return
    weapon = every.share > 0.5 or every.pps_per_source > 50
    others = sum(context.traffic.share(finding.rows) for finding in context.findings)
    errors = context.traffic.icmp_errors
    features = every if weapon and others < 0.1 else context.features(pool & ~errors)
    top, six = features.top("icmp_type"), features.top("protocol").value != ICMP
    name = (_NAMES6 if six else _NAMES).get(top.value, str(top.value))
    yield Group(
        context,
        features,
        Least(normal="icmp"),
        {"type": name, "version": "v6" if six else ""},
        spoof_prior=-3.0 if name == "echo reply" else 0.0,
    )


@feature("share")
def same_type(group: Group) -> float:
    """Part that has the most common ICMP type."""
    return group.packets.top("icmp_type").share


@feature("yes or no")
def echo_replies(group: Group) -> float:
    """Whether the most common ICMP type is an echo reply."""
    return bool(group.notes["type"] == "echo reply")


@feature("yes or no")
def discovery(group: Group) -> float:
    """Whether the most common type is one of ICMPv6 neighbour discovery, which no router forwards."""
    return group.notes["version"] != "" and icmp.is_discovery(group.packets.top("icmp_type").value)


def match_icmp(group: Group) -> Match:
    """Match the protocol and the type that nearly all have."""
    protocol, top = group.packets.top("protocol"), group.packets.top("icmp_type")
    return Match(
        protocol=protocol.value if protocol.share > 0.98 else None,
        icmp_type=top.value if top.share > 0.95 else None,
        family=6 if group.notes["version"] else 4,
    )


_ICMP = (
    "{amount:ICMP packets} from {senders}, {same_type:percent} of type {type}, "
    "mean length {mean_length:.0f} bytes"
)

ENTRIES = (
    Hypothesis(
        "ICMP flood", icmp_packets, 2.6,
        kind="icmp_flood",
        traits=Trait.APART,
        needs=(ENOUGH,),
        lead=_ICMP,
        match=match_icmp,
        stopped_by="a rate limit for the ICMP type",
    ),
    Hypothesis(
        "ICMP echo-reply reflection", icmp_packets, 3.6,
        kind="icmp_flood",
        traits=Trait.APART,
        needs=(ENOUGH, is_so(echo_replies), at_least(same_type, 0.8), at_least(sources, 8)),
        lead=_ICMP,
        match=match_icmp,
        stopped_by="dropping echo replies",
    ),
    Hypothesis(
        "flood of ICMPv6 neighbour discovery", icmp_packets, 3.6,
        kind="icmp_flood",
        traits=Trait.APART,
        title="ICMPv6 {type} flood",
        needs=(ENOUGH, is_so(discovery), at_least(same_type, 0.8)),
        lead=_ICMP,
        evidence=(
            if_so(discovery, 0.5,
                  "they come from the link itself: the switch can stop them (RA Guard, RFC 6105)"),
        ),
        match=match_icmp,
        stopped_by="the switch (RA Guard)",
    ),
    Hypothesis(
        "pings of monitoring", icmp_packets, CERTAIN,
        needs=(at_most(sources, 19), at_most(pace, 199)),
    ),
)  # fmt: skip
