"""A named list of prefixes, each with an end or none, and the changes that lead from one state to the next.

Values only: a change is made of a list, and `changed` gives the list after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from fwtop.model.addresses import list_rows
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.keyed_rows import MAX_ELEMENTS, KeyedRows
from fwtop.model.addresses.port_rows import PortRows
from fwtop.model.addresses.prefix_rows import PrefixRows
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

NEVER = 0.0  # the end of an entry without a time to live
_NOTHING = PrefixRows()


class Change(Struct, frozen=True):
    """Entries that go, then entries that come or get another end. All that come have the same end."""

    added: list_rows.Rows = _NOTHING
    removed: list_rows.Rows = _NOTHING
    end: float = NEVER  # CLOCK_MONOTONIC seconds


class NamedList(Struct, frozen=True, eq=False):
    """The entries of a list; `ends` has one number for each of them, or is None if all stay.

    They are prefixes, prefixes with ports, or pairs of networks: an empty list may become any of these.
    """

    name: str
    rows: list_rows.Rows = _NOTHING
    ends: NDArray[np.float64] | None = None

    def __eq__(self, other: object) -> bool:
        """Tell whether it has the same name and entries, whenever they end."""
        return isinstance(other, NamedList) and (self.name, self.rows) == (other.name, other.rows)

    __hash__ = None  # type: ignore[assignment] # rows are long

    def addition(self, entries: Sequence[Prefix], end: float = NEVER) -> Change:
        """Return the change that adds entries, and gives this end to those that are there already."""
        return Change(added=self._alike(entries), end=end)

    def removal(self, entries: Sequence[Prefix]) -> Change:
        """Return the change that removes entries; what is not listed is left out."""
        return Change(removed=self._present(self._alike(entries)))

    def replacement(self, entries: Sequence[Prefix], end: float = NEVER) -> Change:
        """Return the change after which the list has these entries and no others."""
        wanted = self._alike(entries)
        return Change(wanted, list_rows.chosen(self.rows, list_rows.positions(wanted, self.rows) < 0), end)

    def expiry(self, now: float) -> Change:
        """Return the change that removes what has ended."""
        if self.ends is None:
            return Change()
        return Change(removed=list_rows.chosen(self.rows, (self.ends != NEVER) & (self.ends <= now)))

    def new_of(self, change: Change) -> list_rows.Rows:
        """Return what a change adds that is not listed."""
        return list_rows.chosen(change.added, list_rows.positions(self.rows, change.added) < 0)

    def changed(self, change: Change) -> NamedList:
        """Return the list after a change."""
        rows, ends = self.rows, self.ends
        if len(change.removed):
            keep = np.ones(len(rows), np.bool_)
            gone = list_rows.positions(rows, change.removed)
            keep[gone[gone >= 0]] = False
            rows, ends = list_rows.chosen(rows, keep), ends[keep] if ends is not None else None
        if len(change.added):
            rows, ends = _with(rows, ends, change)
        if ends is not None and not ends.any():
            ends = None
        return replace(self, rows=rows, ends=ends)

    @property
    def timed(self) -> int:
        """How many entries have an end."""
        return int(np.count_nonzero(self.ends)) if self.ends is not None else 0

    @property
    def next_end(self) -> float | None:
        """When the next entry ends, CLOCK_MONOTONIC seconds; None: none does."""
        if self.ends is None:
            return None
        timed = self.ends[self.ends != NEVER]
        return float(timed.min()) if len(timed) else None

    @property
    def bytes(self) -> int:
        """The memory that the entries take here."""
        columns = [item for part in list_rows.columns_of(self.rows) for item in part]
        return sum(int(item.nbytes) for item in columns) + (self.ends.nbytes if self.ends is not None else 0)

    def covering(self, wanted: str) -> str | None:
        """Return the longest entry that holds all of an address or prefix, with what more entries of the
        list say; None if there is none. Raises FwtopError (code 2).
        """
        rows = self._alike(entries_of((wanted,)))
        if isinstance(self.rows, KeyedRows) and isinstance(rows, KeyedRows):
            listed: KeyedRows[Any] = self.rows
            found: object = listed.holding(next(rows.entries()))
        else:
            found = self._covering(entry_of(wanted))
        return str(found) if found is not None else None

    def _covering(self, wanted: Prefix) -> Prefix | None:
        around = [Prefix.of_columns(wanted.family, wanted.hi, wanted.lo, n) for n in range(wanted.length + 1)]
        found = list_rows.positions(self.rows, PrefixRows.of([item for item in around if item.length]))
        listed = found[found >= 0]
        return self.rows[int(listed.max())] if len(listed) else None

    def end_of(self, entry: str) -> float:
        """Return when a listed entry ends."""
        if self.ends is None:
            return NEVER
        return float(self.ends[int(list_rows.positions(self.rows, self._alike(entries_of((entry,))))[0])])

    def texts(self, part: slice = slice(None)) -> list[str]:
        """Return entries as they are written."""
        return list_rows.texts_of(self.rows, part)

    def _alike(self, entries: Sequence[Prefix]) -> list_rows.Rows:
        """Return entries of the list's own kind; raises FwtopError (code 2)."""
        rows = list_rows.rows_of(entries)
        if type(rows) is type(self.rows):
            return rows
        if len(rows) and len(self.rows):
            kind = list_rows.words_of(self.rows)
            kind += f", as {self.rows.example}" if isinstance(self.rows, KeyedRows) else " and no more"
            raise FwtopError(f"list {self.name} holds {kind}; nothing was changed", 2, field="entries")
        return rows if len(rows) else type(self.rows)()

    def _present(self, entries: list_rows.Rows) -> list_rows.Rows:
        return list_rows.chosen(entries, list_rows.positions(self.rows, entries) >= 0)


