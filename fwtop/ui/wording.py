"""A rule in words: what it does to which packets, said anew after the operator has edited it."""

from __future__ import annotations

from fwtop.model.address import Prefix
from fwtop.model.rule import Kind, Match, PayloadMatch, Range, RateLimit, Rule
from fwtop.model.text import payload_text
from fwtop.ui.format import cut, number

PROTOCOLS = {"icmp": 1, "tcp": 6, "udp": 17, "gre": 47, "esp": 50, "icmpv6": 58, "sctp": 132}
_NAMES = {code: name for name, code in PROTOCOLS.items()}


def describe(rule: Rule) -> str:
    """Say what a rule does, in the words of the keys."""
    what = _packets(rule)
    if rule.kind is Kind.HASHLIMIT and rule.limit is not None:
        return f"limit {what} to {rate_text(rule.limit)}"
    if rule.kind is Kind.NOTRACK:
        return f"do not track {what}"
    if rule.kind is Kind.IPSET:
        return f"block {what}"
    return f"drop {what} in the driver" if rule.kind is Kind.XDP else f"drop {what}"


def rate_text(limit: RateLimit) -> str:
    """Say a limit as 1.00k/s per /24 (IPv6 /56)."""
    unit = " bytes" if limit.in_bytes else ""
    return f"{number(limit.per_second)}{unit}/s per /{limit.prefix_v4} (IPv6 /{limit.prefix_v6})"


def protocol_text(number_of: int | None) -> str:
    """Return a protocol's name, its number, or any."""
    return "any" if number_of is None else _NAMES.get(number_of, str(number_of))


def range_text(wanted: Range | None) -> str:
    """Write a range as 66 or 60-70, or any."""
    if wanted is None:
        return "any"
    return str(wanted.low) if wanted.low == wanted.high else f"{wanted.low}-{wanted.high}"


def sources_text(sources: tuple[Prefix, ...]) -> str:
    """Name one source, or count them."""
    return str(sources[0]) if len(sources) == 1 else f"{len(sources)} sources"


def _packets(rule: Rule) -> str:
    match = rule.match
    parts = [_traffic(match)] if _traffic(match) else []
    if match.ip_length is not None:
        parts.append(f"of {range_text(match.ip_length)} bytes")
    if match.ttl is not None:
        parts.append(f"with TTL {range_text(match.ttl)}")
    if match.tcp_flags is not None:
        parts.append("with flags {:#04x} of {:#04x}".format(*reversed(match.tcp_flags)))
    if match.fragment:
        parts.append("in fragments")
    parts += [f"with {_bytes(wanted)}" for wanted in match.payload]
    origin = (rule.origin or "").removeprefix("asn:").removeprefix("country:")
    if rule.origin is not None:
        parts.append(f"from {'AS' if rule.origin.startswith('asn:') else ''}{origin}")
    elif match.sources:
        named = sources_text(match.sources)
        parts.append(named if not parts else f"from {named}")
    return " ".join(parts) or "everything"


def _traffic(match: Match) -> str:
    ports = [f"src {match.sport}"] * (match.sport is not None) + [f"dst {match.dport}"] * (
        match.dport is not None
    )
    name = [] if match.protocol is None else [protocol_text(match.protocol)]
    return " ".join(name + ports) or ("packets" if _has_conditions(match) else "")


def _has_conditions(match: Match) -> bool:
    return bool(match.ip_length or match.ttl or match.tcp_flags or match.fragment or match.payload)


def _bytes(wanted: PayloadMatch) -> str:
    shown = wanted.dns_name if wanted.dns_name is not None else payload_text(wanted.data)
    return f"“{cut(shown, 40)}”" + ("" if wanted.offset is None else f" at +{wanted.offset}")
