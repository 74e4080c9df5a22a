"""What a rule would do to logins and to what this host asks of others, tried segment by segment.

A rule is compared as the mechanism that enforces it does. They differ in where they look for bytes:
xt_string searches the whole packet from the IP header on, compiled rules the beginning of the payload, and
those that keep packets from being tracked have no match on payload at all. The sender may be anywhere: whom
a rule's sources spare, and that the operator's own addresses pass in their role, is the caller's to know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby

from msgspec import Struct
from msgspec.structs import replace

from fwtop.model.harm import Loss, Weight, Who
from fwtop.model.rule import Kind, Match, PayloadMatch, Range, RateLimit
from fwtop.model.text import safe_text
from fwtop.model.traffic.protocols import TCP
from fwtop.rehearsal.logins import (
    SYSTEMS,
    Open,
    Segment,
    answers,
    cut,
    flat,
    length_of,
    login,
)
from fwtop.rules.kinds import of
from fwtop.rules.kinds.compiled import SEARCHED_BYTES

_LEAST_RATE = {False: 10, True: 10_000}  # packets, bytes a second that a login needs
_SHOWN_BYTES = 16
_CLIENT, _SERVER = 40_000, 443  # ports of an untracked packet
CHANCE = 1 / 8  # of segments that differ in what is left open: from this share on, they count as matched


class Met(Struct, frozen=True):
    """The segments of logins, and of answers to this host, that a rule matches."""

    segments: tuple[Segment, ...]  # the first of each kind of client, in order
    whole: bool  # it matches all that have the rule's flags: no other condition makes a difference
    packets: int  # of the login of which most are matched
    bytes: int
    answers: tuple[Segment, ...] = ()

    def slowed(self, kind: Kind, limit: RateLimit) -> bool:
        """Return whether a limit on these packets, kept for each client alone, leaves too few for a login."""
        used = self.bytes if limit.in_bytes else self.packets
        return used > of(kind).burst(limit) and limit.per_second < _LEAST_RATE[limit.in_bytes]


def meet(kind: Kind, match: Match, ports: Iterable[int]) -> Met:
    """Try a match on the logins at these ports and on answers from anywhere, over the match's families."""
    if match.protocol not in (None, TCP) or match.icmp_type is not None or match.fragment:
        return Met((), False, 0, 0)
    wanted = sorted(port for port in ports if match.dport in (None, port))
    met: list[Segment] = []
    whole, packets, size = True, 0, 0
    for port in wanted[:1] if match.dport is None else wanted:  # without a port one login is like another
        for family in match.families:
            for client in login(port, family):
                hits = [segment for segment in client if matches(kind, match, segment)]
                counted = [segment for segment in hits if not segment.other]
                met += hits[:1]
                packets = max(packets, len(counted))
                size = max(size, sum(segment.length for segment in counted))
                whole = whole and len(hits) == sum(_has_flags(match, segment) for segment in client)
                whole = whole and not any(spares_some(match, segment) for segment in hits)
    found = tuple(
        segment for family in match.families for segment in answers(family) if matches(kind, match, segment)
    )
    if not met:
        asked = sum(len(answers(family)) for family in match.families)
        whole = len(found) == asked and not any(spares_some(match, segment) for segment in found)
    return Met(tuple(met), whole and bool(met or found), packets, size, found)


def _has_flags(match: Match, segment: Segment) -> bool:
    mask, value = match.tcp_flags or (0, 0)
    return segment.flags & mask == value


def why_cut(met: Met, match: Match) -> Loss | None:
    """Say what would be dropped, None if nothing would."""
    if met.segments:
        names = [*dict.fromkeys(segment.system for segment in met.segments)]
        listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        whose = "" if len(names) == len(SYSTEMS) else f" from {listed} hosts"
        what = _described(met.segments, match)
        words = f"new SSH logins{whose} would be dropped ({what})"
        return Loss(Who.LOGINS, words, Weight.NEEDS_FORCE)
    if met.answers:
        what = _described(met.answers, match)
        words = f"answers to connections that this host opens would be dropped ({what})"
        return Loss(Who.ASKED, words, Weight.NEEDS_FORCE)
    return None


