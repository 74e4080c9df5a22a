"""Rules in words: the packets they match and what happens to them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec.structs import replace

from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Match, Mode, PayloadMatch, Rule
from fwtop.model.text import payload_text, safe_text
from fwtop.model.traffic.protocols import TCP, protocol_name, split_wire, spoken_protocol, type_text
from fwtop.rules import fields
from fwtop.rules.fields import Field
from fwtop.rules.kinds import of, rate_text

_TEXTUAL = 0.75  # share of printable bytes from which a payload is shown as text
_WORD = re.compile(rb"[ -~]{6}")  # by chance one in 50 payloads of 16 bytes holds so many in a row
_MAX_PAYLOAD_CHARACTERS = 40
_BRIEF = 15  # characters of a payload in a line of a list
_BEGINS = {Mode.DROP: "", Mode.COUNT: "count only: ", Mode.OFF: "off: "}  # of a summary
_ORIGINS = {"asn": "AS", "list": "list "}
_SIZE, _HELD = (fields.ICMP_TYPE, fields.LENGTH), (fields.TTL, fields.IP_ID, *fields.SEGMENT)


def with_mode(rule: Rule, mode: Mode) -> Rule:
    """Return a rule that does more than count, or no more; its summary begins with what it does."""
    bare = rule.summary.removeprefix(_BEGINS[rule.mode])
    return replace(rule, mode=mode, summary=f"{_BEGINS[mode]}{bare}")


def summarise(rule: Rule) -> str:
    """Describe a rule in one line."""
    if rule.counts_only:
        return f"{_BEGINS[rule.mode]}{summarise(replace(rule, mode=Mode.DROP))}"
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


def brief(rule: Rule, room: int) -> str:
    """Describe a rule in so many characters, as far as that goes; where it drops gives way first.

    Neither IPv4 is said, nor where in the payload bytes are.
    """
    if rule.counts_only:
        begins = _BEGINS[rule.mode]
        return f"{begins}{brief(with_mode(rule, Mode.DROP), room - len(begins))}"
    if rule.parts:
        return rule.summary.partition(":")[0] or f"{rule.playbook} playbook"
    kind, what = of(rule.kind), _briefly(rule)
    phrase = kind.brief or kind.phrase
    if phrase is not None:
        return phrase(rule, what)
    if (limit := rule.limit) is not None:
        per = limit.prefix_v6 if rule.match.family == 6 else limit.prefix_v4
        unit = " bytes" if limit.in_bytes else ""
        return f"limit {what} to {limit.per_second:,}{unit}/s per /{per}"
    said = f"{kind.drop} {what}{', close their connections' if rule.close_open else ''}"
    whole = rule.summary.removesuffix(kind.place)
    if len(said) < len(whole) <= room and whole.startswith(said):  # how many addresses these prefixes hold
        said = whole
    return f"{said}{kind.place}" if len(said) + len(kind.place) <= room else said


def _briefly(rule: Rule) -> str:
    """Describe the packets of a rule: 40-byte SYNs to 443/tcp with TTL 53."""
    match = rule.match
    senders = [_origin(rule.origin)] if rule.origin else [_senders(match.sources)] if match.sources else []
    if senders and (rule.limit or match == Match(family=match.family, sources=match.sources)):
        return senders[0]
    segments = match.tcp_flags is not None and bool(match.tcp_flags[1])
    name = "packets" if match.protocol is None else spoken_protocol(match.protocol)
    named = [*fields.LENGTH.briefly(match), *(["IPv6"] if match.family == 6 else [])]
    named += fields.TCP_FLAGS.briefly(match) if segments else [name]
    named += [word for field in (fields.FRAGMENT, *fields.PORTS) for word in field.briefly(match)]
    if segments and match.dport is not None:
        named[-1] += f"/{protocol_name(TCP)}"
    named += fields.ICMP_TYPE.briefly(match)
    held = [*_said(_HELD, match), *(bytes_text(item, _BRIEF) for item in match.payload)]
    held += [] if segments else _said((fields.TCP_FLAGS,), match)
    named += ["with", ", ".join(held)] if held else []
    named += [f"to {_counted(match.destinations, 'addresses')}"] if match.destinations else []
    return " ".join([*named, *(f"from {one}" for one in senders)])


_MOST_LOOKED_AT = 10_000


def _senders(sources: Sequence[Prefix]) -> str:
    if len(sources) > 1 and len(sources) <= _MOST_LOOKED_AT:
        return _counted(sources, "addresses" if all(one.is_address for one in sources) else "prefixes")
    return _counted(sources, "sources")


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


def bytes_text(wanted: PayloadMatch, most: int = _MAX_PAYLOAD_CHARACTERS) -> str:
    """Format the bytes of a match, cut: a DNS name or text in quotes, or hex (?? for any byte)."""
    if wanted.dns_name is not None:
        rest = split_wire(wanted.data)[1]
        asked = f" type {type_text(int.from_bytes(rest, 'big'))}" if len(rest) == 2 else ""
        return f"“{_cut(wanted.dns_name, most)}”{asked}"
    data = wanted.data
    printable = sum(0x20 <= byte < 0x7F for byte in data)
    if wanted.mask is None and (printable >= _TEXTUAL * len(data) or _WORD.search(data)):
        return f"“{_cut(payload_text(data), most)}”"
    mask = wanted.mask or b"\xff" * len(data)
    hexed = [
        f"{byte:02x}" if care == 0xFF else _half(byte, care) for byte, care in zip(data, mask, strict=True)
    ]
    return f"hex {_cut(''.join(hexed), most)}"


def _half(byte: int, care: int) -> str:
    return f"{byte >> 4:x}?" if care & 0xF0 == 0xF0 else "??"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _origin(origin: str) -> str:
    kind, colon, name = origin.partition(":")
    if not colon:
        return safe_text(origin)
    return f"{_ORIGINS.get(kind, '')}{safe_text(name)}"


def _counted(prefixes: Sequence[object], noun: str) -> str:
    return str(prefixes[0]) if len(prefixes) == 1 else f"{len(prefixes):,} {noun}"
