"""GRE, ESP, IGMP, ICMP, ARP, rare protocols, fragments: floods, and what looks like them."""

from fwtop.analysis.engine.hypothesis import CERTAIN, Hypothesis, Says, above, at_least, at_most, if_so, is_so
from fwtop.analysis.groups.fragments import (
    fragments,
    fragments_per_first,
    match_fragments,
    whole_datagrams,
)
from fwtop.analysis.groups.measures import (
    lengths,
    mean_length,
    pace,
    per_source,
    rate,
    same_length,
    sources,
    spoofed,
    threshold_ratio,
)
from fwtop.analysis.groups.protocols import (
    arp_packets,
    associations_per_source,
    different_spis,
    discovery,
    echo_replies,
    esp_packets,
    gre_packets,
    icmp_packets,
    igmp_packets,
    increasing_sequence,
    inner_repeats,
    link_senders,
    match_icmp,
    match_ip_protocol,
    rare_protocols,
    same_type,
    unhandled_protocol,
)

_ENOUGH = at_least(threshold_ratio, 1)  # as large as the least that counts
_TUNNEL = (
    at_most(sources, 9),
    at_most(per_source, 20_000),
    at_least(lengths, 11),
    at_most(same_length, 0.8),
    at_most(unhandled_protocol, 0.5),
)  # a few peers with packets of many sizes at a moderate rate
_UNLIKE_A_TUNNEL = (Says(sources, 2, -1.5, 10, 0.0), Says(rate, 50, -2.0, 500, 0.0))
_ICMP = (
    "{amount:ICMP packets} from {senders}, {same_type:percent} of type {type}, "
    "mean length {mean_length:.0f} bytes"
)

PROTOCOLS = (
    Hypothesis(
        "GRE flood", gre_packets, 2.6,
        kind="gre_flood",
        needs=(_ENOUGH,),
        lead="{amount:GRE packets} from {senders}, mean length {mean_length:.0f} bytes",
        evidence=_UNLIKE_A_TUNNEL,
        match=match_ip_protocol,
        stopped_by="dropping GRE, or all but that of known peers",
    ),
    Hypothesis("tunnel between networks (GRE)", gre_packets, CERTAIN, needs=_TUNNEL),
    Hypothesis(
        "tunnel with one kind of inner traffic (GRE)", gre_packets, CERTAIN,  # a backup, a ping
        needs=(
            at_most(sources, 9), at_most(per_source, 20_000), at_least(inner_repeats, 0.8),
            at_most(unhandled_protocol, 0.5),
        ),
    ),
    Hypothesis(
        "ESP flood", esp_packets, 2.6,
        kind="esp_flood",
        needs=(_ENOUGH,),
        lead="{amount:ESP packets} from {senders}, mean length {mean_length:.0f} bytes",
        evidence=_UNLIKE_A_TUNNEL,
        details=(different_spis,),
        match=match_ip_protocol,
        stopped_by="dropping ESP, or all but that of known peers",
    ),
    Hypothesis("tunnel between networks (ESP)", esp_packets, CERTAIN, needs=_TUNNEL),
    Hypothesis(
        "IPsec between peers", esp_packets, CERTAIN,  # sequence numbers rise (RFC 4303 2.2)
        needs=(
            at_most(associations_per_source, 4), is_so(increasing_sequence), at_most(unhandled_protocol, 0.5),
        ),
    ),
    Hypothesis(
        "IGMP flood", igmp_packets, 0.0,
        kind="igmp_flood",
        needs=(_ENOUGH,),
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
    Hypothesis(
        "flood of IP protocols that servers don't use", rare_protocols, 2.2,
        kind="ip_protocol_flood",
        title="Flood of {what}",
        needs=(_ENOUGH,),
        lead="{amount:packets of {what}} from {senders}, mean length {mean_length:.0f} bytes",
        evidence=(above(unhandled_protocol, 0.5, 2.0, "nothing on this host handles them"),),
        match=match_ip_protocol,
        stopped_by="dropping the protocols that this host doesn't serve",
    ),
    Hypothesis("tunnel between networks", rare_protocols, CERTAIN, needs=_TUNNEL),
    Hypothesis(
        "ICMP flood", icmp_packets, 2.6,
        kind="icmp_flood",
        needs=(_ENOUGH,),
        lead=_ICMP,
        match=match_icmp,
        stopped_by="a rate limit for the ICMP type",
    ),
    Hypothesis(
        "ICMP echo-reply reflection", icmp_packets, 3.6,
        kind="icmp_flood",
        needs=(_ENOUGH, is_so(echo_replies), at_least(same_type, 0.8), at_least(sources, 8)),
        lead=_ICMP,
        match=match_icmp,
        stopped_by="dropping echo replies",
    ),
    Hypothesis(
        "flood of ICMPv6 neighbour discovery", icmp_packets, 3.6,
        kind="icmp_flood",
        title="ICMPv6 {type} flood",
        needs=(_ENOUGH, is_so(discovery), at_least(same_type, 0.8)),
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
    Hypothesis(
        "ARP flood", arp_packets, 0.0,
        kind="arp_flood",
        needs=(_ENOUGH,),
        lead=(
            "{amount:ARP packets} ({rate:count}/s) from {link_senders:count} MAC addresses",
            "rules match IP, and without ARP nobody on the link reaches this host: the switch has to stop it "
            "(storm control, dynamic ARP inspection)",
        ),
        evidence=(
            Says(pace, 300, -3.0, 3_000, 2.5),
            Says(link_senders, 50, 0.0, 500, 1.5, "no link has so many neighbours"),
        ),
        stopped_by="the switch (storm control, dynamic ARP inspection)",
    ),
    Hypothesis(
        "hosts of a large link that look for each other", arp_packets, 1.0,
        needs=(at_most(pace, 999),),
    ),
    Hypothesis(
        "fragment flood", fragments, 2.0,
        kind="fragment_flood",
        title="Fragment flood",
        needs=(_ENOUGH,),
        lead="{amount:fragments} from {senders}, {later_fragments:percent} of them not the first, "
        "{pieces:.1f} per datagram, mean length {mean_length:.0f} bytes",
        match=match_fragments,
        stopped_by="dropping fragments",
    ),
    Hypothesis(
        "large datagrams of few servers", fragments, CERTAIN,  # NFS, video; 64 KiB have 46 pieces
        needs=(
            at_most(sources, 9), at_least(mean_length, 501), at_most(fragments_per_first, 46),
            at_least(whole_datagrams, 0.8),
        ),
    ),
)  # fmt: skip
