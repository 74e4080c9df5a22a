"""Which layer of the way in a drop reason belongs to, and whether the input hook had let it pass.

The kernel's names are the interface: numbers and new names change with every release, so names are told by
what they begin with, and a name that nobody knows yet is the IP layer's. Sources:
include/net/dropreason-core.h (what each means) and
net/ipv4/{ip_input,tcp_ipv4,udp}.c (on which side of the hook it is given).
"""

from __future__ import annotations

from fwtop.model.counters import DropCount

NOT_A_LOSS = frozenset({"PACKET_SOCK_ERROR"})  # a packet socket's copy; the packet itself goes on
NOT_IP = frozenset({"UNHANDLED_PROTO", "ARP_PVLAN_DISABLE", "MAC_IEEE_MAC_CONTROL", "LOCAL_MAC"})

_LAYERS = {
    "CPU_BACKLOG": "backlog",
    "XDP": "xdp",
    "TC_INGRESS": "tc",
    "TC_COOKIE_ERROR": "tc",
    "TC_CHAIN_NOTFOUND": "tc",
    "TC_RECLASSIFY_LOOP": "tc",
    "NETFILTER_DROP": "netfilter",
}
# Given by protocols and sockets, behind the input hook.
_SOCKET = ("NO_SOCKET", "SOCKET_", "TCP_", "UDP_", "PROTO_MEM", "SKB_UCOPY_FAULT", "QUEUE_PURGE", "PSP_INPUT")
_BEHIND_INPUT = ("ICMP_CSUM", "IP_NOPROTO", "XFRM_POLICY", "IPV6_NDISC_", "SKB_CSUM", "VXLAN_", "IP_TUNNEL_")


def reached_tc(drop: DropCount) -> bool:
    """Whether the counter of arrivals, at tc ingress, had seen the packet."""
    return drop.layer not in ("nic", "backlog", "xdp")


def place(reason: str, *, outbound: bool) -> tuple[str, bool]:
    """Return (layer, before delivery) of a reason without its SKB_DROP_REASON_.

    `outbound`: the packet had already been given its way out, so the forward hook had let it pass.
    """
    if reason.startswith(_SOCKET):
        return "socket", False
    if reason.startswith(_BEHIND_INPUT):
        return "ip", False
    return _LAYERS.get(reason, "ip"), not outbound


# What the functions that drop without a reason are called, most telling beginning first.
_FUNCTIONS = (
    (("packet_rcv", "tpacket_rcv"), "", False),  # a packet socket's copy
    (("tcp_", "udp", "__udp", "sctp_", "raw_", "rawv6_", "sock_", "sk_", "__sk_", "ping_"), "socket", False),
    (("icmp", "igmp", "__mld", "mld", "ndisc", "ipv6_mc", "ip6_mc", "pim"), "ip", False),
    (("nf_", "nft_", "ipt_", "ip6t_", "xt_", "__nf_"), "netfilter", True),
)


def place_of_function(function: str, *, outbound: bool) -> tuple[str, bool]:
    """Return (layer, before delivery) of a drop without a reason; layer "" where it is no loss."""
    for beginnings, layer, before in _FUNCTIONS:
        if function.startswith(beginnings):
            return layer, before and not outbound
    return "ip", not outbound
