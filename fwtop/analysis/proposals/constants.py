"""Header fields in which one value dominates: many floods have a constant that no real host has."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from fwtop.analysis.window.features import Features, Top, top_of
from fwtop.analysis.window.tcp_view import ACK, SYN
from fwtop.analysis.window.traffic import TCP, UDP, Rows
from fwtop.model.rule import Match, Range
from fwtop.model.traffic.packets import FLAG_TRUNCATED, Fragment
from fwtop.render.numbers import percent

Form = tuple[str, Match, str]  # an identifier, the match, the reason in words
_MOST = 0.9  # of the packets have the value
_NEARLY_ALL = 0.95
_FEW_SOURCES = 20  # few hosts may share a TTL
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


def narrowed(features: Features, base: Match, *, requests: bool, guess: bool) -> list[Form]:
    """Return matches by fields: those of the vector, and narrowed by further constant fields.

    Without a baseline (`guess`), values that real hosts use are not taken as constants of an attack.
    """
    ported = base.sport is not None or base.dport is not None
    found: list[Form] = []
    specific = base.protocol not in (None, TCP, UDP) or ported or base.tcp_flags is not None or base.fragment
    if specific and not requests:
        found.append(("fields", base, "all its packets have these fields"))
    length, ttl = features.top("ip_length"), features.top("ttl")
    if length.share > _MOST:
        only = replace(base, ip_length=_exactly(length))
        found.append(("length", only, _has(length, "length")))
        if ttl.share > _MOST:
            both = replace(only, ttl=_exactly(ttl))
            share = percent(min(length.share, ttl.share))
            found.append(("length and ttl", both, f"{share} of its packets have both"))
    elif base.protocol == UDP and ported and features.n >= 50:
        low = int(np.quantile(features.traffic.packets.ip_length[features.rows], 0.02))
        if low >= _LARGE:
            found.append(
                ("large", replace(base, ip_length=Range(low, 65535)), "98 % of its packets are that large")
            )
    if ttl.share > _NEARLY_ALL and features.sources > _FEW_SOURCES:
        only = replace(base, ttl=_exactly(ttl))
        found.append(("ttl", only, _has(ttl, "TTL")))
    return found + _odd(features, base, guess=guess)


def _odd(features: Features, base: Match, *, guess: bool) -> list[Form]:
    """Return matches with a constant source port, IP ID, window or TCP header length."""
    packets, rows = features.traffic.packets, features.rows
    rows = rows[packets.fragment[rows] != Fragment.LATER]
    found: list[Form] = []
    sport = _top(features, "sport", rows)
    if base.protocol in (TCP, UDP) and base.sport is None and sport.share > _MOST and sport.value:
        found.append(("sport", replace(base, sport=sport.value), _has(sport, "source port")))
    number = features.top("ip_id")
    # Linux sets 0 in unfragmentable packets without a connection (any value is valid: RFC 6864, 4.1)
    if base.family == 4 and number.share > _MOST and (number.value or not guess):
        found.append(("ip id", replace(base, ip_id=_exactly(number)), _has(number, "IP id")))
    whole = rows[(packets.flags[rows] & FLAG_TRUNCATED) == 0]
    return found + (_of_segments(features, base, whole, guess=guess) if base.protocol == TCP else [])


def _of_segments(features: Features, base: Match, rows: Rows, *, guess: bool) -> list[Form]:
    found: list[Form] = []
    opens = base.tcp_flags is not None and base.tcp_flags[0] & base.tcp_flags[1] & (SYN | ACK) == SYN
    window, header = _top(features, "tcp_window", rows), _top(features, "tcp_header", rows)
    usual = window.value in _USUAL_WINDOWS or (window.value == 0 and not opens)
    if window.share > _MOST and not (guess and usual):
        found.append(("window", replace(base, tcp_window=_exactly(window)), _has(window, "window")))
    number = _top(features, "tcp_seq", rows)
    if number.share > _MOST:
        found.append(("sequence", replace(base, tcp_seq=_exactly(number)), _has(number, "sequence number")))
    # Every real system sends options in SYNs (RFC 9293, 3.7.1); later segments often have none
    bare = opens and header.value == _WITHOUT_OPTIONS
    if header.share > _MOST and header.value >= _WITHOUT_OPTIONS and (bare or not guess):
        found.append(
            ("header", replace(base, tcp_header=_exactly(header)), _has(header, "TCP header length"))
        )
    return found


def _top(features: Features, column: str, rows: Rows) -> Top:
    return top_of(getattr(features.traffic.packets, column)[rows], features.traffic.weight[rows])


def _exactly(top: Top) -> Range:
    return Range(top.value, top.value)


def _has(top: Top, what: str) -> str:
    return f"{percent(top.share)} of its packets have this {what}"
