"""Which packets a rule's match selects, by the columns of a batch exactly as in the kernel; and which pass.

What passes does so whatever a rule matches, by its sender's role in the allow-list (roles.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct

from fwtop.analysis.window.tcp_view import ACK, SYN
from fwtop.analysis.window.traffic import ICMP6, TCP, UDP, Rows, mix, payload
from fwtop.model.addresses import roles
from fwtop.model.addresses.address import Prefix, of_pairs, says_more
from fwtop.model.addresses.keyed_rows import KeyedRows
from fwtop.model.addresses.roles import AllowedPeer, Conversation, Role
from fwtop.model.rule import RANGES, Match, PayloadMatch, Range, RateLimit
from fwtop.model.traffic.packets import I64, U8, U64, Fragment, Mask, PacketBatch
from fwtop.rules.fields import FIELDS, SEGMENT

_FULL = np.uint64(0xFFFFFFFFFFFFFFFF)
_ALONE = 4  # bytes of a payload that are compared one by one before all
WIDTH = 160  # about the payload bytes of a live sample
_FIN, _RST = 1, 4
# Windows that real systems open with: Linux since 4.20, before and with jumbo frames, Windows, macOS and
# BSD, Solaris (the signatures of p0f 3, file p0f.fp); and the sizes of their SYNs over IPv4 and IPv6
USUAL_WINDOWS = (
    64240, 65535, 29200, 28960, 14600, 5840, 8192, 16384, 32120, 32768, 42340, 62727, 64000, 64800,
)  # fmt: skip
_OF_SYNS = {
    "tcp_window": USUAL_WINDOWS,
    "tcp_header": (32, 40, 44),
    "ip_length": (52, 60, 64, 72, 80, 84),
}
_DISCOVERY, _FROM_LINK = (134, 136), 255  # RFC 4861: advertisements, solicitations; hop limit


def match_rows(match: Match, packets: PacketBatch) -> Mask:
    """Mark the packets that meet all conditions of the match.

    Later fragments have no ports, flags or start of payload, so they never meet such conditions.
    """
    hit = _header_rows(match, packets)
    for side, prefixes in (("src", match.sources), ("dst", match.destinations)):
        if prefixes:
            columns = (getattr(packets, f"{side}_hi"), getattr(packets, f"{side}_lo"))
            hit = hit & in_prefixes(packets.family, *columns, prefixes)
            if says_more(prefixes):
                hit = _meets_rest(prefixes, packets, hit)
    for wanted in match.payload:
        rows = np.flatnonzero(hit)
        hit = np.zeros(len(packets), np.bool_)
        hit[rows[payload_rows(wanted, packets, rows)]] = True
    return np.asarray(hit)


def _meets_rest(entries: KeyedRows[Any], packets: PacketBatch, hit: Mask) -> Mask:
    """Mark those of some packets that meet an entry with its port or its destination, too.

    As the kernel does, one lookup for each combination of lengths in use.
    """
    rows, listed = np.flatnonzero(hit), entries.single
    fields, found = listed.rows, np.zeros(len(hit), np.bool_)
    pairs = of_pairs(listed)
    lengths = np.stack(
        [fields["family"], fields["length"], fields["to_length" if pairs else "length"]], axis=1
    )
    sender = _words(listed, "address")
    for family, length, to_length in np.unique(lengths, axis=0):
        mine = (lengths == (family, length, to_length)).all(axis=1)
        at = rows[packets.family[rows] == family]
        key = mix(*cut(packets.src_hi[at], packets.src_lo[at], family, int(length)))
        wanted = mix(*(column[mine] for column in sender))
        if pairs:
            to = mix(*cut(packets.dst_hi[at], packets.dst_lo[at], family, int(to_length)))
            wanted_to = mix(*(column[mine] for column in _words(listed, "to")))
        else:
            at_port = packets.fragment[at] != Fragment.LATER
            at, key = at[at_port], key[at_port]
            to = packets.protocol[at].astype(np.uint64) << np.uint64(16) | packets.dport[at].astype(np.uint64)
            wanted_to = fields["protocol"][mine].astype(np.uint64) << np.uint64(16) | fields["low"][mine]
        found[at] |= np.isin(mix(key, to), mix(wanted, wanted_to))
    return found


def _words(entries: KeyedRows[Any], field: str) -> tuple[U64, U64]:
    words = np.frombuffer(entries.bytes_of(field).tobytes(), ">u8").astype(np.uint64)
    return words[::2], words[1::2]


def _header_rows(match: Match, packets: PacketBatch) -> Mask:
    hit: Mask = packets.family != 0
    if match.family is not None:
        hit = hit & (packets.family == match.family)
    later = packets.fragment == Fragment.LATER
    for field in FIELDS:
        wanted = field.of(match)
        if wanted is None:
            continue
        if field.protocols:
            hit = hit & _is_any(packets.protocol, (*field.protocols,)) & ~later
        if field in SEGMENT:
            hit = hit & (packets.tcp_header > 0)
        if len(field.families) == 1:
            hit = hit & (packets.family == field.families[0])
        hit = hit & field.meets(wanted, getattr(packets, field.name))
    return np.asarray(hit)


def _is_any(column: U8, values: tuple[int, ...]) -> Mask:
    """Mark the rows with one of a few values, ten times as fast as np.isin."""
    hit = column == values[0]
    for value in values[1:]:
        hit |= column == value
    return np.asarray(hit)


def in_prefixes(family: U8, hi: U64, lo: U64, prefixes: Sequence[Prefix]) -> Mask:
    """Mark the addresses within any of the prefixes, by one range search per family.

    IPv6 prefixes longer than /64 take one set lookup per length.
    """
    hit = np.zeros(len(family), np.bool_)
    four = [(prefix.lo, 32 - prefix.length) for prefix in prefixes if prefix.family == 4]
    six = [
        (prefix.hi, 64 - prefix.length) for prefix in prefixes if prefix.family == 6 and prefix.length <= 64
    ]
    for version, ranges, column in ((4, four, lo), (6, six, hi)):
        of_family = np.flatnonzero(family == version)
        if ranges and len(of_family):
            hit[of_family] = _in_ranges(column[of_family], ranges)
    groups: dict[int, list[Prefix]] = {}
    for prefix in prefixes:
        if prefix.family == 6 and prefix.length > 64:
            groups.setdefault(prefix.length, []).append(prefix)
    of_family = np.flatnonzero(family == 6)
    for length, group in groups.items():
        key_hi, key_lo = cut(hi[of_family], lo[of_family], 6, length)
        wanted_hi = np.array([prefix.hi for prefix in group], np.uint64)
        wanted_lo = np.array([prefix.lo for prefix in group], np.uint64)
        hit[of_family] |= np.isin(mix(key_hi, key_lo), mix(wanted_hi, wanted_lo))
    return hit


def _in_ranges(values: U64, ranges: list[tuple[int, int]]) -> Mask:
    """Mark the values within a range (first value, number of free bits); ranges may overlap."""
    ranges = sorted(ranges)
    first = np.array([start for start, _ in ranges], np.uint64)
    last = np.maximum.accumulate(np.array([start + (1 << bits) - 1 for start, bits in ranges], np.uint64))
    at = np.searchsorted(first, values, side="right")
    return np.asarray((at > 0) & (values <= last[np.maximum(at, 1) - 1]))


def cut(hi: U64, lo: U64, family: int, length: int) -> tuple[U64, U64]:
    """Clear the host bits of addresses."""
    if family == 4:
        return hi, lo & np.uint64((0xFFFFFFFF << (32 - length)) & 0xFFFFFFFF)
    high = _FULL if length >= 64 else np.uint64((0xFFFFFFFFFFFFFFFF << (64 - length)) & 0xFFFFFFFFFFFFFFFF)
    low_bits = max(0, length - 64)
    low = (
        np.uint64((0xFFFFFFFFFFFFFFFF << (64 - low_bits)) & 0xFFFFFFFFFFFFFFFF) if low_bits else np.uint64(0)
    )
    return hi & high, lo & low


def payload_rows(match: PayloadMatch, packets: PacketBatch, rows: Rows | None = None) -> Mask:
    """Mark the packets (of those rows; None: all) whose captured payload holds the bytes."""
    rows = np.arange(len(packets)) if rows is None else rows
    n, width = len(rows), packets.data.shape[1]
    size = len(match.data)
    if n == 0 or size == 0 or size > width:
        return np.zeros(n, np.bool_)
    want = np.frombuffer(match.data, np.uint8)
    care = np.frombuffer(match.compared_bits, np.uint8)
    start = packets.payload_offset[rows].astype(np.int64)
    end = np.minimum(packets.captured[rows], start + packets.payload_length[rows]).astype(np.int64)
    if match.offset is None:
        data = packets.data if n == len(packets) else packets.data[rows]
        return _anywhere(want & care, care, data, start, end)
    at = start + match.offset
    begins = packets.fragment[rows] != Fragment.LATER
    good = np.flatnonzero(begins & (at + size <= end) & (at + size <= width))
    flat, places = packets.data.reshape(-1), rows[good] * width + at[good]
    for i in range(min(size, _ALONE)):  # after a few bytes, few packets remain to be compared as a whole
        same = (flat[places + i] & care[i]) == want[i] & care[i]
        good, places = good[same], places[same]
    window = flat[places[:, None] + np.arange(size)]
    hit = np.zeros(n, np.bool_)
    hit[good[((window & care) == (want & care)).all(1)]] = True
    return hit


def _anywhere(want: U8, care: U8, data: U8, start: I64, end: I64) -> Mask:
    """Search for the rarest byte first, so that few candidates remain for the others."""
    n, width = data.shape
    flat = data.reshape(-1)
    seen = np.bincount(flat[:: max(1, len(flat) // 65_536)], minlength=256)
    order = sorted(np.flatnonzero(care), key=lambda i: int(seen[want[i]]) if care[i] == 255 else 1 << 60)
    hit = np.zeros(n, np.bool_)
    if not order:
        return hit
    first = order[0]
    places = np.flatnonzero((flat & care[first]) == want[first]) - first
    row = places // width
    column = places - row * width
    inside = (places >= 0) & (column >= start[row]) & (column + len(want) <= np.minimum(end[row], width))
    places = places[inside]
    for i in order[1:]:
        places = places[(flat[places + i] & care[i]) == want[i]]
    hit[places // width] = True
    return hit


def limit_groups(limit: RateLimit, packets: PacketBatch, rows: Rows) -> U64:
    """Return the bucket of each row: its source prefix, with the destination port if the limit uses it."""
    four = packets.family[rows] == 4
    hi, lo = packets.src_hi[rows], packets.src_lo[rows]
    hi4, lo4 = cut(hi, lo, 4, limit.prefix_v4)
    hi6, lo6 = cut(hi, lo, 6, limit.prefix_v6)
    key = mix(np.where(four, hi4, hi6), np.where(four, lo4, lo6))
    return mix(key, packets.dport[rows].astype(np.uint64)) if limit.by_dport else key


class Texts(Struct, frozen=True, dict=True):
    """The first WIDTH payload bytes of n packets, zero-padded, and how many of each are real."""

    matrix: U8
    length: I64

    @staticmethod
    def of(packets: PacketBatch, rows: Rows | None = None) -> Texts:
        """Return the payloads of the rows; None: of all packets with one."""
        chosen = np.flatnonzero(packets.payload_length > 0) if rows is None else rows
        return Texts(*payload(packets, chosen, WIDTH))

    def __len__(self) -> int:
        return len(self.length)

    def select(self, rows: Rows | Mask) -> Texts:
        """Select rows."""
        return Texts(self.matrix[rows], self.length[rows])

    @cached_property
    def _blob(self) -> bytes:
        return self.matrix.tobytes()

    @cached_property
    def _lowered(self) -> bytes:
        return self._blob.lower()

    def hits(self, match: PayloadMatch) -> Mask:
        """Mark the packets that contain the bytes, ignoring padding. A mask requires an offset."""
        size = len(match.data)
        if size == 0 or (match.offset or 0) + size > WIDTH or len(self) == 0:
            return np.zeros(len(self), np.bool_)
        if match.offset is None:
            if match.dns_name is None:
                return self._found(match.data, self._blob)
            return self._found(match.data.lower(), self._lowered)
        care = np.frombuffer(match.compared_bits, np.uint8)
        window = self.matrix[:, match.offset : match.offset + size]
        same = (window & care == np.frombuffer(match.data, np.uint8) & care).all(1)
        return np.asarray(same & (self.length >= match.offset + size))

    def _found(self, data: bytes, blob: bytes) -> Mask:
        hit = np.zeros(len(self), np.bool_)
        row, _ = self._first(data, blob, 0)
        while row >= 0:
            hit[row] = True
            row, _ = self._first(data, blob, (row + 1) * WIDTH)
        return hit

    def _first(self, data: bytes, blob: bytes, start: int) -> tuple[int, int]:
        """Return row and column of the first match from `start`, ignoring padding; row -1: none."""
        at = blob.find(data, start)
        while at >= 0:
            row, column = divmod(at, WIDTH)
            if column + len(data) <= self._ends[row]:
                return row, column
            at = blob.find(data, (row + 1) * WIDTH)  # in the padding, or beyond the end of a row
        return -1, 0

    @cached_property
    def _ends(self) -> list[int]:
        return list(self.length.tolist())

    def has(self, match: PayloadMatch) -> bool:
        """Check whether any packet contains the bytes; faster than counting."""
        if match.offset is not None:
            return bool(self.hits(match).any())
        named = match.dns_name is not None
        data = match.data.lower() if named else match.data
        if (data, named) not in self._searched:
            self._searched[data, named] = self._first(data, self._lowered if named else self._blob, 0)[0] >= 0
        return self._searched[data, named]

    @cached_property
    def _searched(self) -> dict[tuple[bytes, bool], bool]:
        """What was searched for, as it is or in names: candidates share pieces."""
        return {}

    def share(self, match: PayloadMatch) -> float:
        """Return the share (0 to 1) of the packets that contain the bytes."""
        return float(self.hits(match).mean()) if len(self) else 0.0


def always_pass(packets: PacketBatch) -> Mask:
    """Mark neighbour discovery from the link itself, without which IPv6 ends: no rule drops it."""
    first, last = _DISCOVERY
    kind = (packets.icmp_type >= first) & (packets.icmp_type <= last)
    return np.asarray((packets.protocol == ICMP6) & kind & (packets.ttl == _FROM_LINK))


def allowed_rows(peers: Iterable[AllowedPeer], packets: PacketBatch) -> Mask:
    """Mark the packets that pass in their sender's role."""
    allowed = np.zeros(len(packets), np.bool_)
    by_role: dict[tuple[Role, int, int], list[Prefix]] = {}
    opens = (packets.tcp_flags & (SYN | ACK | _FIN | _RST)) == SYN
    for peer in peers:
        if peer.conversation is not None:
            allowed |= _in_conversation(peer.conversation, packets, opens)
            continue
        by_role.setdefault((peer.role, peer.port, peer.login_port), []).append(peer.prefix)
    asked = packets.dport >= roles.ASKING_PORTS
    for (role, port, login_port), prefixes in by_role.items():
        if login_port:
            allowed |= match_rows(Match(tuple(prefixes), protocol=TCP, dport=login_port), packets)
            continue
        for match in _matches(role, port, tuple(prefixes)):
            hit = match_rows(match, packets)
            if match.protocol == TCP and match.sport is not None:
                hit = hit & ~opens
            if role is Role.DNS and match.protocol == UDP:
                hit = hit & asked
            allowed |= hit
    return allowed


