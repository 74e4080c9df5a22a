"""Header fields in which one value dominates: many floods have one odd constant that no real hosts have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fwtop.advise.facts import Facts, Top, top_of
from fwtop.advise.tcpview import ACK, SYN
from fwtop.advise.traffic import TCP, UDP, Rows
from fwtop.model.packets import FLAG_TRUNCATED, Fragment
from fwtop.model.percent import percent
from fwtop.model.rule import Match, Range

Form = tuple[str, Match, str]  # what tells it from others, the match, the reason in words
_MOST = 0.9  # of the packets have the value
_NEARLY_ALL = 0.95
_FEW_SOURCES = 20  # a TTL is that of few hosts, too
_LARGE = 300  # bytes of IP
# Windows that real systems open with: Linux since 4.20, before and with jumbo frames, Windows, macOS and
# BSD, Solaris (the signatures of p0f 3, file p0f.fp)
_USUAL_WINDOWS = (
    64240,
    65535,
    29200,
    28960,
    14600,
    5840,
    8192,
    16384,
    32120,
    32768,
    42340,
    62727,
    64000,
    64800,
)
_WITHOUT_OPTIONS = 20  # bytes of TCP header


def narrowed(facts: Facts, base: Match, *, requests: bool, guess: bool) -> list[Form]:
    """Return the forms of a drop by fields: the vector's own, and with further ones that have one value.

    With a `guess` in a baseline's place, a value that real hosts have is no sign of an attack.
    """
    ported = base.sport is not None or base.dport is not None
    found: list[Form] = []
    specific = base.protocol not in (None, TCP, UDP) or ported or base.tcp_flags is not None or base.fragment
    if specific and not requests:
        found.append(("fields", base, "all of it has these fields"))
    length, ttl = facts.top("ip_length"), facts.top("ttl")
    if length.share > _MOST:
        only = replace(base, ip_length=_exactly(length))
        found.append(("length", only, _has(length, "length")))
        if ttl.share > _MOST:
            both = replace(only, ttl=_exactly(ttl))
            share = percent(min(length.share, ttl.share))
            found.append(("length and ttl", both, f"{share} of it has both"))
    elif base.protocol == UDP and ported and facts.n >= 50:
        low = int(np.quantile(facts.traffic.packets.ip_length[facts.rows], 0.02))
        if low >= _LARGE:
            found.append(("large", replace(base, ip_length=Range(low, 65535)), "98 % of it is that large"))
    if ttl.share > _NEARLY_ALL and facts.sources > _FEW_SOURCES:
        only = replace(base, ttl=_exactly(ttl))
        found.append(("ttl", only, _has(ttl, "TTL")))
    return found + _odd(facts, base, guess=guess)


def _odd(facts: Facts, base: Match, *, guess: bool) -> list[Form]:
    """Return those with a source port, IP id, window or TCP header that nearly all of it has."""
    packets, rows = facts.traffic.packets, facts.rows
    rows = rows[packets.fragment[rows] != Fragment.LATER]
    found: list[Form] = []
    sport = _top(facts, "sport", rows)
    if base.protocol in (TCP, UDP) and base.sport is None and sport.share > _MOST and sport.value:
        found.append(("sport", replace(base, sport=sport.value), _has(sport, "source port")))
    number = facts.top("ip_id")
    # Linux gives 0 to what is not to be fragmented and has no connection (any will do: RFC 6864, 4.1)
    if base.family == 4 and number.share > _MOST and (number.value or not guess):
        found.append(("ip id", replace(base, ip_id=_exactly(number)), _has(number, "IP id")))
    whole = rows[(packets.flags[rows] & FLAG_TRUNCATED) == 0]
    return found + (_of_segments(facts, base, whole, guess=guess) if base.protocol == TCP else [])


def _of_segments(facts: Facts, base: Match, rows: Rows, *, guess: bool) -> list[Form]:
    found: list[Form] = []
    opens = base.tcp_flags is not None and base.tcp_flags[0] & base.tcp_flags[1] & (SYN | ACK) == SYN
    window, header = _top(facts, "tcp_window", rows), _top(facts, "tcp_header", rows)
    usual = window.value in _USUAL_WINDOWS or (window.value == 0 and not opens)
    if window.share > _MOST and not (guess and usual):
        found.append(("window", replace(base, tcp_window=_exactly(window)), _has(window, "window")))
    number = _top(facts, "tcp_seq", rows)
    if number.share > _MOST:
        found.append(("sequence", replace(base, tcp_seq=_exactly(number)), _has(number, "sequence number")))
    # Every real system opens with options (RFC 9293, 3.7.1); what follows has none as often as not
    bare = opens and header.value == _WITHOUT_OPTIONS
    if header.share > _MOST and header.value >= _WITHOUT_OPTIONS and (bare or not guess):
        found.append(
            ("header", replace(base, tcp_header=_exactly(header)), _has(header, "TCP header length"))
        )
    return found


def _top(facts: Facts, column: str, rows: Rows) -> Top:
    return top_of(getattr(facts.traffic.packets, column)[rows], facts.traffic.weight[rows])


def _exactly(top: Top) -> Range:
    return Range(top.value, top.value)


def _has(top: Top, what: str) -> str:
    return f"{percent(top.share)} of it has this {what}"
