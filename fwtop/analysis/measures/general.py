"""Features of any group: size, rate, sources, lengths, ports, flows; and what neighbours say by ICMPv6."""

from __future__ import annotations

import numpy as np

from fwtop.analysis.context import NEW, AnalysisContext
from fwtop.analysis.engine.entries import Group, Least, feature, measured
from fwtop.analysis.measures import conversations, payloads
from fwtop.analysis.window.counting import among, distinct_values
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import ICMP6, Traffic
from fwtop.model.rule import Match
from fwtop.model.traffic.packets import Mask

_ALL = 0.98  # of the packets have a value: a rule may ask for it
_NEIGHBOURS = (130, 131, 132, 133, 134, 135, 136, 137, 143)
_TALKATIVE = (135, 136)  # solicitations and advertisements of neighbours: thousands live on large links
FEW = 5  # addresses whose owner one may ask: a script, a mirror, a load test, an office, a gateway
_FLOWS, _LONG = 32, 20  # of theirs, and packets of each: a transfer, a stream, a socket that reports
_PROGRAM_PPS, _USELESS_PPS = 1_000, 200  # video in high resolution; what one program asks or reports
_FEW = 64  # peers: in a class where more are usual, newcomers are no news


@feature("times the least that counts")
def threshold_ratio(group: Group) -> float:
    """The smallest of samples, share and peak rate, each divided by the least that is called an attack.

    The rate is compared with the configured floor and with the baseline of its traffic class.
    """
    least = group.least
    return group.context.prominence(
        group.packets,
        floor_pps=getattr(group.context.config, least.floor) * least.times,
        normal=least.normal,
        shaped=least.shaped,
    )


ENOUGH = threshold_ratio.at_least(1)  # as large as the least that counts


_PPS = "packets a second"
samples = measured("samples", "samples", "Sampled packets.", lambda it: it.n)
share = measured("share", "share", "Part of all arrived packets.", lambda it: it.share)
rate = measured("rate", _PPS, "Mean rate over the window.", lambda it: it.pps)
peak = measured("peak", _PPS, "Rate in the busiest second.", lambda it: it.peak_pps)
sources = measured("sources", "sources", "Distinct source addresses seen.", lambda it: it.sources)
per_source = measured("per_source", _PPS, "Mean rate of a source.", lambda it: it.pps_per_source)
mean_length = measured("mean_length", "bytes", "Mean IP length.", lambda it: it.mean_length)
lengths = measured("lengths", "lengths", "Distinct IP lengths.", lambda it: it.top("ip_length").distinct)
same_length = measured(
    "same_length", "share", "Part that has the most common IP length.", lambda it: it.top("ip_length").share
)
same_port = measured(
    "same_port", "share", "Part that goes to the most common destination port.",
    lambda it: it.top("dport").share,
)  # fmt: skip
port = measured("port", "port", "The most common destination port.", lambda it: it.top("dport").value)
ports = measured("ports", "ports", "Distinct destination ports.", lambda it: it.top("dport").distinct)
flow_singles = measured(
    "flow_singles", "share", "Part whose flow was sampled once.", lambda it: it.flow_singles
)


@feature("packets a second")
def pace(group: Group) -> float:
    """Rate in the busiest second, but no more than all packets: few packets at once are no rate."""
    return min(group.packets.peak_pps, group.packets.packets)


@feature("probability")
def spoofed(group: Group) -> float:
    """Probability that the source addresses are forged."""
    return group.spoof.probability


@feature("yes or no")
def few_long_flows(group: Group) -> float:
    """Whether few sources that aren't forged send in up to 32 flows, 20 packets or more in each.

    So do programs that stream, report or transfer: it harms once it takes what somebody else needs. Five may
    send any number of packets, more of them no more than such programs do: 1,000 a second each, 200 of what
    holds no information.
    """
    features = group.packets
    if features.likely_flows > min(_FLOWS, features.n / _LONG):
        return False
    useless = conversations.alike(features) or group[payloads.random_payload]
    pace = _USELESS_PPS if useless else _PROGRAM_PPS
    few = features.sources <= FEW or features.pps_per_source <= pace
    return few and group.spoof.probability < group.context.config.spoof_threshold


@feature("yes or no")
def observed_live(group: Group) -> float:
    """Whether the window was observed live, so that rates mean something; a capture may be cut or thinned."""
    return group.context.traffic.live


def of_protocol(group: Group, *, flags: tuple[int, int] | None = None) -> Match:
    """Match the protocol, and the ports that nearly all have."""
    top = {name: group.packets.top(name) for name in ("protocol", "dport", "sport")}
    return Match(
        protocol=top["protocol"].value,
        dport=top["dport"].value if top["dport"].share > _ALL else None,
        sport=top["sport"].value if top["sport"].share > _ALL and top["sport"].value else None,
        tcp_flags=flags,
    )


def to_port(group: Group) -> Match:
    """Match the protocol, and the destination port that nearly all have."""
    dport = group.packets.top("dport")
    return Match(
        protocol=group.packets.top("protocol").value, dport=dport.value if dport.share > _ALL else None
    )


def newcomers_first(context: AnalysisContext, every: Mask, normal: str) -> Group:
    """Return the packets of sources that the baseline of a class doesn't have; all if these are no attack.

    Beside a tunnel, a flood at its rate is as much as usual twice: as a whole it is no news, without the
    tunnel's packets it is.
    """
    usual, whole = context.baseline_sources(normal), np.flatnonzero(every)

    def compared() -> Group:
        return Group(context, context.features(whole), Least(normal=normal))

    known = np.isin(context.traffic.source_key[whole], usual if len(usual) <= _FEW else ())
    if not known.any() or known.all():
        return compared()
    group = Group(context, context.features(whole[~known]), Least(normal=NEW))
    group.otherwise = compared
    return group


def unclaimed_of(context: AnalysisContext, protocol: int) -> Mask:
    """Mark unclaimed packets of an IP protocol, without later fragments."""
    packets = context.traffic.packets
    return np.asarray((packets.protocol == protocol) & context.unclaimed & ~context.traffic.later)


def match_ip_protocol(group: Group) -> Match:
    """Match the protocol that nearly all have."""
    top = group.packets.top("protocol")
    return Match(protocol=top.value if top.share > 0.98 else None)


def is_discovery(icmp_type: int) -> bool:
    """Tell whether a type of ICMPv6 belongs to neighbour or multicast listener discovery."""
    return icmp_type in _NEIGHBOURS


def neighbours(traffic: Traffic) -> Mask:
    """Mark neighbour and multicast listener discovery (RFC 4861, 2710, 3810)."""
    packets = traffic.packets
    return np.asarray((packets.protocol == ICMP6) & among(packets.icmp_type, _NEIGHBOURS))


def neighbour_flood(traffic: Traffic, pps: float) -> Mask:
    """Mark neighbour discovery in numbers that no link has: router advertisements and the like (RFC 6104).

    `pps` is the least flood; tenfold for messages that each neighbour sends.
    """
    packets, flood = traffic.packets, np.zeros(len(traffic), np.bool_)
    common = neighbours(traffic)
    for kind in distinct_values(packets.icmp_type[common]).tolist():
        rows = common & (packets.icmp_type == kind)
        least = pps * (10 if kind in _TALKATIVE else 1)
        features = Features(traffic, np.flatnonzero(rows))
        if min(features.peak_pps, features.packets) >= least:
            flood |= rows
    return flood
