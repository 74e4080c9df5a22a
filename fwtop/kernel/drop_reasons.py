"""Which layer a drop belongs to, by its reason or by the function that dropped the packet.

Reasons are matched by name, because numbers change with every release; an unknown name counts as the IP
layer's. Sources: include/net/dropreason-core.h (what each means) and net/ipv4/{ip_input,tcp_ipv4,udp}.c (on
which side of the input hook it is set).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from fwtop.model.text import safe_text
from fwtop.model.traffic.counters import DropCount

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
# Prefixes of reasons set behind the input hook, by sockets and by other protocols
_SOCKET = ("NO_SOCKET", "SOCKET_", "TCP_", "UDP_", "PROTO_MEM", "SKB_UCOPY_FAULT", "QUEUE_PURGE", "PSP_INPUT")
_BEHIND_INPUT = ("ICMP_CSUM", "IP_NOPROTO", "XFRM_POLICY", "IPV6_NDISC_", "SKB_CSUM", "VXLAN_", "IP_TUNNEL_")
# Prefixes of functions that drop without a reason, most specific first: layer, before delivery
_FUNCTIONS = (
    (("packet_rcv", "tpacket_rcv"), "", False),  # a packet socket's copy
    (("tcp_", "udp", "__udp", "sctp_", "raw_", "rawv6_", "sock_", "sk_", "__sk_", "ping_"), "socket", False),
    (("icmp", "igmp", "__mld", "mld", "ndisc", "ipv6_mc", "ip6_mc", "pim"), "ip", False),
    (("nf_", "nft_", "nfqnl_", "ipt_", "ip6t_", "xt_", "__nf_"), "netfilter", True),
)
_LOOKUP_INTERVAL_SECONDS = 10.0

# Returns the function at each known drop location, "" if unknown; raises nothing
NameLookup = Callable[[], list[str]]


def reached_tc(drop: DropCount) -> bool:
    """Whether the packets had passed tc ingress, where arrivals are counted."""
    return drop.layer not in ("nic", "backlog", "xdp")


def layer_of_reason(reason: str, *, outbound: bool) -> tuple[str, bool]:
    """Return (layer, before delivery) of a reason without its SKB_DROP_REASON_ prefix.

    `outbound`: the packet already had an output route, so it had passed the forward hook.
    """
    if reason.startswith(_SOCKET):
        return "socket", False
    if reason.startswith(_BEHIND_INPUT):
        return "ip", False
    return _LAYERS.get(reason, "ip"), not outbound


def layer_of_function(function: str, *, outbound: bool) -> tuple[str, bool]:
    """Return (layer, before delivery) of a drop without a reason; the layer is "" if nothing was lost."""
    for prefixes, layer, before in _FUNCTIONS:
        if function.startswith(prefixes):
            return layer, before and not outbound
    return "ip", not outbound


class FunctionNames:
    """The kernel functions that drop packets, by the index of the location.

    Only root knows the locations' addresses and can name them, from several megabytes of /proc/kallsyms: it
    is asked at most every 10 s. Without `lookup` no name is known.
    """

    def __init__(self, lookup: NameLookup | None) -> None:
        self._lookup = lookup
        self._names: dict[int, str] = {}
        self._next = 0.0

    def names(self, indexes: list[int]) -> dict[int, str]:
        """Return the function at each location, "" if it isn't known (yet)."""
        is_new = any(index not in self._names for index in indexes)
        if is_new and self._lookup is not None and time.monotonic() >= self._next:
            self._next = time.monotonic() + _LOOKUP_INTERVAL_SECONDS
            found = (safe_text(name, limit=40) for name in self._lookup())
            self._names = {index: name for index, name in enumerate(found) if name}
        return {index: self._names.get(index, "") for index in indexes}