def _in_conversation(talk: Conversation, packets: PacketBatch, opens: Mask) -> Mask:
    """Mark what passes of a conversation with a host behind this machine."""
    port = None if talk.port == roles.ANY_PORT else talk.port
    peer, host, protocol = (talk.peer,), (talk.host,), talk.protocol
    from_peer = Match(peer, host, protocol=protocol, sport=port)
    to_peer = Match(host, peer, protocol=protocol, dport=port)
    hit = np.zeros(len(packets), np.bool_)
    if talk.peer in talk.senders:
        hit |= match_rows(from_peer, packets)
    if talk.host in talk.senders:
        hit |= match_rows(to_peer, packets)
    if protocol == UDP and port == roles.DNS_PORT:
        hit &= packets.dport >= roles.ASKING_PORTS
    return np.asarray(hit & ~opens if protocol == TCP else hit)


def _matches(role: Role, port: int, sources: tuple[Prefix, ...]) -> Iterator[Match]:
    """Yield what passes of a role; of TCP from a given port only what opens no connection."""
    if role is Role.OPERATOR:
        yield Match(sources)
    elif role is Role.SSH:
        yield Match(sources, protocol=TCP, sport=port)
    elif role is Role.DNS:
        yield Match(sources, protocol=UDP, sport=roles.DNS_PORT)
        yield Match(sources, protocol=TCP, sport=roles.DNS_PORT)
    elif role is Role.NTP:
        yield Match(sources, protocol=UDP, sport=roles.NTP_PORT)
    elif role is Role.GATEWAY:
        for family, (server, client) in roles.DHCP_PORTS.items():
            yield Match(sources, family=family, protocol=roles.ICMP[family])
            yield Match(sources, family=family, protocol=UDP, sport=server, dport=client)
        for number in roles.ROUTING:
            yield Match(sources, protocol=number)
        for bfd in roles.BFD_PORTS:
            yield Match(sources, protocol=UDP, dport=bfd)
        yield Match(sources, protocol=TCP, dport=roles.BGP_PORT)
        yield Match(sources, protocol=TCP, sport=roles.BGP_PORT)


def bars_newcomers(match: Match, limit: RateLimit | None) -> bool:
    """Check for a rule that drops what every new client of a service begins with, or every one of a system.

    It looks at no more than ports, flags, and sizes and windows that are a system's own.
    """
    ranges = (getattr(match, name) for name in RANGES if not _is_usual(match, name))
    narrow = (match.sources, match.payload, match.sport, match.fragment, *ranges)
    mask, value = match.tcp_flags or (0, 0)
    opens = SYN & mask == value and (match.protocol in (TCP, UDP) or match.tcp_flags is not None)
    return limit is None and opens and not any(narrow)


def _is_usual(match: Match, name: str) -> bool:
    """Whether a field has a value that SYNs of common systems have."""
    field: Range | None = getattr(match, name)
    values = _OF_SYNS.get(name, ()) if match.protocol == TCP else ()
    return field is not None and any(field.low <= value <= field.high for value in values)
