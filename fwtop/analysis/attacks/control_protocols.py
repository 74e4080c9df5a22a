"""Floods of ICMP, ICMPv6, IGMP and ARP, and what monitoring, neighbours and large links send."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from fwtop.analysis.context import AnalysisContext, Trait
from fwtop.analysis.engine.entries import CERTAIN, Group, Hypothesis, Least, Proof, cut, feature, measured
from fwtop.analysis.measures import general
from fwtop.analysis.measures.general import ENOUGH, match_ip_protocol, pace, sources, spoofed, unclaimed_of
from fwtop.analysis.severity import CORE, LINK
from fwtop.analysis.spoofing import Spoof
from fwtop.analysis.window.tcp_view import errors_to_probes
from fwtop.analysis.window.traffic import ICMP, ICMP6, IGMP
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
    ordinary = general.neighbours(context.traffic)
    ordinary &= ~general.neighbour_flood(context.traffic, context.config.flood_pps)
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
    notes = {"type": name, "version": "v6" if six else ""}
    prior = -3.0 if name == "echo reply" else 0.0
    yield Group(context, features, Least(normal="icmp"), notes, spoof_prior=prior)


same_type = measured("same_type", "share",
    "Part that has the most common ICMP type.", lambda packets: packets.top("icmp_type").share)  # fmt: skip


@feature("yes or no")
def echo_replies(group: Group) -> float:
    """Whether the most common ICMP type is an echo reply."""
    return bool(group.notes["type"] == "echo reply")


@feature("yes or no")
def discovery(group: Group) -> float:
    """Whether the most common type is one of ICMPv6 neighbour discovery, which no router forwards."""
    return group.notes["version"] != "" and general.is_discovery(group.packets.top("icmp_type").value)


def match_icmp(group: Group) -> Match:
    """Match the protocol and the type that nearly all have."""
    protocol, top = group.packets.top("protocol"), group.packets.top("icmp_type")
    return Match(
        protocol=protocol.value if protocol.share > 0.98 else None,
        icmp_type=top.value if top.share > 0.95 else None,
        family=6 if group.notes["version"] else 4,
    )


_icmp_flood = partial(
    Hypothesis,
    of=icmp_packets,
    kind="icmp_flood",
    exhausts=(CORE, LINK),
    traits=Trait.APART,
    lead="{amount:ICMP packets} from {senders}, {same_type:percent} of type {type}, "
    "mean length {mean_length:.0f} bytes",
    match=match_icmp,
)


@cut(Proof.VOLUME)
def igmp_packets(context: AnalysisContext) -> Iterator[Group]:
    """IGMP to this host's own addresses; routers and neighbours address groups (RFC 3376 4)."""
    mine = unclaimed_of(context, IGMP) & ~context.traffic.group
    yield Group(context, context.features(mine), Least(normal="other"))


_ARP = 0x0806
_UNKNOWN = Spoof(0.0, ())  # ARP has no IP header whose source could be forged
_LINK_ADDRESSES = 12  # bytes: destination and source of an Ethernet frame
_STORM = 3.0  # times the rate of the least flood: large links have hundreds of requests a second


@cut(Proof.VOLUME)
def arp_packets(context: AnalysisContext) -> Iterator[Group]:
    """ARP (RFC 826): requests and answers of a link, which no address of IP tells apart."""
    packets = context.traffic.packets
    features = context.features((packets.family == 0) & (packets.ethertype == _ARP) & context.unclaimed)
    if features.n:
        yield Group(context, features, Least(normal="not_ip", times=_STORM), known_spoof=_UNKNOWN)


@feature("MAC addresses")
def link_senders(group: Group) -> float:
    """Distinct source addresses of the Ethernet frames, as far as sampled; 1 where a capture has none."""
    packets, rows = group.context.traffic.packets, group.packets.rows
    framed = rows[packets.captured[rows] >= _LINK_ADDRESSES]
    senders = packets.data[framed, 6:_LINK_ADDRESSES] if packets.data.shape[1] >= _LINK_ADDRESSES else framed
    return float(max(len(np.unique(senders, axis=0)), 1))


ENTRIES = (
    _icmp_flood(
        "ICMP flood", prior=2.6,
        bearable=general.few_long_flows,
        needs=(ENOUGH,),
        stopped_by="a rate limit for the ICMP type",
    ),
    _icmp_flood(
        "ICMP echo-reply reflection", prior=3.6,
        needs=(ENOUGH, echo_replies.yes, same_type.at_least(0.8), sources.at_least(8)),
        stopped_by="dropping echo replies",
    ),
    _icmp_flood(
        "flood of ICMPv6 neighbour discovery", prior=3.6,
        title="ICMPv6 {type} flood",
        needs=(ENOUGH, discovery.yes, same_type.at_least(0.8)),
        evidence=(
            discovery.if_so(0.5,
                  "they come from the link itself: the switch can stop them (RA Guard, RFC 6105)"),
        ),
        stopped_by="the switch (RA Guard)",
    ),
    Hypothesis("pings of monitoring", icmp_packets, CERTAIN, needs=(sources.at_most(19), pace.at_most(199))),
    Hypothesis(
        "IGMP flood", igmp_packets, 0.0,
        kind="igmp_flood",
        exhausts=(CORE,),
        needs=(ENOUGH,),
        lead="{amount:IGMP packets} from {senders} to this host's own address; routers address groups",
        evidence=(
            sources.says(2, -2.0, 20, 1.5, "the neighbours of a link are fewer"),
            pace.says(10, -3.0, 300, 1.5, "{rate:count} packets/s: a router asks once in two minutes"),
            spoofed.above(0.7, 1.5),
        ),
        match=match_ip_protocol,
        stopped_by="dropping IGMP to this host's own addresses: none is meant for them",
    ),
    Hypothesis("reports of neighbours", igmp_packets, 1.0, needs=(sources.at_most(19), pace.at_most(50))),
    Hypothesis(
        "ARP flood", arp_packets, 0.0,
        kind="arp_flood",
        exhausts=(CORE,),
        needs=(ENOUGH,),
        lead=(
            "{amount:ARP packets} ({rate:count}/s) from {link_senders:count} MAC addresses",
            "rules match IP, and without ARP nobody on the link reaches this host: the switch has to stop it "
            "(storm control, dynamic ARP inspection)",
        ),
        evidence=(
            pace.says(300, -3.0, 3_000, 2.5),
            link_senders.says(50, 0.0, 500, 1.5, "no link has so many neighbours"),
        ),
        stopped_by="the switch (storm control, dynamic ARP inspection)",
    ),
    Hypothesis(
        "hosts of a large link that look for each other", arp_packets, 1.0,
        needs=(pace.at_most(999),),
    ),
)  # fmt: skip