def _with(
    rows: list_rows.Rows, ends: NDArray[np.float64] | None, change: Change
) -> tuple[list_rows.Rows, NDArray[np.float64] | None]:
    """Add the entries of a change, and set the end of those that are there."""
    at = list_rows.positions(rows, change.added)
    new = list_rows.chosen(change.added, at < 0)
    if ends is None and change.end != NEVER:
        ends = np.zeros(len(rows), np.float64)
    if ends is not None:
        ends = ends.copy()
        ends[at[at >= 0]] = change.end
        ends = np.insert(ends, list_rows.places(rows, new), change.end)
    return (list_rows.inserted(rows, new) if len(new) else rows), ends


def entry_of(text: str) -> Prefix:
    """Parse an entry; raises FwtopError (code 2)."""
    try:
        prefix = Prefix.parse(text)
    except ValueError as error:
        raise FwtopError(f"{safe_text(error)}; nothing was changed", 2, field="entries") from None
    check_entries((prefix,))
    return prefix


def entries_of(texts: Iterable[str]) -> Sequence[Prefix]:
    """Parse entries, all of one kind; raises FwtopError (code 2)."""
    try:
        return list_rows.parse_entries(texts)
    except ValueError as error:
        raise FwtopError(f"{safe_text(error)}; nothing was changed", 2, field="entries") from None


def check_entries(entries: Sequence[Prefix]) -> None:
    """Raise FwtopError (code 2) for a prefix of length 0, which is everybody, and for too many elements."""
    if isinstance(entries, KeyedRows) and entries.elements > MAX_ELEMENTS:
        what = "ports" if isinstance(entries, PortRows) else "pairs"
        raise FwtopError(
            f"these are {entries.elements:,} {what} in all; a list holds up to {MAX_ELEMENTS:,}: "
            "nothing was changed", 2,
        )  # fmt: skip
    rows: Any = PrefixRows.of(entries)
    if any((short := rows.shortest(family)) is not None and not short.length for family in (4, 6)):
        raise FwtopError("an entry of /0 is everybody; nothing was changed", 2, field="entries")
