"""Rules in words: the packets they match and what happens to them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from fwtop.model.rule import Match, PayloadMatch, Rule
from fwtop.model.text import payload_text, safe_text
from fwtop.model.traffic.protocols import split_wire, spoken_protocol, type_text
from fwtop.rules import fields
from fwtop.rules.fields import Field
from fwtop.rules.kinds import of, rate_text

_TEXTUAL = 0.75  # share of printable bytes from which a payload is shown as text
_MAX_PAYLOAD_CHARACTERS = 40
_ORIGINS = {"asn": "AS", "list": "list "}
_SIZE, _HELD = (fields.ICMP_TYPE, fields.LENGTH), (fields.TTL, fields.IP_ID, *fields.SEGMENT)


def summarise(rule: Rule) -> str:
    """Describe a rule in one line."""
    if rule.parts:
        return f"{rule.playbook}: {'; '.join(map(summarise, rule.parts))}"
    kind, what = of(rule.kind), describe(rule.match, origin=rule.origin)
    if kind.phrase is not None:
        return kind.phrase(rule, what)
    # Behind a comma, as it would seem to belong to what the packets hold
    place = f",{kind.place}" if kind.place and " with " in what else kind.place
    if rule.limit is not None:
        return f"limit {what} to {rate_text(rule)}{place}"
    return f"{kind.drop} {what}{place}"


def with_summary(rule: Rule) -> Rule:
    """Return the rule with its description as summary."""
    return replace(rule, summary=summarise(rule))


def describe(match: Match, *, origin: str | None = None) -> str:
    """Describe the packets that match; "everything" without a condition.

    `origin` is what the sources were made from: asn:N, country:CC or @file.
    """
    words = [*_traffic(match), *_phrase("of", _said(_SIZE, match)), *_phrase("with", _contents(match))]
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


def _traffic(match: Match) -> list[str]:
    words = [f"IPv{match.family}"] if match.family is not None else []
    if match.protocol is not None:
        words.append(spoken_protocol(match.protocol))
    elif match.fragment is not True and (_said(_SIZE, match) or _contents(match)):
        words.append("packets")
    return words + _said((fields.FRAGMENT, *fields.PORTS), match)


def _said(fields: Sequence[Field], match: Match) -> list[str]:
    return [field.words(field.of(match)) for field in fields if field.of(match) is not None]


def _contents(match: Match) -> list[str]:
    """Return what packets hold; flags come last, as they may contain a "but"."""
    return [*_said(_HELD, match), *map(_bytes, match.payload), *_said((fields.TCP_FLAGS,), match)]


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
