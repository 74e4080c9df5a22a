"""What a rule would do to logins and to what this host asks of others, tried segment by segment.

The sender may be anywhere: whom a rule's sources spare, and that the operator's own addresses pass in their
role, is the caller's to know.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from fwtop.model.rule import Kind, Match, Range, RateLimit
from fwtop.rehearsal.logins import SYSTEMS, answers, login
from fwtop.rehearsal.matching import matches, spares_some
from fwtop.rehearsal.segments import Segment
from fwtop.rules.kinds import of

_LEAST_RATE = {False: 10, True: 10_000}  # packets, bytes a second that a login needs
_SHOWN_BYTES = 16


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


def rehearse(kind: Kind, match: Match, ports: Iterable[int]) -> Met:
    """Try a match on the logins at these ports and on answers from anywhere, over the match's families."""
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


def why_cut(met: Met, match: Match) -> str | None:
    """Say in a sentence what would be dropped, None if nothing would."""
    if met.segments:
        names = dict.fromkeys(segment.system for segment in met.segments)
        whose = "" if len(names) == len(SYSTEMS) else f" from {_listed([*names])} hosts"
        what = _described(met.segments, match)
        return f"new SSH logins{whose} would be dropped ({what})"
    if met.answers:
        what = _described(met.answers, match)
        return f"answers to connections that this host opens would be dropped ({what})"
    return None


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


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
        text = data.decode("ascii", "replace")
        shown = (
            f"'{text[:_SHOWN_BYTES]}'"
            if data.isascii() and text.isprintable()
            else data.hex()[: 2 * _SHOWN_BYTES]
        )
        words.append(f"with {shown}")
    return ", ".join(words)


def _common(one: Range, other: Range) -> Range:
    return Range(max(one.low, other.low), min(one.high, other.high))


def _span(span: Range) -> str:
    return str(span.low) if span.low == span.high else f"{span.low} to {span.high}"
