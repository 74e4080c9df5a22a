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

from fwtop.model.addresses import port_rows
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_list import prefix_text
from fwtop.model.addresses.prefix_rows import PrefixRows
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

NEVER = 0.0  # the end of an entry without a time to live
_NOTHING = PrefixRows()


class Change(Struct, frozen=True):
    """Entries that go, then entries that come or get another end. All that come have the same end."""

    added: port_rows.Rows = _NOTHING
    removed: port_rows.Rows = _NOTHING
    end: float = NEVER  # CLOCK_MONOTONIC seconds


class NamedList(Struct, frozen=True, eq=False):
    """The entries of a list; `ends` has one number for each of them, or is None if all stay.

    They are prefixes, or prefixes with ports: an empty list may become either.
    """

    name: str
    rows: port_rows.Rows = _NOTHING
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
        return Change(wanted, port_rows.chosen(self.rows, port_rows.positions(wanted, self.rows) < 0), end)

    def expiry(self, now: float) -> Change:
        """Return the change that removes what has ended."""
        if self.ends is None:
            return Change()
        return Change(removed=port_rows.chosen(self.rows, (self.ends != NEVER) & (self.ends <= now)))

    def new_of(self, change: Change) -> port_rows.Rows:
        """Return what a change adds that is not listed."""
        return port_rows.chosen(change.added, port_rows.positions(self.rows, change.added) < 0)

    def changed(self, change: Change) -> NamedList:
        """Return the list after a change."""
        rows, ends = self.rows, self.ends
        if len(change.removed):
            keep = np.ones(len(rows), np.bool_)
            gone = port_rows.positions(rows, change.removed)
            keep[gone[gone >= 0]] = False
            rows, ends = port_rows.chosen(rows, keep), ends[keep] if ends is not None else None
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
        columns = [item for part in port_rows.columns_of(self.rows) for item in part]
        return sum(int(item.nbytes) for item in columns) + (self.ends.nbytes if self.ends is not None else 0)

    def covering(self, wanted: str) -> str | None:
        """Return the longest entry that holds all of an address or prefix, with its ports where the list
        has them; None if there is none. Raises FwtopError (code 2).
        """
        rows = self._alike(entries_of((wanted,)))
        if isinstance(rows, port_rows.PortRows):
            found: object = self._port_covering(*rows.entries())
        else:
            found = self._covering(entry_of(wanted))
        return str(found) if found is not None else None

    def _port_covering(self, wanted: port_rows.PortEntry) -> port_rows.PortEntry | None:
        holding = [
            one
            for one in (self.rows.entries() if isinstance(self.rows, port_rows.PortRows) else ())
            if one.protocol == wanted.protocol
            and one.low <= wanted.low
            and wanted.high <= one.high
            and one.prefix.contains(wanted.prefix)
        ]
        return max(holding, key=lambda one: (one.prefix.length, one.low - one.high), default=None)

    def _covering(self, wanted: Prefix) -> Prefix | None:
        around = [Prefix.of_columns(wanted.family, wanted.hi, wanted.lo, n) for n in range(wanted.length + 1)]
        found = port_rows.positions(self.rows, PrefixRows.of([item for item in around if item.length]))
        listed = found[found >= 0]
        return self.rows[int(listed.max())] if len(listed) else None

    def end_of(self, entry: str) -> float:
        """Return when a listed entry ends."""
        if self.ends is None:
            return NEVER
        return float(self.ends[int(port_rows.positions(self.rows, self._alike(entries_of((entry,))))[0])])

    @property
    def of_ports(self) -> bool:
        """Whether its entries have ports."""
        return isinstance(self.rows, port_rows.PortRows)

    def texts(self, part: slice = slice(None)) -> list[str]:
        """Return entries as they are written."""
        if isinstance(self.rows, port_rows.PortRows):
            return [str(entry) for entry in self.rows.entries(part)]
        return [prefix_text(prefix) for prefix in self.rows[part]]

    def _alike(self, entries: Sequence[Prefix]) -> port_rows.Rows:
        """Return entries of the list's own kind; raises FwtopError (code 2)."""
        rows = entries if isinstance(entries, port_rows.PortRows) else PrefixRows.of(entries)
        if len(rows) and len(self.rows) and isinstance(rows, port_rows.PortRows) != self.of_ports:
            kind = (
                "addresses with ports, as 192.0.2.7:443/tcp" if self.of_ports else "addresses without ports"
            )
            raise FwtopError(f"list {self.name} holds {kind}; nothing was changed", 2)
        return rows if len(rows) or not self.of_ports else port_rows.PortRows()

    def _present(self, entries: port_rows.Rows) -> port_rows.Rows:
        return port_rows.chosen(entries, port_rows.positions(self.rows, entries) >= 0)


def _with(
    rows: port_rows.Rows, ends: NDArray[np.float64] | None, change: Change
) -> tuple[port_rows.Rows, NDArray[np.float64] | None]:
    """Add the entries of a change, and set the end of those that are there."""
    at = port_rows.positions(rows, change.added)
    new = port_rows.chosen(change.added, at < 0)
    if ends is None and change.end != NEVER:
        ends = np.zeros(len(rows), np.float64)
    if ends is not None:
        ends = ends.copy()
        ends[at[at >= 0]] = change.end
        ends = np.insert(ends, port_rows.places(rows, new), change.end)
    return (port_rows.inserted(rows, new) if len(new) else rows), ends


def entry_of(text: str) -> Prefix:
    """Parse an entry; raises FwtopError (code 2)."""
    try:
        prefix = Prefix.parse(text)
    except ValueError as error:
        raise FwtopError(f"{safe_text(error)}; nothing was changed", 2, field="entries") from None
    check_entries((prefix,))
    return prefix


def entries_of(texts: Iterable[str]) -> Sequence[Prefix]:
    """Parse entries, PortRows if they have ports; raises FwtopError (code 2)."""
    try:
        return port_rows.parse_entries(texts)
    except ValueError as error:
        raise FwtopError(f"{safe_text(error)}; nothing was changed", 2, field="entries") from None


def check_entries(entries: Sequence[Prefix]) -> None:
    """Raise FwtopError (code 2) for a prefix of length 0, which is everybody, and for too many ports."""
    if isinstance(entries, port_rows.PortRows) and entries.elements > port_rows.MAX_ELEMENTS:
        raise FwtopError(
            f"these are {entries.elements:,} ports in all; a list holds up to {port_rows.MAX_ELEMENTS:,}: "
            "nothing was changed", 2,
        )  # fmt: skip
    rows: Any = PrefixRows.of(entries)
    if any((short := rows.shortest(family)) is not None and not short.length for family in (4, 6)):
        raise FwtopError("an entry of /0 is everybody; nothing was changed", 2, field="entries")
