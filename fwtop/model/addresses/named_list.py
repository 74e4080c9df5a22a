"""A named list of prefixes, each with an end or none, and the changes that lead from one state to the next.

Values only: a change is made of a list, and `changed` gives the list after it. The guardian records changes
and replays them, so applying one must depend on nothing but the list and the change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_rows import PrefixRows
from fwtop.model.addresses.prefix_sets import chosen, inserted, places, positions
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

NEVER = 0.0  # the end of an entry without a time to live
_NOTHING = PrefixRows()


@dataclass(frozen=True, slots=True)
class Change:
    """Entries that go, then entries that come or get another end. All that come have the same end."""

    added: PrefixRows = _NOTHING
    removed: PrefixRows = _NOTHING
    end: float = NEVER  # CLOCK_MONOTONIC seconds


@dataclass(frozen=True, slots=True)
class NamedList:
    """The entries of a list; `ends` has one number for each of them, or is None if all stay."""

    name: str
    rows: PrefixRows = _NOTHING
    ends: NDArray[np.float64] | None = field(default=None, compare=False)

    def addition(self, entries: Sequence[Prefix], end: float = NEVER) -> Change:
        """Return the change that adds entries, and gives this end to those that are there already."""
        return Change(added=PrefixRows.of(entries), end=end)

    def removal(self, entries: Sequence[Prefix]) -> Change:
        """Return the change that removes entries; what is not listed is left out."""
        return Change(removed=self._present(PrefixRows.of(entries)))

    def replacement(self, entries: Sequence[Prefix], end: float = NEVER) -> Change:
        """Return the change after which the list has these entries and no others."""
        wanted = PrefixRows.of(entries)
        return Change(wanted, chosen(self.rows, positions(wanted, self.rows) < 0), end)

    def expiry(self, now: float) -> Change:
        """Return the change that removes what has ended."""
        if self.ends is None:
            return Change()
        return Change(removed=chosen(self.rows, (self.ends != NEVER) & (self.ends <= now)))

    def new_of(self, change: Change) -> PrefixRows:
        """Return what a change adds that is not listed."""
        return chosen(change.added, positions(self.rows, change.added) < 0)

    def changed(self, change: Change) -> NamedList:
        """Return the list after a change."""
        rows, ends = self.rows, self.ends
        if len(change.removed):
            keep = np.ones(len(rows), np.bool_)
            gone = positions(rows, change.removed)
            keep[gone[gone >= 0]] = False
            rows, ends = chosen(rows, keep), ends[keep] if ends is not None else None
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
        columns = (*self.rows.columns4(), *self.rows.columns6())
        return sum(int(item.nbytes) for item in columns) + (self.ends.nbytes if self.ends is not None else 0)

    def covering(self, wanted: Prefix) -> Prefix | None:
        """Return the longest entry that holds all of an address or prefix, None if there is none."""
        around = [Prefix.of_columns(wanted.family, wanted.hi, wanted.lo, n) for n in range(wanted.length + 1)]
        found = positions(self.rows, PrefixRows.of([item for item in around if item.length]))
        listed = found[found >= 0]
        return self.rows[int(listed.max())] if len(listed) else None

    def end_of(self, entry: Prefix) -> float:
        """Return when a listed entry ends."""
        if self.ends is None:
            return NEVER
        return float(self.ends[int(positions(self.rows, PrefixRows.of((entry,)))[0])])

    def _present(self, entries: PrefixRows) -> PrefixRows:
        return chosen(entries, positions(self.rows, entries) >= 0)


def _with(
    rows: PrefixRows, ends: NDArray[np.float64] | None, change: Change
) -> tuple[PrefixRows, NDArray[np.float64] | None]:
    """Add the entries of a change, and set the end of those that are there."""
    at = positions(rows, change.added)
    new = chosen(change.added, at < 0)
    if ends is None and change.end != NEVER:
        ends = np.zeros(len(rows), np.float64)
    if ends is not None:
        ends = ends.copy()
        ends[at[at >= 0]] = change.end
        ends = np.insert(ends, places(rows, new), change.end)
    return (inserted(rows, new) if len(new) else rows), ends


def entry_of(text: str) -> Prefix:
    """Parse an entry; raises FwtopError (code 2)."""
    try:
        prefix = Prefix.parse(text)
    except ValueError as error:
        raise FwtopError(f"{safe_text(error)}; nothing was changed", 2) from None
    check_entries((prefix,))
    return prefix


def check_entries(entries: Sequence[Prefix]) -> None:
    """Raise FwtopError (code 2) for a prefix of length 0: it is everybody."""
    rows: Any = PrefixRows.of(entries)
    if any((short := rows.shortest(family)) is not None and not short.length for family in (4, 6)):
        raise FwtopError("an entry of /0 is everybody; nothing was changed", 2)
