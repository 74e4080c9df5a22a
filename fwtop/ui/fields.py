"""What can be edited about a rule before it goes in: typed text that is checked, or steps by arrows."""

from __future__ import annotations

import re
from dataclasses import replace

from fwtop.model.rule import Kind, RateLimit, Rule
from fwtop.model.wording import summarised
from fwtop.ui.field import PREFIXES, BadText, Field, lengths, stepped, whole_number
from fwtop.ui.format import span
from fwtop.ui.match_fields import PROTOCOL, TCP_FLAGS, payload_fields, port_field, range_field, sources_field

_RUNGS = (Kind.NFTABLES, Kind.TC, Kind.XDP)  # from the stack down to the driver
_SPANS = (
    ("ttl", "ttl", 1, 255),
    ("ip id", "ip_id", 0, 65535),
    ("sequence", "tcp_seq", 0, 0xFFFF_FFFF),
    ("window", "tcp_window", 0, 65535),
    ("header", "tcp_header", 20, 60),
)
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_TTL_STEPS = (30, 60, 300, 600, 1800, 3600, 7200, 21600, 86400)
_RATE_STEPS = (1, 5, 10, 50, 100, 500, 1000, 5000, 10_000, 50_000, 100_000)
_LONGEST_SECONDS = 30 * 86400


def fields_of(original: Rule) -> tuple[Field, ...]:
    """Return what can be edited about a rule, given as it was when the dialog was opened."""
    match = original.match
    found: list[Field] = []
    if match.sources and original.origin is None:
        found.append(sources_field(match.sources))
    if len(match.payload) == 1:
        found += payload_fields(match.payload[0])
    found.append(PROTOCOL)
    if original.kind in (Kind.HASHLIMIT, Kind.NOTRACK, *_RUNGS) or match.sport is not None:
        found.append(port_field("sport"))
    found.append(port_field("dport"))
    if original.kind in _RUNGS or match.ip_length is not None:
        found.append(range_field("length", "ip_length", 20, 65535))
    if match.tcp_flags is not None or (original.kind in _RUNGS and match.protocol == 6):
        found.append(TCP_FLAGS)
    for name, attribute, low, high in _SPANS:
        if getattr(match, attribute) is not None:
            found.append(range_field(name, attribute, low, high))
    if original.limit is not None:
        found += [_RATE, _PER]
    if len(_ways(original)) > 1:
        found.append(_VIA)
    return (*found, _FOR)


# -- by which mechanism


def _ways(rule: Rule) -> tuple[Kind, ...]:
    """Return the kinds that can carry out what a rule asks."""
    if rule.limit is not None:
        return (Kind.HASHLIMIT, Kind.TC, Kind.XDP)
    if rule.kind not in (*_RUNGS, Kind.IPSET, Kind.STRING):
        return (rule.kind,)
    if rule.match.payload:
        return (Kind.STRING, *_RUNGS)
    return (Kind.IPSET, *_RUNGS) if rule.match.sources or rule.origin else _RUNGS


def _write_via(rule: Rule, text: str) -> Rule:
    ways = _ways(rule)
    if text.strip().lower() not in ways:
        raise BadText(f"this rule can go in by {', '.join(ways)}")
    return summarised(replace(rule, kind=Kind(text.strip().lower())))


def _step_via(rule: Rule, delta: int) -> Rule:
    ways = _ways(rule)
    return summarised(replace(rule, kind=ways[(ways.index(rule.kind) + delta) % len(ways)]))


_VIA = Field("via", lambda rule: rule.kind.value, _write_via, _step_via)


# -- how long


def _write_for(rule: Rule, text: str) -> Rule:
    found = re.fullmatch(r"(\d{1,7})\s*(s|min|m|h|d)", text.strip().lower(), re.ASCII)
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 1 <= seconds <= _LONGEST_SECONDS:
        raise BadText("a time is a number with s, m, h or d, up to 30d: 30s, 10m, 2h, 1d")
    return replace(rule, ttl_seconds=seconds)


_FOR = Field(
    "for",
    lambda rule: span(rule.ttl_seconds),
    _write_for,
    lambda rule, delta: replace(rule, ttl_seconds=stepped(_TTL_STEPS, rule.ttl_seconds, delta)),
)


# -- how much


def _limit(rule: Rule) -> RateLimit:
    if rule.limit is None:
        raise BadText("this rule has no rate")
    return rule.limit


def _with_limit(rule: Rule, limit: RateLimit) -> Rule:
    return summarised(replace(rule, limit=limit))


def _write_rate(rule: Rule, text: str) -> Rule:
    value = text.strip().lower().removesuffix("/s")
    thousands = value.endswith("k")
    number_of = whole_number(value.removesuffix("k"), 1, 10_000_000, "a rate a second (5k: 5000)")
    rate = number_of * 1000 if thousands else number_of
    return _with_limit(rule, replace(_limit(rule), per_second=rate, burst=rate))


def _write_per(rule: Rule, text: str) -> Rule:
    four, six = lengths(text, whole=64)
    return _with_limit(rule, replace(_limit(rule), prefix_v4=four, prefix_v6=six))


def _step_rate(rule: Rule, delta: int) -> Rule:
    rate = stepped(_RATE_STEPS, _limit(rule).per_second, delta)
    return _with_limit(rule, replace(_limit(rule), per_second=rate, burst=rate))


def _step_per(rule: Rule, delta: int) -> Rule:
    present = (_limit(rule).prefix_v4, _limit(rule).prefix_v6)
    four, six = stepped(PREFIXES, present, -delta)
    return _with_limit(rule, replace(_limit(rule), prefix_v4=four, prefix_v6=six))


_RATE = Field("rate", lambda rule: f"{_limit(rule).per_second}/s", _write_rate, _step_rate)
_PER = Field("per", lambda rule: f"/{_limit(rule).prefix_v4}/{_limit(rule).prefix_v6}", _write_per, _step_per)
