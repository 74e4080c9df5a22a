"""The form of the rule dialog: fields that read, validate and step one property of a rule each."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from fwtop.model.addresses.address import HostBitsError, Prefix
from fwtop.model.rule import Kind, Match, PayloadMatch, RateLimit, Rule
from fwtop.model.text import safe_text
from fwtop.model.traffic.protocols import TCP, WITH_PORTS
from fwtop.render.numbers import duration_words
from fwtop.rules.fields import DPORT, IP_ID, LENGTH, PROTOCOL, SEGMENT, SPORT, TCP_FLAGS, TTL, range_text
from fwtop.rules.fields import Field as HeaderField
from fwtop.rules.kind import Layer
from fwtop.rules.kinds import alternatives, of
from fwtop.rules.words import with_summary
from fwtop.ui.actions.dialog import hints
from fwtop.ui.style import ACCENT, BAD, BUTTON, DIM, TEXT, TITLE, Line, fit, width_of

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
                if any(number < of.least for _, number, _ in of.numbers(wanted)):
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


_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_TTL_STEPS = (30, 60, 300, 600, 1800, 3600, 7200, 21600, 86400)
_RATE_STEPS = (1, 5, 10, 50, 100, 500, 1000, 5000, 10_000, 50_000, 100_000)
_LONGEST_SECONDS = 30 * 86400


def fields_of(original: Rule) -> tuple[Field, ...]:
    """Return the fields of a rule, given as it was when the dialog opened."""
    match, known = original.match, of(original.kind)
    found: list[Field] = []
    if match.sources and original.origin is None:
        found.append(sources_field(match.sources))
    if len(match.payload) == 1:
        found += payload_fields(match.payload[0])
    is_early = known.layer < Layer.RAW
    offered = (  # besides those that it has
        (PROTOCOL, True),
        (SPORT, is_early or known.keeps is not None or known.untracks),
        (DPORT, True),
        (LENGTH, is_early),
        (TCP_FLAGS, is_early and match.protocol == TCP),
        *((field, False) for field in (TTL, IP_ID, *SEGMENT)),
    )
    found += [header_field(field) for field, always in offered if always or field.of(match) is not None]
    if original.limit is not None:
        found += [_RATE, _PER]
    if len(alternatives(original)) > 1:
        found.append(_VIA)
    return (*found, _FOR)


# -- mechanism


def _write_via(rule: Rule, text: str) -> Rule:
    ways = alternatives(rule)
    if text.strip().lower() not in ways:
        raise InvalidInput(f"this rule can be one of: {', '.join(ways)}")
    return with_summary(replace(rule, kind=Kind(text.strip().lower())))


def _step_via(rule: Rule, delta: int) -> Rule:
    ways = alternatives(rule)
    return with_summary(replace(rule, kind=ways[(ways.index(rule.kind) + delta) % len(ways)]))


_VIA = Field("via", lambda rule: rule.kind.value, _write_via, _step_via)


# -- time to live


def _write_for(rule: Rule, text: str) -> Rule:
    found = re.fullmatch(r"(\d{1,7})\s*(s|min|m|h|d)", text.strip().lower(), re.ASCII)
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 1 <= seconds <= _LONGEST_SECONDS:
        raise InvalidInput("a time is a number with s, m, h or d, up to 30d: 30s, 10m, 2h, 1d")
    return replace(rule, ttl_seconds=seconds)


_FOR = Field(
    "for",
    lambda rule: duration_words(rule.ttl_seconds),
    _write_for,
    lambda rule, delta: replace(rule, ttl_seconds=stepped(_TTL_STEPS, rule.ttl_seconds, delta)),
)


# -- rate


def _limit(rule: Rule) -> RateLimit:
    return cast(RateLimit, rule.limit)  # only a rule with a rate has these fields


def _limited(rule: Rule, **changes: int) -> Rule:
    return with_summary(replace(rule, limit=replace(_limit(rule), **changes)))


def _write_rate(rule: Rule, text: str) -> Rule:
    value = text.strip().lower().removesuffix("/s")
    thousands = value.endswith("k")
    number_of = whole_number(value.removesuffix("k"), 1, 10_000_000, "a rate a second (5k: 5000)")
    rate = number_of * 1000 if thousands else number_of
    return _limited(rule, per_second=rate, burst=rate)


def _write_per(rule: Rule, text: str) -> Rule:
    four, six = lengths(text, whole=64)
    return _limited(rule, prefix_v4=four, prefix_v6=six)


def _step_rate(rule: Rule, delta: int) -> Rule:
    rate = stepped(_RATE_STEPS, _limit(rule).per_second, delta)
    return _limited(rule, per_second=rate, burst=rate)


def _step_per(rule: Rule, delta: int) -> Rule:
    present = (_limit(rule).prefix_v4, _limit(rule).prefix_v6)
    four, six = stepped(PREFIXES, present, -delta)
    return _limited(rule, prefix_v4=four, prefix_v6=six)


_RATE = Field("rate", lambda rule: f"{_limit(rule).per_second}/s", _write_rate, _step_rate)
_PER = Field("per", lambda rule: f"/{_limit(rule).prefix_v4}/{_limit(rule).prefix_v6}", _write_per, _step_per)


_LONGEST = 60  # characters typed
_LABEL = 10
_TWO_COLUMNS = 72


class Editor(Struct):
    """A form that changes a rule field by field; only valid input reaches the rule."""

    rule: Rule
    fields: tuple[Field, ...]
    typed: str | None = None  # None: nothing is being typed
    error: str = ""

    @staticmethod
    def of(rule: Rule) -> Editor:
        """Start with a rule."""
        return Editor(rule, fields_of(rule))

    @property
    def names(self) -> list[str]:
        """The fields in their order."""
        return [field.name for field in self.fields]

    def type(self, character: str) -> None:
        """Append a character; the first one replaces the field's value."""
        self.error = ""
        self.typed = ((self.typed or "") + character)[:_LONGEST]

    def erase(self, name: str) -> None:
        """Delete the last character."""
        self.error = ""
        present = self._field(name).read(self.rule) if self.typed is None else self.typed
        self.typed = present[:-1]

    def drop(self) -> None:
        """Discard what is being typed."""
        self.typed, self.error = None, ""

    def commit(self, name: str) -> bool:
        """Apply what was typed; return False, with the reason in `error`, if it is invalid."""
        if self.typed is None:
            return True
        try:
            self.rule = self._field(name).write(self.rule, self.typed)
        except InvalidInput as error:
            self.error = str(error)
            return False
        self.drop()
        return True

    def step(self, name: str, delta: int) -> bool:
        """Change to the next or previous common value; return False where there is none."""
        stepping = self._field(name).step
        if stepping is None or self.typed is not None:
            return False
        self.rule = stepping(self.rule, delta)
        return True

    def lines(self, marked: str, width: int) -> list[Line]:
        """Write the fields, and below them one line of help or error."""
        cells = [self._cell(field, marked) for field in self.fields]
        columns = 2 if width >= _TWO_COLUMNS else 1
        half = width // columns
        rows: list[Line] = []
        for start in range(0, len(cells), columns):
            row = cells[start : start + columns]
            wide = len(row) == 1 or any(width_of(cell) > half - 1 for cell in row)
            rows += [[*cell] for cell in row] if wide else [[*fit(row[0], half), *row[1]]]
        return [*rows, self._help(marked)]

    def collapsed(self, marked: str) -> Line:
        """Write the marked field alone, or how to reach the fields."""
        if self.error:
            return [(self.error, BAD)]
        if marked in self.names:
            return self._cell(self._field(marked), marked)
        values = " · ".join(f"{field.name} {field.read(self.rule)}" for field in reversed(self.fields))
        return [("↑ edit fields: ", DIM), (values, TEXT)]

    def _cell(self, field: Field, marked: str) -> Line:
        label = (field.name.ljust(_LABEL), DIM)
        if field.name != marked:
            return [label, (f"  {field.read(self.rule)}", TEXT)]
        if self.typed is not None:
            return [label, ("‹ ", ACCENT), (f"{self.typed}▏", TITLE), (" ›", ACCENT)]
        return [label, (f"‹ {field.read(self.rule)} ›", BUTTON)]

    def _help(self, marked: str) -> Line:
        if self.error:
            return [(self.error, BAD)]
        if marked not in self.names:
            return [("↑ edit fields", DIM)]
        if self.typed is not None:
            return hints("Enter applies it", "Esc discards it")
        arrows: Line = [("← →", TITLE), (" change  ", DIM)] if self._field(marked).step is not None else []
        return [*arrows, ("type a value to replace it", DIM)]

    def _field(self, name: str) -> Field:
        return next(field for field in self.fields if field.name == name)
