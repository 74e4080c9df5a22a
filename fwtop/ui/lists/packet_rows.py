"""The packets of the Packets tab: which rows there are, and a line about each, much as tcpdump writes it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct, field

from fwtop.analysis.packets.language import FilterError, PacketFilter, parse_filter
from fwtop.analysis.packets.recent import PacketList, Verdict
from fwtop.analysis.parsers.dns import type_name
from fwtop.analysis.standing import like_keys
from fwtop.analysis.window.traffic import payload
from fwtop.model.addresses.address import Prefix, format_address
from fwtop.model.text import payload_text
from fwtop.model.traffic.packets import FLAG_MALFORMED, FLAG_TRUNCATED, Fragment, Mask, PacketBatch
from fwtop.model.traffic.protocols import ICMP, ICMPV6, NUMBERS, TCP, UDP, WITH_PORTS, spoken_protocol
from fwtop.parse.dns_question import parse_question
from fwtop.render.rows.field import Field, RowType, Unit

_HEAD = 8  # bytes of payload that packets alike have in common
_TARGET = re.compile(r"(tcp|udp|icmp|icmpv6|gre|esp|sctp)(?:/(\d{1,5}))?")


class PacketRow(Struct, frozen=True, eq=False, gc=False):
    """One packet of a list; equal to the same packet of another list."""

    shown: PacketList
    row: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PacketRow) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def number(self) -> int:
        """What identifies it for the whole observation."""
        return int(self.shown.numbers[self.row])

    @property
    def key(self) -> tuple[int, int]:
        """What identifies it also in a capture, where each window numbers its packets anew."""
        return self.number, self.unix_ns

    @property
    def unix_ns(self) -> int:
        """When it arrived."""
        return int(self.shown.packets.time_ns[self.row]) + self.shown.clock_ns

    @property
    def verdict(self) -> Verdict:
        """What became of it."""
        return self.shown.verdict(self.row)

    @property
    def who(self) -> str:
        """Who sent it, as far as this host knows."""
        return str(self.shown.who[self.row])

    def field(self, name: str) -> int:
        """Return one of its columns."""
        return int(getattr(self.shown.packets, name)[self.row])

    def address(self, side: str) -> str:
        """Return its "src" or "dst"; "" without IP."""
        family = self.field("family")
        if not family:
            return ""
        return format_address(family, self.field(f"{side}_hi"), self.field(f"{side}_lo"))

    @property
    def source(self) -> Prefix | None:
        """Its sender's address; None without IP."""
        family = self.field("family")
        return Prefix.of_columns(family, self.field("src_hi"), self.field("src_lo")) if family else None

    @property
    def data(self) -> bytes:
        """The captured bytes."""
        return self.shown.packets.data[self.row, : self.field("captured")].tobytes()

    @property
    def payload(self) -> bytes:
        """The captured bytes of the transport payload."""
        start = self.field("payload_offset")
        return self.data[start : start + self.field("payload_length")] if start else b""


class PacketBook(Struct):
    """The packets shown. While it is held, newer lists only wait."""

    held: bool = False
    filter: PacketFilter = field(default_factory=lambda: parse_filter(""))
    text: str = ""  # of the filter, also while it is wrong
    error: FilterError | None = None
    scope: str = ""  # the target of the selected attack: tcp/80
    newest: PacketList | None = None
    rows: Sequence[PacketRow] = ()
    _waiting: PacketList | None = None
    _kept: PacketList | None = None

    def offer(self, newest: PacketList | None) -> None:
        """Take the newest list."""
        self._waiting = newest
        if not self.held:
            self.newest = newest
            self._select()

    def hold(self, held: bool) -> None:
        """Hold the present packets, or go on with the newest."""
        self.held = held
        if not held and self._waiting is not self.newest:
            self.newest = self._waiting
            self._select()

    def set_filter(self, text: str) -> None:
        """Change the filter; a wrong one leaves the last right one in force."""
        self.text = text
        try:
            found = parse_filter(text)
        except FilterError as error:
            self.error = error
            return
        self.error = None
        if found.text != self.filter.text:
            self.filter = found
            self._select()

    def set_scope(self, target: str) -> None:
        """Show only the packets to an attack's target; "" all."""
        if target != self.scope:
            self.scope = target
            self._select()

    @property
    def kept(self) -> PacketList | None:
        """The packets shown, as one list."""
        if self._kept is None and self.newest is not None:
            self._kept = self.newest.select(np.array([item.row for item in self.rows], np.intp))
        return self._kept

    def alike(self, row: PacketRow) -> Mask:
        """Mark the packets shown that are like one: protocol, port, flags, length and first bytes."""
        shown = self.kept
        if shown is None or not len(shown):
            return np.zeros(0, np.bool_)
        wanted = row.shown.packets.select(np.array([row.row]))
        same: Mask = like_keys(shown.packets) == like_keys(wanted)[0]
        head, length = payload(shown.packets, np.arange(len(shown)), _HEAD)
        own, own_length = payload(wanted, np.arange(1), _HEAD)
        return np.asarray(same & (head == own[0]).all(axis=1) & (length == own_length[0]))

    def _select(self) -> None:
        shown, self._kept = self.newest, None
        if shown is None:
            self.rows = ()
            return
        mask = self.filter.mask(
            shown.packets, verdicts=shown.verdict_texts if shown.judged else None, who=shown.who
        )
        if self.scope:
            mask = mask & _to_target(shown.packets, self.scope)
        self.rows = [PacketRow(shown, row) for row in np.flatnonzero(mask).tolist()]
        self._kept = shown if len(self.rows) == len(shown) else None


