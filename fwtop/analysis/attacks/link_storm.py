"""Storms of multicast and broadcast packets, by which hosts of a link find each other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fwtop.analysis.context import AnalysisContext
from fwtop.analysis.engine.entries import Group, Hypothesis, Least, Proof, cut
from fwtop.analysis.measures.general import ENOUGH, match_ip_protocol, pace, sources, to_port
from fwtop.analysis.severity import CORE
from fwtop.analysis.spoofing import Spoof
from fwtop.analysis.window.counting import among
from fwtop.analysis.window.traffic import IGMP, UDP
from fwtop.model.rule import Match
from fwtop.model.traffic.packets import Mask

# They are multicast or broadcast; subscribed streams, which may have any rate, go to other ports
_NAMES = {
    67: "DHCP",
    68: "DHCP",
    137: "NetBIOS",
    138: "NetBIOS",
    546: "DHCPv6",
    547: "DHCPv6",
    1900: "SSDP",
    3702: "WS-Discovery",
    5353: "mDNS",
    5355: "LLMNR",
}
_OF_LINK_4 = 0xE00000  # 224.0.0.0/24: no router forwards it (RFC 5771 4)
_STORM = 3.0  # times the rate of the least flood: a link of a thousand hosts has hundreds a second
_ANYBODY = Spoof(1.0, ("any host of the link can put any address into them",))


@cut(Proof.VOLUME)
def link_groups(context: AnalysisContext) -> Iterator[Group]:
    """UDP and IGMP to multicast and broadcast addresses of the link, or to ports of discovery; one port's."""
    packets = context.traffic.packets
    pool = context.traffic.group & among(packets.protocol, (UDP, IGMP)) & ~context.traffic.later
    pool &= context.unclaimed & (_to_link(context) | among(packets.dport, tuple(_NAMES)))
    top = context.features(pool).top("dport") if pool.any() else None
    if top is not None:
        features = context.features(pool & (packets.dport == top.value))
        igmp = features.top("protocol").value == IGMP
        what = "IGMP" if igmp else _NAMES.get(top.value, f"UDP to port {top.value}")
        yield Group(
            context, features, Least(normal="other", times=_STORM), {"what": what}, known_spoof=_ANYBODY
        )


def _to_link(context: AnalysisContext) -> Mask:
    """Mark packets to broadcast addresses and to groups that no router forwards (RFC 5771 4, 4291 2.7)."""
    packets = context.traffic.packets
    multicast = packets.dst_lo >> np.uint64(28) == 0xE
    four = ~multicast | (packets.dst_lo >> np.uint64(8) == _OF_LINK_4)
    six = packets.dst_hi >> np.uint64(48) & np.uint64(0xFF0F) == 0xFF02
    return np.asarray(np.where(packets.family == 4, four, six))


def match_storm(group: Group) -> Match:
    """Match the port that nearly all have, or IGMP."""
    return match_ip_protocol(group) if group.notes["what"] == "IGMP" else to_port(group)


ENTRIES = (
    Hypothesis(
        "storm of multicast or broadcast packets", link_groups, 0.0,
        kind="multicast_flood",
        title="{what} storm",
        exhausts=(CORE,),
        needs=(ENOUGH,),
        lead="{amount:packets of {what}} ({rate:count}/s) from {senders} to multicast or broadcast addresses",
        evidence=(
            pace.says(300, -3.0, 3_000, 2.5, "neighbours that look for each other send a few a second"),
            sources.says(300, 0.0, 1_000, 1.5, "no link has so many neighbours"),
        ),
        match=match_storm,
        stopped_by="the switch (storm control), or dropping the port here",
    ),
    Hypothesis("neighbours that look for each other", link_groups, 1.0, needs=(pace.at_most(999),)),
)  # fmt: skip
