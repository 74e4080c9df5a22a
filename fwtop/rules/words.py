"""Rules in words: the packets they match and what happens to them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from fwtop.model.rule import (
    ConnectionLimit,
    Kind,
    Level,
    Match,
    PayloadMatch,
    Protection,
    Range,
    Rule,
)
from fwtop.model.text import payload_text, safe_text
from fwtop.model.traffic.dns import split_wire, type_text
from fwtop.model.traffic.protocols import flags_text, spoken_protocol
from fwtop.rules.rates import as_kept, is_rounded

_TEXTUAL = 0.75  # share of printable bytes from which a payload is shown as text
_MAX_PAYLOAD_CHARACTERS = 40
_PLACES = {Kind.XDP: " in the driver", Kind.TC: " at tc ingress", Kind.NFTABLES: " at netdev ingress"}
_KEEPERS = {Kind.HASHLIMIT: "hashlimit", Kind.XDP: "the XDP program", Kind.TC: "the tc program"}
_ORIGINS = {"asn": "AS", "list": "list "}
_SHORTEST, _LONGEST = 20, 65_535  # of an IP packet, bytes
_NO_OPTIONS = 20  # bytes of TCP header


def summarise(rule: Rule) -> str:
    """Describe a rule in one line."""
    if rule.parts:
        return f"{rule.playbook}: {'; '.join(map(summarise, rule.parts))}"
    if rule.kind is Kind.SYSCTL:
        return "set " + ", ".join(f"{item.name}={item.value}" for item in rule.settings)
    return _summarise_packets(rule)


def _summarise_packets(rule: Rule) -> str:
    what = describe(rule.match, origin=rule.origin)
    if rule.kind is Kind.NOTRACK:
        return f"do not track {what}"
    if rule.kind is Kind.SYNPROXY:
        return f"answer handshakes of {what} with SYN cookies"
    if rule.kind is Kind.CONNLIMIT or rule.protection is not None:
        return _of_connections(rule, what)
    place = _PLACES.get(rule.kind, "")
    if place and " with " in what:
        place = f",{place}"  # else it seems to belong to what the packets hold
    if rule.limit is not None:
        return f"limit {what} to {rate_text(rule)}{place}"
    return f"block {what}" if rule.kind is Kind.IPSET else f"drop {what}{place}"


def _of_connections(rule: Rule, what: str) -> str:
    if rule.protection is not None:
        return f"{protection_text(rule.protection)}: {what}"
    return f"limit {what} to {connections_text(rule.connections)}" if rule.connections else f"limit {what}"


def with_summary(rule: Rule) -> Rule:
    """Return the rule with its description as summary."""
    return replace(rule, summary=summarise(rule))


def rate_text(rule: Rule) -> str:
    """Describe a rule's limit as the kernel keeps it: 1,000/s per /24 (IPv6 /56)."""
    asked, limit = rule.limit, as_kept(rule)
    if asked is None or limit is None:
        return "any rate"
    unit = " bytes" if limit.in_bytes else ""
    each = " and port" if limit.by_dport else ""
    rate = f"{asked.per_second:,}{unit}/s"
    if is_rounded(rule):
        rate = f"{limit.per_second:,}{unit}/s ({rate} rounded by {_KEEPERS.get(rule.kind, 'the kernel')})"
    return f"{rate} per /{limit.prefix_v4} (IPv6 /{limit.prefix_v6}){each}"


def rounding_text(rule: Rule) -> str:
    """Say which rates the kernel keeps instead of those asked for; "" if none, or the summary says it."""
    told = [rate_text(part) for part in rule.parts or (rule,) if is_rounded(part)]
    return "; ".join(f"limit: {text}" for text in told if text not in rule.summary)


def connections_text(limit: ConnectionLimit) -> str:
    """Describe a limit of connections: 20 connections per /32 (IPv6 /64)."""
    noun = "connection" if limit.most == 1 else "connections"
    return f"{limit.most:,} {noun} per /{limit.prefix_v4} (IPv6 /{limit.prefix_v6})"


def protection_text(protection: Protection) -> str:
    """Describe a protected port's level and access lists: protected, open to lists office and vpn."""
    words = [protection.level.value]
    if protection.level is Level.PROTECTED:
        noun = "list" if len(protection.lists) == 1 else "lists"
        words.append(f"open to {noun} {' and '.join(map(safe_text, protection.lists))}")
    words += ["strict"] if protection.strict else []
    words += [f"priority {protection.priority}"] if protection.priority else []
    return ", ".join(words)


