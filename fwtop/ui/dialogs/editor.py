"""The fields of the rule dialog as a form: marked field, text being typed, and error."""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import replace

from fwtop.model.rule import Kind, RateLimit, Rule
from fwtop.render.numbers import duration_words
from fwtop.rules.fields import DPORT, IP_ID, LENGTH, PROTOCOL, SEGMENT, SPORT, TCP_FLAGS, TTL
from fwtop.rules.kind import Layer
from fwtop.rules.kinds import alternatives, of
from fwtop.rules.words import with_summary
from fwtop.ui.dialogs.dialog import hints
from fwtop.ui.dialogs.fields import (
    PREFIXES,
    Field,
    InvalidInput,
    header_field,
    lengths,
    payload_fields,
    sources_field,
    stepped,
    whole_number,
)
from fwtop.ui.drawing.style import ACCENT, BAD, BUTTON, DIM, TEXT, TITLE, Line, fit, width_of

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_TTL_STEPS = (30, 60, 300, 600, 1800, 3600, 7200, 21600, 86400)
_RATE_STEPS = (1, 5, 10, 50, 100, 500, 1000, 5000, 10_000, 50_000, 100_000)
_LONGEST_SECONDS = 30 * 86400


def fields_of(original: Rule) -> tuple[Field, ...]:
    """Return the fields of a rule, given as it was when the dialog opened."""
    match = original.match
    found: list[Field] = []
    if match.sources and original.origin is None:
        found.append(sources_field(match.sources))
    if len(match.payload) == 1:
        found += payload_fields(match.payload[0])
    found.append(header_field(PROTOCOL))
    known = of(original.kind)
    is_early = known.layer < Layer.RAW
    if is_early or known.keeps is not None or known.untracks or match.sport is not None:
        found.append(header_field(SPORT))
    found.append(header_field(DPORT))
    if is_early or match.ip_length is not None:
        found.append(header_field(LENGTH))
    if match.tcp_flags is not None or (is_early and match.protocol == 6):
        found.append(header_field(TCP_FLAGS))
    found += [header_field(field) for field in (TTL, IP_ID, *SEGMENT) if field.of(match) is not None]
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
    if rule.limit is None:
        raise InvalidInput("this rule has no rate")
    return rule.limit


def _with_limit(rule: Rule, limit: RateLimit) -> Rule:
    return with_summary(replace(rule, limit=limit))


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
