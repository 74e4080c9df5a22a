"""Whether a rule matches a segment, as the mechanism that enforces it compares them.

Addresses are the caller's business. Mechanisms differ in where they look for bytes: xt_string searches the
whole packet from the IP header on, compiled rules the beginning of the payload, and those that keep packets
from being tracked have no match on payload at all.
"""

from __future__ import annotations

from fwtop.model.rule import Kind, Match, PayloadMatch, Range
from fwtop.model.traffic.protocols import TCP
from fwtop.rehearsal.segments import Open, Segment, cut, flat, length_of
from fwtop.rules.kinds import of
from fwtop.rules.kinds.compiled import SEARCHED_BYTES

CHANCE = 1 / 8  # of segments that differ in what is left open: from this share on, they count as matched


def matches(kind: Kind, match: Match, segment: Segment) -> bool:
    """Return whether a rule with this match, addresses aside, is about a segment."""
    return _header(match, segment) and (not of(kind).reads_payload or _payloads(kind, match, segment))


def _header(match: Match, segment: Segment) -> bool:
    if segment.family not in match.families or match.protocol not in (None, TCP):
        return False
    if match.icmp_type is not None or match.fragment:
        return False
    if match.dport not in (None, segment.dport) or (match.sport is not None and match.sport != segment.sport):
        return False
    mask, value = match.tcp_flags or (0, 0)
    return (
        segment.flags & mask == value
        and _within(match.ip_length, segment.length)
        and _within(match.tcp_header, segment.header)
        and (match.ttl is None or _meet(match.ttl, segment.ttls))
        and (match.tcp_window is None or any(_meet(match.tcp_window, one) for one in segment.windows))
        and _by_chance(match.tcp_seq, None, 32)
        and _by_chance(match.ip_id, segment.ip_id, 16)
    )


def spares_some(match: Match, segment: Segment) -> bool:
    """Return whether a match is about some such segments only: by what is left open in them."""
    inside = match.ttl is None or _holds(match.ttl, segment.ttls)
    inside = inside and (
        match.tcp_window is None or all(_holds(match.tcp_window, one) for one in segment.windows)
    )
    ids = Range(0, 0xFFFF) if segment.ip_id is None else Range(segment.ip_id, segment.ip_id)
    inside = inside and (match.ip_id is None or _holds(match.ip_id, ids))
    return not inside or not (match.tcp_seq is None or _holds(match.tcp_seq, Range(0, 0xFFFF_FFFF)))


def _holds(span: Range, other: Range) -> bool:
    return span.low <= other.low and other.high <= span.high


def _within(span: Range | None, value: int) -> bool:
    return span is None or span.low <= value <= span.high


def _meet(one: Range, other: Range) -> bool:
    return one.low <= other.high and other.low <= one.high


def _by_chance(span: Range | None, value: int | None, bits: int) -> bool:
    if span is None or value is not None:
        return span is None or (value is not None and _within(span, value))
    return (span.high - span.low + 1) / (1 << bits) >= CHANCE


def _payloads(kind: Kind, match: Match, segment: Segment) -> bool:
    return all(
        _anywhere(kind, item, segment) if item.offset is None else _at(item, item.offset, segment.payload)
        for item in match.payload
    )


def _at(item: PayloadMatch, offset: int, payload: Open) -> bool:
    data, known = flat(cut(payload, offset, offset + len(item.data)))
    if len(data) < len(item.data):
        return False
    left_open = 0
    for have, sure, want, care in zip(data, known, item.data, item.compared_bits, strict=True):
        if (have ^ want) & care & sure:
            return False
        left_open += (care & ~sure).bit_count()
    return 1 / (1 << left_open) >= CHANCE


def _anywhere(kind: Kind, item: PayloadMatch, segment: Segment) -> bool:
    searched = cut(segment.payload, 0, SEARCHED_BYTES) if of(kind).is_compiled else segment.packet
    if item.mask is not None:
        places = range(length_of(searched) - len(item.data) + 1)
        return any(_at(item, place, searched) for place in places)
    folded = item.dns_name is not None
    wanted = item.data.lower() if folded else item.data
    known = [part.lower() if folded else part for part in _joined(searched)]
    if any(wanted in part for part in known):
        return True
    left_open = sum(part for part in searched if isinstance(part, int))
    return left_open / (1 << 8 * len(wanted)) >= CHANCE


def _joined(parts: Open) -> list[bytes]:
    """Return the runs of known bytes."""
    found, run = [], b""
    for part in parts:
        if isinstance(part, int):
            found.append(run)
            run = b""
        else:
            run += part
    return [*found, run]
