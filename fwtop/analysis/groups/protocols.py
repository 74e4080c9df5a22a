"""Groups of GRE, ESP, IGMP, ICMP, ARP and rarer protocols."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fwtop.analysis.context import AnalysisContext
from fwtop.analysis.engine.group import Group, Least, Proof, cut, feature
from fwtop.analysis.groups.newcomers import newcomers_first
from fwtop.analysis.parsers import icmp
from fwtop.analysis.spoofing import Spoof
from fwtop.analysis.window.counting import among, distinct_values
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.own_probes import errors_to_probes
from fwtop.analysis.window.traffic import (
    ESP,
    GRE,
    ICMP,
    ICMP6,
    IGMP,
    TCP,
    UDP,
    distinct_texts,
    mix,
    payload,
)
from fwtop.model.rule import Match
from fwtop.model.traffic.packets import U32, U64, Mask

# IPv6 extension headers, EIGRP, OSPF, PIM, VRRP: control traffic of a network
_HOUSEKEEPING = (0, 59, 88, 89, 103, 112)
_ARP = 0x0806
_UNKNOWN = Spoof(0.0, ())  # ARP has no IP header whose source could be forged
_LINK_ADDRESSES = 12  # bytes: destination and source of an Ethernet frame
_NEIGHBOURS = 20
_MANY = 20  # protocols at once: no network uses that many
_STORM = 3.0  # times the rate of the least flood: large links have hundreds of requests a second
_DOZEN, _RISING = 12, 0.95  # numbers drawn at random rise as often once in 4,000; packets overtake each other
_NO_PROTOCOL = "IP_NOPROTO"  # reason of a drop (include/net/dropreason-core.h)
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
def gre_packets(context: AnalysisContext) -> Iterator[Group]:
    """GRE packets; beside known tunnels those of other sources."""
    yield newcomers_first(context, _mask_of(context, GRE), "gre")


@cut(Proof.VOLUME)
def esp_packets(context: AnalysisContext) -> Iterator[Group]:
    """ESP packets (IPsec); beside known peers those of other sources."""
    yield newcomers_first(context, _mask_of(context, ESP), "esp")


@cut(Proof.VOLUME)
def igmp_packets(context: AnalysisContext) -> Iterator[Group]:
    """IGMP to this host's own addresses; routers and neighbours address groups (RFC 3376 4)."""
    every = _of(context, IGMP).rows
    yield Group(context, context.features(every[~context.traffic.group[every]]), Least(normal="other"))


def _of(context: AnalysisContext, protocol: int) -> Features:
    return context.features(_mask_of(context, protocol))


def _mask_of(context: AnalysisContext, protocol: int) -> Mask:
    packets = context.traffic.packets
    return np.asarray((packets.protocol == protocol) & context.unclaimed & ~context.traffic.later)


@cut(Proof.VOLUME)
def rare_protocols(context: AnalysisContext) -> Iterator[Group]:
    """IP protocols that servers don't use, without the control traffic of routers.

    If their numbers are random, those that have a cut of their own are part of them.
    """
    packets = context.traffic.packets
    known = among(packets.protocol, (TCP, UDP, ICMP, ICMP6, IGMP, GRE, ESP))
    pool = ~known & context.unclaimed & (packets.family != 0) & ~context.traffic.later
    features = context.features(pool & ~_housekeeping(context, pool))
    if features.top("protocol").distinct >= _MANY:
        rest = context.unclaimed & ~among(packets.protocol, (TCP, UDP)) & (packets.family == 4)
        features = context.features(np.asarray(rest & ~context.traffic.later))
    top = features.top("protocol")
    what = f"IP protocol {top.value}" if top.share > 0.9 else f"{top.distinct} IP protocols"
    yield Group(context, features, Least(normal="other"), {"what": what})


