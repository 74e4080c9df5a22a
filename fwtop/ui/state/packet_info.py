"""One line about a packet, much as tcpdump writes it. Everything from the packet is made safe to show."""

from __future__ import annotations

from collections.abc import Iterator

from fwtop.analysis.parsers.dns import type_name
from fwtop.model.text import payload_text
from fwtop.model.traffic.packets import FLAG_MALFORMED, FLAG_TRUNCATED, Fragment
from fwtop.model.traffic.protocols import ICMP, ICMPV6, TCP, UDP, spoken_protocol
from fwtop.parse.dns_question import parse_question
from fwtop.ui.state.packet_row import PacketRow

_LETTERS = ((2, "S"), (1, "F"), (4, "R"), (8, "P"), (32, "U"), (64, "E"), (128, "W"), (16, "."))
_TEXT = 24  # characters of a payload
_DNS_PORTS = (53, 5353)
_ICMP_NAMES = {
    (ICMP, 0): "echo reply",
    (ICMP, 3): "unreachable",
    (ICMP, 5): "redirect",
    (ICMP, 8): "echo request",
    (ICMP, 11): "time exceeded",
    (ICMPV6, 1): "unreachable",
    (ICMPV6, 2): "packet too big",
    (ICMPV6, 3): "time exceeded",
    (ICMPV6, 128): "echo request",
    (ICMPV6, 129): "echo reply",
    (ICMPV6, 133): "router solicitation",
    (ICMPV6, 134): "router advertisement",
    (ICMPV6, 135): "neighbour solicitation",
    (ICMPV6, 136): "neighbour advertisement",
}
_ETHERTYPES = {0x0806: "ARP", 0x88CC: "LLDP", 0x8863: "PPPoE discovery", 0x8864: "PPPoE"}
_PLAIN_OPTIONS = {4: "sack", 8: "ts"}


def protocol_of(item: PacketRow) -> str:
    """Name the protocol of a packet."""
    if not item.field("family"):
        kind = item.field("ethertype")
        return _ETHERTYPES.get(kind, f"0x{kind:04x}")
    if _is_dns(item):
        return "DNS"
    return spoken_protocol(item.field("protocol"))


def info(item: PacketRow, *, short: bool = False) -> str:
    """Describe a packet after its protocol; `short` leaves sequence numbers out."""
    if not item.field("family"):
        return f"vlan {item.field('vlan')}" if item.field("vlan") else ""
    later = item.field("fragment") == Fragment.LATER
    words = _fragment(item) if later else _transport(item, short=short)
    if item.field("flags") & FLAG_MALFORMED:
        words = f"malformed {words}"
    return words.strip()


def _fragment(item: PacketRow) -> str:
    return f"fragment of id 0x{item.field('ip_id'):x}, {item.field('payload_length')} bytes"


def _transport(item: PacketRow, *, short: bool) -> str:
    protocol = item.field("protocol")
    first = f"first fragment of id 0x{item.field('ip_id'):x} " if item.field("fragment") else ""
    if protocol == TCP:
        return first + _segment(item, short=short)
    if protocol in (ICMP, ICMPV6):
        return first + _message(item)
    if _is_dns(item):
        return first + _question(item)
    return first + f"len {item.field('payload_length')}{_beginning(item)}"


def _segment(item: PacketRow, *, short: bool) -> str:
    flags = item.field("tcp_flags")
    letters = "".join(letter for bit, letter in _LETTERS if flags & bit) or "none"
    words = [letters] if short else [letters, f"seq 0x{item.field('tcp_seq'):08x}"]
    words.append(f"win {item.field('tcp_window')}")
    if item.field("tcp_header") > 20 or flags & 2:
        words.append(f"opt {','.join(_options(item)) or '–'}")
    size = item.field("payload_length")
    return " ".join(words) + (f" len {size}{_beginning(item)}" if size else "")


def _options(item: PacketRow) -> Iterator[str]:
    """Name the TCP options; RFC 9293 3.2 for their form."""
    end = item.field("payload_offset")
    at = end - item.field("tcp_header") + 20
    if item.field("flags") & FLAG_TRUNCATED or at < 20:
        return
    data = item.data[:end]
    while at < len(data) and data[at] != 0:
        kind = data[at]
        size = 1 if kind == 1 else data[at + 1] if at + 1 < len(data) else 0
        if kind != 1 and size < 2:
            yield "malformed"
            return
        body = data[at + 2 : at + size]
        at += size
        if kind == 2 and len(body) == 2:
            yield f"mss {int.from_bytes(body, 'big')}"
        elif kind == 3 and len(body) == 1:
            yield f"ws {body[0]}"
        elif kind != 1:
            yield _PLAIN_OPTIONS.get(kind, f"option {kind}")


def _message(item: PacketRow) -> str:
    kind, code = item.field("icmp_type"), item.field("icmp_code")
    name = _ICMP_NAMES.get((item.field("protocol"), kind), f"type {kind}")
    return f"{name}{f' code {code}' if code else ''} len {item.field('payload_length')}"


def _is_dns(item: PacketRow) -> bool:
    ports = (item.field("sport"), item.field("dport"))
    return item.field("protocol") == UDP and any(port in _DNS_PORTS for port in ports)


def _question(item: PacketRow) -> str:
    found = parse_question(item.payload)
    if found is None:
        return f"len {item.field('payload_length')}"
    asked = f"{type_name(found.qtype)} {found.name}"
    if found.response:
        return f"answer {asked} len {item.field('payload_length')}"
    return f"query {asked}"


def _beginning(item: PacketRow) -> str:
    """Return the beginning of a payload that is mostly text."""
    data = item.payload[:_TEXT]
    printable = sum(0x20 <= byte < 0x7F for byte in data)
    return f" {payload_text(data)}" if printable >= 4 and printable >= 0.75 * len(data) else ""
