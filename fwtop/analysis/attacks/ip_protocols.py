"""Floods of GRE, ESP, and IP protocols that servers don't use, and the tunnels that look like them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fwtop.analysis.context import AnalysisContext
from fwtop.analysis.engine.entries import CERTAIN, Group, Hypothesis, Least, Proof, cut, feature
from fwtop.analysis.measures.general import (
    ENOUGH,
    lengths,
    match_ip_protocol,
    newcomers_first,
    per_source,
    rate,
    same_length,
    sources,
    unclaimed_of,
)
from fwtop.analysis.severity import CORE, LINK
from fwtop.analysis.window.counting import among, distinct_values
from fwtop.analysis.window.traffic import ESP, GRE, ICMP, ICMP6, IGMP, TCP, UDP, distinct_texts, mix, payload
from fwtop.model.traffic.packets import U32, U64, Mask

# IPv6 extension headers, EIGRP, OSPF, PIM, VRRP: control traffic of a network
_HOUSEKEEPING = (0, 59, 88, 89, 103, 112)
_NEIGHBOURS = 20
_MANY = 20  # protocols at once: no network uses that many
_DOZEN, _RISING = 12, 0.95  # numbers drawn at random rise as often once in 4,000; packets overtake each other
_NO_PROTOCOL = "IP_NOPROTO"  # reason of a drop (include/net/dropreason-core.h)


@cut(Proof.VOLUME)
def gre_packets(context: AnalysisContext) -> Iterator[Group]:
    """GRE packets; beside known tunnels those of other sources."""
    yield newcomers_first(context, unclaimed_of(context, GRE), "gre")


@cut(Proof.VOLUME)
def esp_packets(context: AnalysisContext) -> Iterator[Group]:
    """ESP packets (IPsec); beside known peers those of other sources."""
    yield newcomers_first(context, unclaimed_of(context, ESP), "esp")


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


@feature("share")
def inner_repeats(group: Group) -> float:
    """Part of the GRE packets' inner IPv4 addresses that come again; 0 unless nearly all hold IPv4."""
    matrix, held = payload(group.context.traffic.packets, group.packets.sample, 24)
    inner = matrix[(held == 24) & (matrix[:, 2] == 8) & (matrix[:, 3] == 0), 16:24]
    told = len(inner) > 0.9 * len(matrix)
    return 1 - len(distinct_values(distinct_texts(inner))) / len(inner) if told else 0.0


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


_TUNNEL = (
    sources.at_most(9),
    per_source.at_most(20_000),
    lengths.at_least(11),
    same_length.at_most(0.8),
    unhandled_protocol.at_most(0.5),
)  # a few peers with packets of many sizes at a moderate rate

ENTRIES = (
    *(
        explanation
        for name, cut, details in (("GRE", gre_packets, ()), ("ESP", esp_packets, (different_spis,)))
        for explanation in (
            Hypothesis(
                f"{name} flood", cut, 2.6,
                kind=f"{name.lower()}_flood",
                exhausts=(LINK, CORE),
                needs=(ENOUGH,),
                lead=f"{{amount:{name} packets}} from {{senders}}, mean length {{mean_length:.0f}} bytes",
                evidence=(sources.says(2, -1.5, 10, 0.0), rate.says(50, -2.0, 500, 0.0)),  # unlike a tunnel
                details=details,
                match=match_ip_protocol,
                stopped_by=f"dropping {name}, or all but that of known peers",
            ),
            Hypothesis(f"tunnel between networks ({name})", cut, CERTAIN, needs=_TUNNEL),
        )
    ),
    Hypothesis(
        "tunnel with one kind of inner traffic (GRE)", gre_packets, CERTAIN,  # a backup, a ping
        needs=(
            sources.at_most(9), per_source.at_most(20_000), inner_repeats.at_least(0.8),
            unhandled_protocol.at_most(0.5),
        ),
    ),
    Hypothesis(
        "IPsec between peers", esp_packets, CERTAIN,  # sequence numbers rise (RFC 4303 2.2)
        needs=(associations_per_source.at_most(4), increasing_sequence.yes, unhandled_protocol.at_most(0.5)),
    ),
    Hypothesis(
        "flood of IP protocols that servers don't use", rare_protocols, 2.2,
        kind="ip_protocol_flood",
        exhausts=(LINK, CORE),
        title="Flood of {what}",
        needs=(ENOUGH,),
        lead="{amount:packets of {what}} from {senders}, mean length {mean_length:.0f} bytes",
        evidence=(unhandled_protocol.above(0.5, 2.0, "nothing on this host handles them"),),
        match=match_ip_protocol,
        stopped_by="dropping the protocols that this host doesn't serve",
    ),
    Hypothesis("tunnel between networks", rare_protocols, CERTAIN, needs=_TUNNEL),
)  # fmt: skip