def describe(match: Match, *, origin: str | None = None) -> str:
    """Describe the packets that match; "everything" without a condition.

    `origin` is what the sources were made from: asn:N, country:CC or @file.
    """
    words = [*_traffic(match), *_phrase("of", _size(match)), *_phrase("with", _contents(match))]
    if match.destinations:
        words.append(f"to {_counted(match.destinations, 'destinations')}")
    if origin is not None:
        return " ".join([*words, *(["from"] if words else []), _origin(origin)])
    if match.sources:
        words += [*(["from"] if words else []), _counted(match.sources, "sources")]
    return " ".join(words) or "everything"


def _phrase(preposition: str, things: Sequence[str]) -> list[str]:
    """Return one phrase for all things: with TTL 9, window 512 and no TCP options."""
    if not things:
        return []
    *first, last = things
    return [f"{preposition} {', '.join(first)} and {last}" if first else f"{preposition} {last}"]


def range_text(wanted: Range) -> str:
    """Format a range: 66, or 60 to 70."""
    return f"{wanted.low}" if wanted.low == wanted.high else f"{wanted.low} to {wanted.high}"


def _traffic(match: Match) -> list[str]:
    words = [f"IPv{match.family}"] if match.family is not None else []
    if match.protocol is not None:
        words.append(spoken_protocol(match.protocol))
    elif match.fragment is not True and (_size(match) or _contents(match)):
        words.append("packets")
    if match.fragment is not None:
        words.append("fragments" if match.fragment else "unfragmented")
    words += [f"from port {match.sport}"] if match.sport is not None else []
    return words + ([f"to port {match.dport}"] if match.dport is not None else [])


def _size(match: Match) -> list[str]:
    types = [f"type {match.icmp_type}"] if match.icmp_type is not None else []
    return types + ([_length(match.ip_length)] if match.ip_length is not None else [])


def _contents(match: Match) -> list[str]:
    things = []
    for name, wanted in (
        ("TTL", match.ttl),
        ("IP id", match.ip_id),
        ("sequence number", match.tcp_seq),
        ("window", match.tcp_window),
    ):
        if wanted is not None:
            things.append(f"{name} {range_text(wanted)}")
    if match.tcp_header is not None:
        things.append(_options(match.tcp_header))
    things += [_bytes(item) for item in match.payload]
    if match.tcp_flags is not None:
        things.append(flags_text(*match.tcp_flags))  # last: it may contain a "but"
    return things


def _options(header: Range) -> str:
    if header.high == _NO_OPTIONS:
        return "no TCP options"
    return f"a TCP header of {range_text(header)} bytes"


def _length(wanted: Range) -> str:
    if wanted.high >= _LONGEST:
        return f"{wanted.low} bytes or more"
    if wanted.low <= _SHORTEST < wanted.high:
        return f"up to {wanted.high} bytes"
    return f"{range_text(wanted)} bytes"


def _bytes(wanted: PayloadMatch) -> str:
    return f"{bytes_text(wanted)}{'' if wanted.offset is None else f' at byte {wanted.offset}'}"


def bytes_text(wanted: PayloadMatch) -> str:
    """Format the bytes of a match: a DNS name or text in quotes, or hex (?? for any byte)."""
    if wanted.dns_name is not None:
        rest = split_wire(wanted.data)[1]
        asked = f" type {type_text(int.from_bytes(rest, 'big'))}" if len(rest) == 2 else ""
        return f"“{_cut(wanted.dns_name)}”{asked}"
    data = wanted.data
    if wanted.mask is None and sum(0x20 <= byte < 0x7F for byte in data) >= _TEXTUAL * len(data):
        return f"“{_cut(payload_text(data))}”"
    mask = wanted.mask or b"\xff" * len(data)
    hexed = [
        f"{byte:02x}" if care == 0xFF else _half(byte, care) for byte, care in zip(data, mask, strict=True)
    ]
    return f"hex {_cut(''.join(hexed))}"


def _half(byte: int, care: int) -> str:
    return f"{byte >> 4:x}?" if care & 0xF0 == 0xF0 else "??"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_PAYLOAD_CHARACTERS else f"{text[: _MAX_PAYLOAD_CHARACTERS - 1]}…"


def _origin(origin: str) -> str:
    kind, colon, name = origin.partition(":")
    if not colon:
        return safe_text(origin)
    return f"{_ORIGINS.get(kind, '')}{safe_text(name)}"


def _counted(prefixes: Sequence[object], noun: str) -> str:
    return str(prefixes[0]) if len(prefixes) == 1 else f"{len(prefixes):,} {noun}"
