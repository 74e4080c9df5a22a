"""The editable part of the rule dialog: which field is marked, what is being typed, what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass

from fwtop.model.rule import Rule
from fwtop.ui.cells import Line, fit, width_of
from fwtop.ui.field import BadText, Field
from fwtop.ui.fields import fields_of
from fwtop.ui.palette import ACCENT, BAD, BUTTON, DIM, TEXT, TITLE

_LONGEST = 60  # characters typed
_LABEL = 10
_TWO_COLUMNS = 72


@dataclass(slots=True)
class Editor:
    """Changes a rule field by field; the rule itself only ever holds what was understood."""

    rule: Rule
    fields: tuple[Field, ...]
    typed: str | None = None  # None: nothing is being typed
    error: str = ""

    @staticmethod
    def of(rule: Rule) -> Editor:
        """Begin with a rule as it was drafted."""
        return Editor(rule, fields_of(rule))

    @property
    def names(self) -> list[str]:
        """The fields in their order."""
        return [field.name for field in self.fields]

    def type(self, character: str) -> None:
        """Take a character; the first one replaces what was there."""
        self.error = ""
        self.typed = ((self.typed or "") + character)[:_LONGEST]

    def erase(self, name: str) -> None:
        """Take the last character away."""
        self.error = ""
        present = self._field(name).read(self.rule) if self.typed is None else self.typed
        self.typed = present[:-1]

    def drop(self) -> None:
        """Forget what is being typed."""
        self.typed, self.error = None, ""

    def settle(self, name: str) -> bool:
        """Take what was typed over; False, with the reason in `error`, if it means nothing."""
        if self.typed is None:
            return True
        try:
            self.rule = self._field(name).write(self.rule, self.typed)
        except BadText as error:
            self.error = str(error)
            return False
        self.drop()
        return True

    def step(self, name: str, delta: int) -> bool:
        """Take the next or previous usual value; False where arrows mean nothing."""
        stepping = self._field(name).step
        if stepping is None or self.typed is not None:
            return False
        self.rule = stepping(self.rule, delta)
        return True

    def lines(self, marked: str, width: int) -> list[Line]:
        """Write the fields, and below them one line of help or of what is wrong."""
        cells = [self._cell(field, marked) for field in self.fields]
        columns = 2 if width >= _TWO_COLUMNS else 1
        half = width // columns
        rows: list[Line] = []
        for start in range(0, len(cells), columns):
            row = cells[start : start + columns]
            wide = len(row) == 1 or any(width_of(cell) > half - 1 for cell in row)
            rows += [[*cell] for cell in row] if wide else [[*fit(row[0], half), *row[1]]]
        return [*rows, self._help(marked)]

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
            return [("↑ goes to what can be changed above", DIM)]
        if self.typed is not None:
            return [("Enter", TITLE), (" takes it  ", DIM), ("Esc", TITLE), (" leaves it as it was", DIM)]
        arrows: Line = [("← →", TITLE), (" change  ", DIM)] if self._field(marked).step is not None else []
        return [*arrows, ("type a value to replace it", DIM)]

    def _field(self, name: str) -> Field:
        return next(field for field in self.fields if field.name == name)