def _described(segments: Sequence[Segment], match: Match) -> str:
    """Name the first segment, by what the rule asks of it."""
    first = segments[0]
    words = [first.step]
    if match.ip_length is not None:
        words.append(f"length {first.length}")
    if match.ttl is not None:
        words.append(f"TTL {_span(_common(match.ttl, first.ttls))}")
    if match.tcp_window is not None:
        met = (_common(match.tcp_window, one) for one in first.windows)
        words.append(f"window {next(_span(one) for one in met if one.low <= one.high)}")
    if match.tcp_header is not None:
        words.append(f"TCP header of {first.header} bytes")
    if match.payload and (first.payload or first.step != "SYN"):
        data = match.payload[0].data
        text = data[:_SHOWN_BYTES].decode("ascii", "replace")
        readable = data.isascii() and data.decode("ascii").isprintable()
        words.append(f"with '{text}'" if readable else f"with {data[:_SHOWN_BYTES].hex()}")
    return ", ".join(words)


def _common(one: Range, other: Range) -> Range:
    return Range(max(one.low, other.low), min(one.high, other.high))


def _span(span: Range) -> str:
    return str(span.low) if span.low == span.high else f"{span.low} to {span.high}"


def matches(kind: Kind, match: Match, segment: Segment) -> bool:
    """Return whether a rule with this match, addresses aside, is about a segment."""
    return _header(match, segment) and all(
        _anywhere(kind, item, segment) if item.offset is None else _at(item, item.offset, segment.payload)
        for item in (match.payload if of(kind).reads_payload else ())
    )


def _header(match: Match, segment: Segment) -> bool:
    if segment.family not in match.families or match.protocol not in (None, TCP):
        return False
    if match.icmp_type is not None or match.fragment:
        return False
    if match.dport not in (None, segment.dport) or (match.sport is not None and match.sport != segment.sport):
        return False
    return (
        _has_flags(match, segment)
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
        return _within(span, value or 0)
    return (span.high - span.low + 1) / (1 << bits) >= CHANCE


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
    runs = groupby(parts, lambda part: isinstance(part, bytes))
    return [b"".join(map(bytes, run)) for known, run in runs if known]


def why_lost(match: Match, ports: Iterable[int], named: Callable[[Match], str]) -> Loss | None:
    """Say what might be dropped because it is no longer tracked, None if nothing would.

    `named` names a rule of this host's own that packets may have to be tracked for.
    """
    for who, what, packets in chain(_logins(match, ports), _asked(match)):
        if rule := named(packets):
            words = f"{what} may be dropped by this host's own rules: untracked, they don't meet"
            return Loss(who, f"{words} '{safe_text(rule, limit=140)}'", Weight.NEEDS_FORCE)
    return None


def _logins(match: Match, ports: Iterable[int]) -> Iterator[tuple[Who, str, Match]]:
    """Yield the logins that a match is about."""
    for port in sorted(ports):
        for family in match.families:
            segments = (item for client in login(port, family) for item in client)
            if any(matches(Kind.NOTRACK, match, item) for item in segments):
                yield Who.LOGINS, "new SSH logins", Match(family=family, protocol=TCP, dport=port)


def _asked(match: Match) -> Iterator[tuple[Who, str, Match]]:
    """Yield the answers to this host that a match is about."""
    port, anywhere = match.sport or _SERVER, replace(match, sport=None)
    for family in match.families:
        if any(matches(Kind.NOTRACK, anywhere, item) for item in answers(family)):
            packets = Match(family=family, protocol=TCP, sport=port, dport=_CLIENT)
            yield Who.ASKED, "answers to connections that this host opens", packets
