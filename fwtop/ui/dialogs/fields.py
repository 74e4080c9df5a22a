"""Fields of the rule dialog: each reads, validates and steps one property of a rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from fwtop.model.addresses.address import HostBitsError, Prefix
from fwtop.model.rule import Match, PayloadMatch, Rule
from fwtop.model.text import safe_text
from fwtop.model.traffic.protocols import TCP, WITH_PORTS
from fwtop.rules.fields import Field as HeaderField
from fwtop.rules.fields import range_text
from fwtop.rules.words import with_summary

Step = TypeVar("Step", int, tuple[int, int])
PREFIXES = ((8, 32), (16, 48), (24, 56), (32, 64))  # IPv4 and IPv6 lengths that mean about the same


class InvalidInput(ValueError):
    """The input is invalid; the text says what is expected."""


class Field(Struct, frozen=True):
    """One property of a rule: `write` raises InvalidInput; `step` moves through common values, if any."""

    name: str
    read: Callable[[Rule], str]
    write: Callable[[Rule, str], Rule]
    step: Callable[[Rule, int], Rule] | None = None


def edited(rule: Rule, match: Match) -> Rule:
    """Return the rule with another match and a new summary."""
    return with_summary(replace(rule, match=match))


def whole_number(text: str, low: int, high: int, what: str) -> int:
    """Parse a number; raises InvalidInput with the accepted range."""
    if not text.isascii() or not text.isdigit() or not low <= int(text[:12]) <= high:
        raise InvalidInput(f"{what} is a whole number from {low} to {high:,}")
    return int(text)


def stepped(values: tuple[Step, ...], present: Step, delta: int) -> Step:
    """Return the neighbour of a value in a list; an unlisted value moves to the nearest listed one."""
    if present in values:
        index = values.index(present) + delta
    else:
        index = sum(value < present for value in values) - (1 if delta < 0 else 0)
    return values[max(min(index, len(values) - 1), 0)]


def lengths(text: str, *, whole: int) -> tuple[int, int]:
    """Parse `24` or `24/56`, lengths for IPv4 and IPv6; `whole` is the IPv6 length that goes with 32."""
    first, _, second = text.replace(" ", "").lstrip("/").partition("/")
    four = whole_number(first, 1, 32, "a length, as 24, or 24/56 with IPv6's,")
    if second:
        return four, whole_number(second, 1, 128, "an IPv6 prefix length")
    return four, whole if four == 32 else next(six for length, six in PREFIXES if four <= length)


def header_field(of: HeaderField) -> Field:
    """Make the field of a condition on a header field."""

    def read(rule: Rule) -> str:
        present = of.of(rule.match)
        if present is None:
            return "any"
        return range_text(present, "-") if of.is_range else of.written(present)[1]

    def write(rule: Rule, text: str) -> Rule:
        value, wanted = text.replace(" ", "").lower(), None
        try:
            if value not in ("", "any"):
                wanted = of.read(value.replace("-", ":") if of.is_range else value)
                if any(number < of.least for number, _ in of.numbers(wanted)):
                    raise ValueError(f"{of.label} is {of.least} or more")
        except ValueError as error:
            told = {"label": of.label, "least": of.least, "most": of.most, "error": error}
            raise InvalidInput(of.asks.format(**told)) from None
        changes: dict[str, Any] = {of.name: wanted}
        match = replace(rule.match, **changes)
        if match.protocol not in WITH_PORTS and (match.sport is not None or match.dport is not None):
            raise InvalidInput("ports need udp or tcp: set that, or the ports to any, first")
        if match.reads_tcp and match.protocol != TCP:
            raise InvalidInput("conditions on TCP headers need the protocol tcp")
        return edited(rule, match)

    return Field(of.label, read, write)


def sources_field(originals: Sequence[Prefix]) -> Field:
    """Make the field of the sources: a prefix for one source, a common prefix length for several."""
    if len(originals) == 1:
        return _source_field(originals[0])

    def widened(rule: Rule, four: int, six: int) -> Rule:
        wide = (_widen(prefix, four if prefix.family == 4 else six) for prefix in originals)
        return edited(rule, replace(rule.match, sources=tuple(dict.fromkeys(wide))))

    def read(rule: Rule) -> str:
        longest = {family: 0 for family in (4, 6)}
        for prefix in rule.match.sources:
            longest[prefix.family] = max(longest[prefix.family], prefix.length)
        return "/" + "/".join(str(longest[family]) for family in (4, 6) if longest[family])

    def write(rule: Rule, text: str) -> Rule:
        return widened(rule, *lengths(text, whole=128))

    def step(rule: Rule, delta: int) -> Rule:
        lengths = [prefix.length for prefix in rule.match.sources if prefix.family == 4]
        present = max(lengths, default=32)
        chosen = stepped((8, 16, 24, 32), present, delta)
        return widened(rule, chosen, 128 if chosen == 32 else dict(PREFIXES)[chosen])

    return Field("each as", read, write, step)


def _source_field(original: Prefix) -> Field:
    def write(rule: Rule, text: str) -> Rule:
        try:
            wanted = Prefix.parse(text.strip())
        except HostBitsError as error:
            raise InvalidInput(safe_text(error)) from None
        except ValueError:
            raise InvalidInput("a source is an address or a prefix: 203.0.113.7 or 203.0.113.0/24") from None
        if wanted.length == 0:
            raise InvalidInput("/0 is everybody: give a longer prefix")
        return edited(rule, replace(rule.match, sources=(wanted,)))

    def step(rule: Rule, delta: int) -> Rule:
        lengths = (8, 16, 24, 32) if original.family == 4 else (32, 48, 56, 64, 128)
        chosen = stepped(lengths, rule.match.sources[0].length, delta)
        return edited(rule, replace(rule.match, sources=(_widen(original, chosen),)))

    return Field("source", lambda rule: str(rule.match.sources[0]), write, step)


def _widen(prefix: Prefix, length: int) -> Prefix:
    if length >= prefix.length:
        return prefix
    return Prefix.of_columns(prefix.family, prefix.hi, prefix.lo, length)


def payload_fields(original: PayloadMatch) -> list[Field]:
    """Make the fields of a payload match: offset, and number of bytes compared."""

    def at(rule: Rule) -> str:
        offset = rule.match.payload[0].offset
        return "any" if offset is None else f"+{offset}"

    def put(rule: Rule, wanted: PayloadMatch) -> Rule:
        return edited(rule, replace(rule.match, payload=(wanted,)))

    def write_at(rule: Rule, text: str) -> Rule:
        value = text.strip().lower().lstrip("+")
        offset = (
            None if value in ("", "any") else whole_number(value, 0, 65535, "a place (from byte 0), or any, ")
        )
        if offset is None and original.mask is not None:
            raise InvalidInput("these bytes are compared in part, which needs their place")
        return put(rule, replace(rule.match.payload[0], offset=offset))

    def cut_to(rule: Rule, length: int) -> Rule:
        mask = original.mask[:length] if original.mask is not None else None
        return put(rule, replace(rule.match.payload[0], data=original.data[:length], mask=mask))

    def write_length(rule: Rule, text: str) -> Rule:
        return cut_to(rule, whole_number(text.strip(), 1, len(original.data), "the number of bytes compared"))

    def step_length(rule: Rule, delta: int) -> Rule:
        length = len(rule.match.payload[0].data) + delta
        return cut_to(rule, max(min(length, len(original.data)), 1))

    place = Field("at byte", at, write_at)
    if original.dns_name is not None:
        return [place]  # a name that is cut is no name
    return [
        place,
        Field("bytes", lambda rule: str(len(rule.match.payload[0].data)), write_length, step_length),
    ]
