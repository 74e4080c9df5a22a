"""Set algebra on sorted prefixes: where some are in a list, the list with them, the list without them.

A row of PrefixRows becomes one key that sorts as the row does: a number for IPv4, 17 bytes for IPv6. Those
bytes end with the length, which is never 0, so that numpy drops nothing from their end.
"""

from __future__ import annotations

from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from fwtop.model.addresses.port_rows import PortRows
from fwtop.model.addresses.prefix_rows import PrefixRows

_SIX = np.dtype([("hi", ">u8"), ("lo", ">u8"), ("length", "u1")])
_ABSENT = -1
_Columns = tuple[NDArray[Any], ...]
Rows = PrefixRows | PortRows  # of one kind in each call; an empty list is of either


def alike(one: Rows, other: Rows) -> tuple[Rows, Rows]:
    """Return two lists of the same kind, where an empty one may become the other's; raises ValueError."""
    if isinstance(one, PortRows) != isinstance(other, PortRows):
        if len(one) and len(other):
            raise ValueError("a list holds addresses, or addresses with ports, but not both")
        return (one, type(one)()) if len(one) else (type(other)(), other)
    return one, other


def positions(rows: Rows, wanted: Rows) -> NDArray[np.int64]:
    """Return the index in `rows` of each of `wanted`, -1 for one that is not there."""
    rows, wanted = alike(rows, wanted)
    if isinstance(rows, PortRows) and isinstance(wanted, PortRows):
        return _found(rows.keys, wanted.keys, 0)
    rows, wanted = _plain(rows), _plain(wanted)
    found, before = [], 0
    for family in (4, 6):
        mine, theirs = _keys(rows, family), _keys(wanted, family)
        found.append(_found(mine, theirs, before))
        before += len(mine)
    return np.concatenate(found)


def _plain(rows: Rows) -> PrefixRows:
    return rows if isinstance(rows, PrefixRows) else PrefixRows()  # empty: see `alike`


def _found(mine: NDArray[Any], theirs: NDArray[Any], before: int) -> NDArray[np.int64]:
    at = np.searchsorted(mine, theirs)
    there = np.zeros(len(theirs), np.bool_)
    inside = at < len(mine)
    there[inside] = mine[at[inside]] == theirs[inside]
    return np.where(there, at + before, _ABSENT)


def places(rows: Rows, more: Rows) -> NDArray[np.int64]:
    """Return the indexes before which prefixes that are not in `rows` are to be inserted."""
    rows, more = alike(rows, more)
    if isinstance(rows, PortRows) and isinstance(more, PortRows):
        return np.searchsorted(rows.keys, more.keys)
    rows, more = _plain(rows), _plain(more)
    before, found = 0, []
    for family in (4, 6):
        mine = _keys(rows, family)
        found.append(np.searchsorted(mine, _keys(more, family)) + before)
        before += len(mine)
    return np.concatenate(found)


def inserted(rows: Rows, more: Rows) -> Rows:
    """Return the rows and those of `more`, none of which is among them."""
    rows, more = alike(rows, more)
    if isinstance(rows, PortRows) and isinstance(more, PortRows):
        return PortRows(np.insert(rows.keys, np.searchsorted(rows.keys, more.keys), more.keys))
    rows, more = _plain(rows), _plain(more)
    at, four, first = places(rows, more), rows.count(4), more.count(4)
    return PrefixRows(
        _spread(rows.columns4(), more.columns4(), at[:first]),
        _spread(rows.columns6(), more.columns6(), at[first:] - four),
    )


def _spread(columns: _Columns, more: _Columns, at: NDArray[np.int64]) -> _Columns:
    return tuple(np.insert(old, at, new) for old, new in zip(columns, more, strict=True))


@overload
def chosen(rows: PrefixRows, keep: NDArray[Any]) -> PrefixRows: ...
@overload
def chosen(rows: PortRows, keep: NDArray[Any]) -> PortRows: ...
def chosen(rows: Rows, keep: NDArray[Any]) -> Rows:
    """Return the rows that a mask of all of them marks."""
    if isinstance(rows, PortRows):
        return PortRows(rows.keys[keep])
    four = rows.count(4)
    return PrefixRows(
        tuple(column[keep[:four]] for column in rows.columns4()),
        tuple(column[keep[four:]] for column in rows.columns6()),
    )


def _keys(rows: PrefixRows, family: int) -> NDArray[Any]:
    if family == 4:
        value, length = rows.columns4()
        return value.astype(np.uint64) << np.uint64(6) | length.astype(np.uint64)
    hi, lo, length = rows.columns6()
    keys = np.empty(len(length), _SIX)
    keys["hi"], keys["lo"], keys["length"] = hi, lo, length
    return keys.view("S17")
