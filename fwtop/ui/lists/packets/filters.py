"""The packets of a row, as a filter for the Packets tab."""

from __future__ import annotations

from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Match, PayloadMatch
from fwtop.model.traffic.protocols import WITH_PORTS
from fwtop.model.traffic.snapshot import Destination, PacketSignature, Port, Source
from fwtop.ui.lists.rows import Item

_NAMES = {1: "icmp", 6: "tcp", 17: "udp", 58: "icmpv6"}
_FRAGMENTS = "(ip.flags.mf == 1 || ip.frag_offset > 0)"


def packet_filter(item: Item) -> str:
    """Return the filter of a row's packets; "" if there is none."""
    if isinstance(item, Source):
        return _address("src", item.prefix) if item.prefix is not None else ""
    if isinstance(item, Destination):
        return _address("dst", item.prefix)
    if isinstance(item, Port):
        return f"{item.protocol}.{item.side}port == {item.port}" if item.protocol in ("tcp", "udp") else ""
    return _fields(item.match) if isinstance(item, PacketSignature) else ""


def _address(side: str, prefix: Prefix) -> str:
    return f"{'ip' if prefix.family == 4 else 'ipv6'}.{side} == {prefix}"


def _fields(match: Match) -> str:
    """Write the fields that the filter knows; it then shows more packets rather than fewer."""
    six = match.family == 6
    name = _NAMES.get(match.protocol or 0, "")
    parts = ["ipv6" if six else "ip"] if match.family is not None else []
    parts += [name] if name else [f"ip.proto == {match.protocol}"] if match.protocol and not six else []
    if name in ("tcp", "udp") and match.protocol in WITH_PORTS:
        parts += [f"{name}.srcport == {match.sport}"] if match.sport is not None else []
        parts += [f"{name}.dstport == {match.dport}"] if match.dport is not None else []
    if match.fragment and not six:
        parts.append(_FRAGMENTS)
    if match.ip_length is not None and not six:
        parts.append(f"ip.len == {match.ip_length.low}")
    if match.ttl is not None:
        parts.append(f"{'ipv6.hlim' if six else 'ip.ttl'} == {match.ttl.low}")
    if match.tcp_flags is not None:
        parts.append(f"tcp.flags & 0x{match.tcp_flags[0]:02x} == 0x{match.tcp_flags[1]:02x}")
    if match.tcp_window is not None:
        parts.append(f"tcp.window_size_value == {match.tcp_window.low}")
    if match.icmp_type is not None and name.startswith("icmp"):
        parts.append(f"{name}.type == {match.icmp_type}")
    return " && ".join([*parts, *(_bytes(name, one) for one in match.payload)])


def _bytes(name: str, wanted: PayloadMatch) -> str:
    where = f"{name}.payload" if name in ("tcp", "udp") else "frame"
    return f"{where} contains {wanted.data.hex(':')}"