def _housekeeping(context: AnalysisContext, pool: Mask) -> Mask:
    """Mark control traffic of routers, and what few neighbours send to multicast groups, as PGM does.

    Of control traffic to hosts, that of the few neighbours of a link.
    """
    packets, to_group = context.traffic.packets, context.traffic.group
    mask = np.asarray(pool & among(packets.protocol, _HOUSEKEEPING))
    unicast = context.features(mask & ~to_group)
    if unicast.sources > _NEIGHBOURS:
        mask[unicast.rows] = False
    multicast = context.features(pool & to_group)
    if multicast.sources <= _NEIGHBOURS:
        mask[multicast.rows] = True
    return mask


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


@feature("share")
def unhandled_protocol(group: Group) -> float:
    """Part that this host drops because nothing here handles the IP protocol: no end of a tunnel is here."""
    context, packets = group.context, group.context.traffic.packets
    protocols = distinct_values(packets.protocol[group.packets.rows])
    count = 0.0
    for drop in context.counters.drops:
        if drop.reason == _NO_PROTOCOL and drop.code is not None:
            rows = context.dropped.reason == drop.code
            whole, mine = context.dropped.weight[rows], np.isin(context.dropped.protocol[rows], protocols)
            count += drop.packets * float(whole[mine].sum()) / max(float(whole.sum()), 1e-9)
    return min(1.0, count / group.packets.packets)


def match_icmp(group: Group) -> Match:
    """Match the protocol and the type that nearly all have."""
    protocol, top = group.packets.top("protocol"), group.packets.top("icmp_type")
    return Match(
        protocol=protocol.value if protocol.share > 0.98 else None,
        icmp_type=top.value if top.share > 0.95 else None,
        family=6 if group.notes["version"] else 4,
    )


def match_ip_protocol(group: Group) -> Match:
    """Match the protocol that nearly all have."""
    top = group.packets.top("protocol")
    return Match(protocol=top.value if top.share > 0.98 else None)


@feature("share")
def inner_repeats(group: Group) -> float:
    """Part of the GRE packets' inner IPv4 addresses that come again; 0 unless nearly all hold IPv4."""
    matrix, held = payload(group.context.traffic.packets, group.packets.sample, 24)
    inner = matrix[(held == 24) & (matrix[:, 2] == 8) & (matrix[:, 3] == 0), 16:24]
    if len(inner) <= 0.9 * len(matrix):
        return 0.0
    return 1 - len(distinct_values(distinct_texts(inner))) / len(inner)


@feature("SPIs")
def associations_per_source(group: Group) -> float:
    """ESP security parameter indexes of each source; a peer uses one each way, two while rekeying."""
    association, _ = _associations(group)
    return len(distinct_values(association)) / group.packets.sources


@feature("yes or no")
def increasing_sequence(group: Group) -> float:
    """Whether the sequence numbers of each security association rise (RFC 4303 2.2), of a dozen or more."""
    association, number = _associations(group)
    order = np.lexsort((group.context.traffic.packets.time_ns[group.packets.rows], association))
    same = association[order][1:] == association[order][:-1]
    rises = np.diff(number[order].astype(np.int64))[same] > 0
    return len(rises) >= _DOZEN and float(rises.mean()) > _RISING


def _associations(group: Group) -> tuple[U64, U32]:
    """Return the security association and the sequence number of each ESP packet."""
    traffic, rows = group.context.traffic, group.packets.rows
    words = np.ascontiguousarray(payload(traffic.packets, rows, 8)[0]).view(">u4")
    return mix(traffic.source_key[rows], words[:, 0].astype(np.uint64)), words[:, 1].astype(np.uint32)


def different_spis(group: Group) -> list[str]:
    """Write how many security associations there are."""
    matrix, _ = payload(group.context.traffic.packets, group.packets.sample, 8)
    first = np.ascontiguousarray(matrix[:, :4]).view(">u4").reshape(-1)
    return [f"{len(distinct_values(first)):,} different SPIs in {len(first):,} packets"]
