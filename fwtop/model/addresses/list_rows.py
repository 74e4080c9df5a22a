"""The rows of a named list, of whatever kind: how they are parsed and read, and set algebra on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from mmap import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.keyed_rows import KeyedRows
from fwtop.model.addresses.pair_rows import PairEntry, PairRows
from fwtop.model.addresses.port_rows import PortEntry, PortRows
from fwtop.model.addresses.prefix_list import prefix_text
from fwtop.model.addresses.prefix_rows import PrefixRows

Rows = PrefixRows | PortRows | PairRows  # of one kind in each call; an empty list is of either
_ONE_KIND = "a list holds addresses, addresses with ports, or pairs of networks: one kind"
_KEYED: tuple[type[PortRows | PairRows], ...] = (PortRows, PairRows)


def rows_of_bytes(data: bytes | mmap) -> Rows:
    """Read a list of any kind; raises ValueError."""
    keyed = next((kind for kind in _KEYED if data[: len(kind.magic)] == kind.magic), None)
    return (keyed or PrefixRows).of_bytes(data)


def parse_entries(texts: Iterable[str]) -> Sequence[Prefix]:
    """Parse entries of a list, all of one kind: prefixes, else PortRows or PairRows. Raises ValueError."""
    ports: dict[PortEntry, None] = {}
    pairs: dict[PairEntry, None] = {}
    prefixes: dict[Prefix, None] = {}
    for text in texts:
        if (pair := PairEntry.parse(text)) is not None:
            pairs[pair] = None
        elif (entry := PortEntry.parse(text)) is not None:
            ports[entry] = None
        else:
            prefixes[Prefix.parse(text)] = None
    if sum(map(bool, (ports, pairs, prefixes))) > 1:
        raise ValueError(_ONE_KIND)
    return PortRows.of(ports) if ports else PairRows.of(pairs) if pairs else tuple(prefixes)


def rows_of(entries: Sequence[Prefix]) -> Rows:
    """Return entries as rows."""
    return entries if isinstance(entries, PortRows | PairRows) else PrefixRows.of(entries)


def texts_of(rows: Sequence[Prefix], part: slice = slice(None)) -> list[str]:
    """Return entries as they are written."""
    if isinstance(rows, KeyedRows):
        return [str(entry) for entry in rows.entries(part)]
    return [prefix_text(prefix) for prefix in rows[part]]


def words_of(rows: Sequence[Prefix]) -> str:
    """Say what a list's entries are."""
    return rows.words if isinstance(rows, KeyedRows) else "addresses"


def joined(lists: Sequence[Sequence[Prefix]]) -> Sequence[Prefix]:
    """Return the entries of several lists that have some, all of one kind; raises ValueError."""
    keyed = [item for item in lists if isinstance(item, PortRows | PairRows)]
    if not keyed:
        return PrefixRows.union(lists)
    if len(keyed) < len(lists) or len(set(map(type, keyed))) > 1:
        raise ValueError(_ONE_KIND)
    return keyed[0].of_packed(b"".join(item.keys.tobytes() for item in keyed))


# Set algebra on sorted rows. A row of PrefixRows becomes one key that sorts as the row does: a number for
# IPv4, 17 bytes for IPv6. Those bytes end with the length, which is never 0, so that numpy drops nothing from
# their end.
_SIX = np.dtype([("hi", ">u8"), ("lo", ">u8"), ("length", "u1")])
_ABSENT = -1
_Columns = tuple[NDArray[Any], ...]


def alike(one: Rows, other: Rows) -> tuple[Rows, Rows]:
    """Return two lists of the same kind, where an empty one may become the other's; raises ValueError."""
    if type(one) is not type(other):
        if len(one) and len(other):
            raise ValueError(_ONE_KIND)
        return (one, type(one)()) if len(one) else (type(other)(), other)
    return one, other


def positions(rows: Rows, wanted: Rows) -> NDArray[np.int64]:
    """Return the index in `rows` of each of `wanted`, -1 for one that is not there."""
    found, before = [], 0
    for mine, theirs in _both_keys(rows, wanted):
        at = np.searchsorted(mine, theirs)
        there = np.zeros(len(theirs), np.bool_)
        inside = at < len(mine)
        there[inside] = mine[at[inside]] == theirs[inside]
        found.append(np.where(there, at + before, _ABSENT))
        before += len(mine)
    return np.concatenate(found)


def places(rows: Rows, more: Rows) -> NDArray[np.int64]:
    """Return the indexes before which prefixes that are not in `rows` are to be inserted."""
    found, before = [], 0
    for mine, theirs in _both_keys(rows, more):
        found.append(np.searchsorted(mine, theirs) + before)
        before += len(mine)
    return np.concatenate(found)


def _both_keys(one: Rows, other: Rows) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Yield the sorted keys of two lists, of prefixes those of each family."""
    return zip(*map(_keys, alike(one, other)), strict=True)


def _keys(rows: Rows) -> list[NDArray[Any]]:
    if isinstance(rows, KeyedRows):
        return [rows.keys]
    (value, short), (hi, lo, length) = columns_of(rows)
    six = np.empty(len(length), _SIX)
    six["hi"], six["lo"], six["length"] = hi, lo, length
    return [value.astype(np.uint64) << np.uint64(6) | short.astype(np.uint64), six.view("S17")]


def columns_of(rows: Rows) -> list[_Columns]:
    """Return the columns of a list, of prefixes those of each family."""
    return [(rows.keys,)] if isinstance(rows, KeyedRows) else [rows.columns4(), rows.columns6()]


def _made(like: Rows, parts: list[_Columns]) -> Rows:
    return type(like)(*parts[0]) if isinstance(like, PortRows | PairRows) else PrefixRows(*parts)


def inserted(rows: Rows, more: Rows) -> Rows:
    """Return the rows and those of `more`, none of which is among them."""
    rows, more = alike(rows, more)
    left, before, parts = places(rows, more), 0, list[_Columns]()
    for old, new in zip(columns_of(rows), columns_of(more), strict=True):
        at, left = left[: len(new[-1])] - before, left[len(new[-1]) :]
        parts.append(tuple(np.insert(one, at, other) for one, other in zip(old, new, strict=True)))
        before += len(old[-1])
    return _made(rows, parts)


def chosen(rows: Rows, keep: NDArray[Any]) -> Rows:
    """Return the rows that a mask of all of them marks."""
    parts = []
    for columns in columns_of(rows):
        mine, keep = keep[: len(columns[-1])], keep[len(columns[-1]) :]
        parts.append(tuple(column[mine] for column in columns))
    return _made(rows, parts)
