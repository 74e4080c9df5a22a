"""The classes that the kernel's programs count packets in."""

from __future__ import annotations

TRAFFIC_CLASSES = (
    "tcp",
    "udp",
    "icmp",
    "icmpv6",
    "gre",
    "esp",
    "other",
    "non_ip",
)  # enum fwtop_class of bpf/cell.h
NON_IP = TRAFFIC_CLASSES.index("non_ip")