def _to_target(packets: PacketBatch, target: str) -> Mask:
    """Mark the packets to a target such as tcp/80; all if it isn't understood."""
    match = _TARGET.fullmatch(target)
    if match is None:
        return np.ones(len(packets), np.bool_)
    number = NUMBERS[match[1]]
    mask: Mask = packets.protocol == number
    if match[2] and number in WITH_PORTS:
        mask = mask & (packets.dport == min(int(match[2]), 65_535))
    return np.asarray(mask)


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
    if item.field("fragment") == Fragment.LATER:
        words = f"fragment of id 0x{item.field('ip_id'):x}, {item.field('payload_length')} bytes"
    else:
        words = _transport(item, short=short)
    if item.field("flags") & FLAG_MALFORMED:
        words = f"malformed {words}"
    return words.strip()


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
    found, length = parse_question(item.payload), f"len {item.field('payload_length')}"
    if found is None:
        return length
    asked = f"{type_name(found.qtype)} {found.name}"
    return f"answer {asked} {length}" if found.response else f"query {asked}"


def _beginning(item: PacketRow) -> str:
    """Return the beginning of a payload that is mostly text."""
    data = item.payload[:_TEXT]
    printable = sum(0x20 <= byte < 0x7F for byte in data)
    return f" {payload_text(data)}" if printable >= 4 and printable >= 0.75 * len(data) else ""


def clock_text(unix_ns: int) -> str:
    """Write a time as HH:MM:SS.mmm, in UTC."""
    seconds, rest = divmod(unix_ns, 10**9)
    try:
        return f"{time.strftime('%H:%M:%S', time.gmtime(seconds))}.{rest // 10**6:03d}"
    except (OverflowError, OSError, ValueError):
        return "–"


def source_text(item: PacketRow) -> str:
    """Write the sender."""
    return item.address("src") or "–"


def target_text(item: PacketRow) -> str:
    """Write the destination with its port; IPv6 in brackets."""
    address, port = item.address("dst"), port_text(item)
    if not address:
        return "–"
    return f"[{address}]{port}" if port and ":" in address else f"{address}{port}"


def length_text(item: PacketRow) -> str:
    """Write its length by the IP header, as rules and filters count it; without IP that of the frame."""
    return str(item.field("ip_length") if item.field("family") else item.field("length"))


def port_text(item: PacketRow) -> str:
    """Write the destination port as :80; "" without one."""
    ported = item.field("protocol") in WITH_PORTS and item.field("fragment") != Fragment.LATER
    return f":{item.field('dport')}" if ported and item.field("family") else ""


PACKET = RowType(
    key=lambda item: str(item.number),
    search=lambda item: str(item.number),
    fields=(
        Field("time", value=lambda item: clock_text(item.unix_ns), heading="time UTC", width=12, keep=1),
        Field("length", Unit.COUNT, length_text, heading="len", width=5),
        Field("source", value=source_text, heading="source", whole=True),
        Field("who", heading="who", width=11),
        Field("destination", value=target_text, heading="destination"),
        Field("contents", value=info, heading="protocol, contents", width=8, grow=1),
        Field("verdict", heading="verdict", width=18),
    ),
    columns="time length source who destination contents verdict",
    title=lambda item: f"packet of {clock_text(item.unix_ns)}",
    copied=lambda item: item.address("src") or item.data.hex(),
)
