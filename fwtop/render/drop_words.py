"""Drop reasons in plain words. Source: include/net/dropreason-core.h; the counters are fwtop's own names."""

from __future__ import annotations

_WORDS = {
    "RX_MISSED": "the receive ring was full: the CPU did not fetch packets fast enough",
    "RX_FIFO": "the interface's own buffer was full",
    "RX_ERRORS": "the frame was damaged on the wire",
    "RX_DROPPED": "the driver dropped it",
    "CPU_BACKLOG": "the CPU's backlog queue was full (net.core.netdev_max_backlog)",
    "XDP": "an XDP program dropped it in the stack",
    "XDP_DROP (foreign)": "another XDP program dropped or redirected it in the driver",
    "TC_INGRESS": "a tc filter dropped it",
    "NETFILTER_DROP": "a netfilter rule or policy dropped it",
    "TABLE_FULL": "the connection table was full and held nothing to evict",
    "INSERT_FAILED": "another packet of its connection came first into the table, mostly while it was queued",
    "FRAGMENTS_WAITING": "a fragment that waits for the rest of its packet, for 30 s at most",
    "FRAG_REASM_TIMEOUT": "a fragment whose packet was never completed",
    "FRAG_TOO_FAR": "a fragment too far from the others of its sender",
    "DUP_FRAG": "a fragment that was there already",
    "IP_RPFILTER": "its source is not routed to the interface that it came in on (rp_filter)",
    "IP_CSUM": "wrong IP checksum",
    "IP_INHDR": "malformed IP header",
    "IP_NOPROTO": "nothing here handles this IP protocol",
    "IP_INNOROUTES": "no route to its destination",
    "IP_OUTNOROUTES": "no route to its destination",
    "IP_INVALID_SOURCE": "invalid source address",
    "IP_INVALID_DEST": "invalid destination address",
    "IP_LOCAL_SOURCE": "its source is an address of this host",
    "IP_LOCALNET": "a loopback address from outside",
    "OTHERHOST": "for another host's MAC address",
    "PKT_TOO_SMALL": "shorter than its headers say",
    "ICMP_CSUM": "wrong ICMP checksum",
    "UNHANDLED_PROTO": "no handler for this Ethernet type",
    "NO_SOCKET": "no process listens on that port",
    "SOCKET_RCVBUFF": "the socket's receive buffer was full: its process reads too slowly",
    "SOCKET_BACKLOG": "the socket's backlog was full while its process held it",
    "SOCKET_FILTER": "a filter on the socket dropped it",
    "SOCKET_CLOSE": "the socket was being closed",
    "PROTO_MEM": "the protocol's memory limit was reached (tcp_mem, udp_mem)",
    "QUEUE_PURGE": "its queue was emptied, mostly because the socket was closed",
    "UDP_CSUM": "wrong UDP checksum",
    "TCP_CSUM": "wrong TCP checksum",
    "TCP_FLAGS": "TCP flags that make no sense in that state",
    "TCP_CLOSE": "for a connection that is closed",
    "TCP_LISTEN_OVERFLOW": "the listener's accept queue was full: its process accepts too slowly",
    "TCP_OLD_DATA": "data that was acknowledged already",
    "TCP_OVERWINDOW": "data beyond the receive window",
    "TCP_ZEROWINDOW": "data although the receive window was 0",
    "TCP_OFO_DROP": "out-of-order data that found no memory",
    "TCP_OFOMERGE": "out-of-order data that was there already",
    "TCP_OLD_ACK": "an old acknowledgement",
    "TCP_TOO_OLD_ACK": "an acknowledgement far too old",
    "TCP_ACK_UNSENT_DATA": "acknowledges data that was never sent",
    "TCP_INVALID_SEQUENCE": "sequence number outside the window",
    "TCP_INVALID_ACK_SEQUENCE": "acknowledgement number outside the window",
    "TCP_OLD_SEQUENCE": "sequence number before the window",
    "TCP_RFC7323_PAWS": "timestamp older than the last one (PAWS)",
    "TCP_INVALID_SYN": "a SYN in the middle of a connection",
    "TCP_RESET": "an RST: the peer ended the connection",
    "TCP_MINTTL": "TTL below what the socket requires",
}
_FAMILIES = (
    ("TCP_", "TCP could not use it in that connection's state"),
    ("UDP_", "UDP could not use it"),
    ("SOCKET_", "the socket did not take it"),
    ("IPV6_NDISC_", "invalid neighbour discovery"),
    ("FRAG_", "a fragment that could not be reassembled"),
    ("IP_", "the IP layer could not use it"),
    ("XFRM_", "IPsec policy"),
    ("NOT_SPECIFIED", "the kernel gives no reason; the function that dropped it is named"),
)


def reason_words(reason: str) -> str:
    """Say what a reason means, "" where only its name is known."""
    if reason in _WORDS:
        return _WORDS[reason]
    plain = reason.partition(" (")[0]
    known = _WORDS.get(plain)
    return known or next((words for prefix, words in _FAMILIES if plain.startswith(prefix)), "")


_HELPS = {  # what is full, and what makes room there
    "RX_MISSED": "a longer ring (ethtool -G), more receive queues",
    "RX_FIFO": "a longer ring (ethtool -G), more receive queues",
    "CPU_BACKLOG": "packets spread over more CPUs (RPS), a higher net.core.netdev_max_backlog",
    "FULL_RING": "a reader that is faster, or a longer ring",
    "TABLE_FULL": "a higher net.netfilter.nf_conntrack_max",
    "SOCKET_RCVBUFF": "a service that reads faster, a longer SO_RCVBUF (net.core.rmem_max)",
    "SOCKET_BACKLOG": "a service that reads faster, a longer SO_RCVBUF (net.core.rmem_max)",
    "TCP_LISTEN_OVERFLOW": "a longer accept queue (the service's backlog, net.core.somaxconn)",
    "PROTO_MEM": "higher net.ipv4.udp_mem and tcp_mem",
}


def help_words(reason: str) -> str:
    """Say what makes room where packets are lost because something is full."""
    ways = ["a rule that drops the attack before it gets there", _HELPS.get(reason.partition(" (")[0], "")]
    return "; ".join(filter(None, ways))
