"""ARP floods, and large links."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fwtop.analysis.context import AnalysisContext
from fwtop.analysis.engine.entries import Group, Hypothesis, Least, Proof, Says, at_most, cut, feature
from fwtop.analysis.measures.general import ENOUGH, pace
from fwtop.analysis.spoofing import Spoof

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
    Hypothesis(
        "ARP flood", arp_packets, 0.0,
        kind="arp_flood",
        needs=(ENOUGH,),
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
)  # fmt: skip
