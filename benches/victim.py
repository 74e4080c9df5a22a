"""What a victim's own kernel counted, for comparison with the screen (net/ipv4/proc.c, net/ipv6/proc.c)."""

from __future__ import annotations

from msgspec import Struct

from fwtop.kernel.namespaces import inside
from fwtop.kernel.procfs import parse_paired, parse_single, read_text


class Delivered(Struct, frozen=True):
    """Counted since the namespace exists."""

    packets: int  # past the firewall, and not dropped by transport or socket
    handshakes: int  # that clients finished


def read_delivered(netns: str) -> Delivered:
    """Read the counters of a named namespace."""
    with inside(netns):
        snmp = parse_paired(read_text("/proc/net/snmp"))
        snmp6 = parse_single(read_text("/proc/net/snmp6"))
        extended = parse_paired(read_text("/proc/net/netstat"))["TcpExt"]
    passed = snmp["Ip"]["InDelivers"] + snmp6["Ip6InDelivers"]
    lost = sum(snmp["Udp"][name] + snmp6[f"Udp6{name}"] for name in ("NoPorts", "InErrors"))
    lost += extended["ListenDrops"]
    return Delivered(passed - lost, snmp["Tcp"]["PassiveOpens"])
