"""Addresses with ports: what a prefix sends to a port or a range of ports, as entries of a named list.

Entries are sorted keys of 23 bytes: family, address, length, protocol, first and last port, big endian, so
that bytes sort as entries do. Wherever only addresses matter (who could be hit, how many), the rows are a
sequence of the entries' prefixes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from mmap import mmap
from typing import Any, overload

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_rows import PrefixRows
from fwtop.model.text import safe_text

MAGIC = b"\0FWP"
MAX_ELEMENTS = 262_144  # single ports of all entries: kernels look up each of them
PROTOCOLS = {"tcp": 6, "udp": 17}
_NAMES = {number: name for name, number in PROTOCOLS.items()}
_TEXT = re.compile(r"(?:\[([^\]]*)\]|([0-9./]+)):(\d{1,5})(?:-(\d{1,5}))?(?:/(\w+))?", re.ASCII)
_MOST_PORT = 65_535
_ROW = np.dtype(
    [
        ("family", "u1"),
        ("address", "V16"),
        ("length", "u1"),
        ("protocol", "u1"),
        ("low", ">u2"),
        ("high", ">u2"),
    ]
)
_KEY = np.dtype(f"S{_ROW.itemsize}")
_PACKED = struct.Struct(">B16sBBHH")


class PortEntry(Struct, frozen=True, order=True):
    """What a prefix sends to these ports; it is a row of PortRows."""

    prefix: Prefix
    protocol: int
    low: int
    high: int

    @staticmethod
    def parse(text: str) -> PortEntry | None:
        """Parse `192.0.2.0/24:443/tcp`, `[2001:db8::/32]:8000-8100/udp`; None if it is nothing of the kind.

        Raises ValueError with a message for the user.
        """
        found = _TEXT.fullmatch(text.strip())
        if found is None:
            if text.strip().endswith(tuple(f"/{name}" for name in PROTOCOLS)):
                shown = safe_text(text.strip(), limit=60)
                raise ValueError(f"{shown!r} is not written as 192.0.2.7:443/tcp or [2001:db8::1]:53/udp")
            return None
        prefix = Prefix.parse(found[1] or found[2] or "")
        low = int(found[3])
        high = int(found[4]) if found[4] is not None else low
        if found[5] not in PROTOCOLS:
            raise ValueError(f"{safe_text(text.strip(), limit=60)!r} needs /tcp or /udp behind its port")
        if high < low:
            raise ValueError(f"{safe_text(text.strip(), limit=60)!r}: the first port is above the last")
        if not 1 <= low <= high <= _MOST_PORT:
            raise ValueError(f"{safe_text(text.strip(), limit=60)!r}: ports go from 1 to {_MOST_PORT}")
        return PortEntry(prefix, PROTOCOLS[found[5]], low, high)

    def __str__(self) -> str:
        """Return it as `parse` reads it."""
        address = str(self.prefix) if self.prefix.family == 4 else f"[{self.prefix}]"
        ports = str(self.low) if self.low == self.high else f"{self.low}-{self.high}"
        return f"{address}:{ports}/{_NAMES[self.protocol]}"


class PortRows(Sequence[Prefix]):
    """An immutable sequence of unique entries; as a sequence it has their prefixes."""

    def __init__(self, keys: NDArray[Any] | None = None) -> None:
        """Take over sorted keys without duplicates."""
        self.keys = keys if keys is not None else np.zeros(0, _KEY)
        self.keys.flags.writeable = False

    @staticmethod
    def of(entries: Iterable[PortEntry]) -> PortRows:
        """Convert entries, in any order."""
        packed = b"".join(
            _PACKED.pack(on.family, on.value.to_bytes(16, "big"), on.length, one.protocol, one.low, one.high)
            for one in entries
            for on in (one.prefix,)
        )
        return PortRows(np.unique(np.frombuffer(packed, _KEY)))

    @staticmethod
    def of_bytes(data: bytes | mmap) -> PortRows:
        """Read what `tobytes` wrote; raises ValueError if anything is wrong with it."""
        if data[: len(MAGIC)] != MAGIC or (len(data) - len(MAGIC)) % _ROW.itemsize:
            raise ValueError("not a list of addresses with ports")
        found = PortRows(np.frombuffer(data, _KEY, -1, len(MAGIC)).copy())
        rows = found.rows
        six = rows["family"] == 6
        wide = np.frombuffer(rows["address"].tobytes(), ">u8").reshape(-1, 2)
        bad = (rows["low"] < 1) | (rows["low"] > rows["high"]) | ~(six | (rows["family"] == 4))
        bad |= ~np.isin(rows["protocol"], list(_NAMES))
        bad |= ~six & ((rows["length"] > 32) | (wide[:, 0] != 0) | (wide[:, 1] >> np.uint64(32) != 0))
        if bad.any() or (found.keys[1:] <= found.keys[:-1]).any():
            raise ValueError("not a list of addresses with ports")
        if len(PrefixRows.of_packed(found.packed())) > len(found):  # which also finds host bits
            raise ValueError("not a list of addresses with ports")
        return found

    def packed(self) -> bytes:
        """Return the prefixes as 18 bytes each: family, length, address."""
        rows = self.rows
        columns = [rows["family"].reshape(-1, 1), rows["length"].reshape(-1, 1), self._addresses()]
        return np.hstack(columns).tobytes()

    def tobytes(self) -> bytes:
        """Encode as 23 bytes an entry."""
        return MAGIC + self.keys.tobytes()

    @property
    def rows(self) -> NDArray[Any]:
        """The entries' fields, in columns of these names: see `_ROW`."""
        return np.frombuffer(self.keys.tobytes(), _ROW)

    def _addresses(self) -> NDArray[np.uint8]:
        return np.frombuffer(self.rows["address"].tobytes(), np.uint8).reshape(-1, 16)

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.keys)

    @overload
    def __getitem__(self, place: int) -> Prefix: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Prefix, ...]: ...
    def __getitem__(self, place: int | slice) -> Prefix | tuple[Prefix, ...]:
        """Return the prefix of an entry, or those of several, each once."""
        if isinstance(place, slice):
            return tuple(dict.fromkeys(entry.prefix for entry in self.entries(place)))
        return next(self.entries(slice(place, place + 1 or None))).prefix

    def __iter__(self) -> Iterator[Prefix]:
        """Yield the entries' prefixes."""
        return iter(self.prefixes)

    def entries(self, part: slice = slice(None)) -> Iterator[PortEntry]:
        """Yield entries in order."""
        for family, address, length, protocol, low, high in _PACKED.iter_unpack(self.keys[part].tobytes()):
            yield PortEntry(Prefix(family, int.from_bytes(address, "big"), length), protocol, low, high)

    def __eq__(self, other: object) -> bool:
        """Compare with other rows of ports."""
        return isinstance(other, PortRows) and np.array_equal(self.keys, other.keys)

    def __hash__(self) -> int:
        """Hash the bytes."""
        return hash(self.tobytes())

    def __deepcopy__(self, _memo: dict[int, Any]) -> PortRows:
        """Return itself, as it is immutable."""
        return self

    @cached_property
    def prefixes(self) -> PrefixRows:
        """The entries' prefixes, each once."""
        return PrefixRows.of_packed(self.packed())

    @cached_property
    def families(self) -> frozenset[int]:
        """The address families in the list."""
        return self.prefixes.families

    def count(self, family: int) -> int:
        """Return the number of entries of a family."""
        return int(np.count_nonzero(self.rows["family"] == family))

    def of_family(self, family: int) -> PortRows:
        """Return the entries of one family."""
        return PortRows(self.keys[self.rows["family"] == family])

    def meeting(self, protocol: int, port: int) -> PrefixRows:
        """Return the prefixes whose packets to a port are listed."""
        rows = self.rows
        mine = (rows["protocol"] == protocol) & (rows["low"] <= port) & (port <= rows["high"])
        return PortRows(self.keys[mine]).prefixes

    def shortest(self, family: int) -> Prefix | None:
        """Return the shortest prefix of a family, None if there is none."""
        return self.prefixes.shortest(family)

    def overlapping(self, other: Prefix) -> Prefix | None:
        """Return a prefix inside or around `other`, None if there is none."""
        return self.prefixes.overlapping(other)

    @property
    def elements(self) -> int:
        """How many single ports the entries have, those in two ranges counted twice."""
        rows = self.rows
        return int((rows["high"].astype(np.int64) - rows["low"] + 1).sum())

    @cached_property
    def single(self) -> PortRows:
        """The same as entries of single ports, each once: as kernels look them up."""
        rows = self.rows
        sizes = rows["high"].astype(np.int64) - rows["low"] + 1
        if (sizes == 1).all():
            return self
        made = np.repeat(rows, sizes)
        offset = np.arange(len(made)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        made["low"] = made["low"] + offset
        made["high"] = made["low"]
        return PortRows(np.unique(np.frombuffer(made.tobytes(), _KEY)))

    def outermost(self) -> PortRows:
        """Return single ports without those of a prefix that lies within another one with the same port."""
        kept: list[PortEntry] = []
        last: dict[tuple[int, int], Prefix] = {}
        for entry in self.single.entries():
            around = last.get((entry.protocol, entry.low))
            if around is None or not around.contains(entry.prefix):
                last[entry.protocol, entry.low] = entry.prefix
                kept.append(entry)
        return PortRows.of(kept)

    def columns(self) -> tuple[NDArray[np.uint8], NDArray[Any]]:
        """Return the 16 bytes of each entry's address, IPv4 in the last four, and all fields."""
        return self._addresses(), self.rows


def rows_of_bytes(data: bytes | mmap) -> PrefixRows | PortRows:
    """Read a list of either kind; raises ValueError."""
    return PortRows.of_bytes(data) if data[: len(MAGIC)] == MAGIC else PrefixRows.of_bytes(data)


def parse_entries(texts: Iterable[str]) -> Sequence[Prefix]:
    """Parse entries of a list: prefixes, or PortRows if they have ports, but not both. Raises ValueError."""
    ports: dict[PortEntry, None] = {}
    prefixes: dict[Prefix, None] = {}
    for text in texts:
        entry = PortEntry.parse(text)
        if entry is not None:
            ports[entry] = None
        else:
            prefixes[Prefix.parse(text)] = None
        if ports and prefixes:
            raise ValueError("a list holds addresses, or addresses with ports, but not both")
    return PortRows.of(ports) if ports else tuple(prefixes)


# Set algebra on sorted rows. A row of PrefixRows becomes one key that sorts as the row does: a number for
# IPv4, 17 bytes for IPv6. Those bytes end with the length, which is never 0, so that numpy drops nothing from
# their end.
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
    if isinstance(rows, PortRows):
        return [rows.keys]
    (value, short), (hi, lo, length) = columns_of(rows)
    six = np.empty(len(length), _SIX)
    six["hi"], six["lo"], six["length"] = hi, lo, length
    return [value.astype(np.uint64) << np.uint64(6) | short.astype(np.uint64), six.view("S17")]


def columns_of(rows: Rows) -> list[_Columns]:
    """Return the columns of a list, of prefixes those of each family."""
    return [(rows.keys,)] if isinstance(rows, PortRows) else [rows.columns4(), rows.columns6()]


def _made(like: Rows, parts: list[_Columns]) -> Rows:
    return PortRows(*parts[0]) if isinstance(like, PortRows) else PrefixRows(*parts)


def inserted(rows: Rows, more: Rows) -> Rows:
    """Return the rows and those of `more`, none of which is among them."""
    rows, more = alike(rows, more)
    left, before, parts = places(rows, more), 0, list[_Columns]()
    for old, new in zip(columns_of(rows), columns_of(more), strict=True):
        at, left = left[: len(new[-1])] - before, left[len(new[-1]) :]
        parts.append(tuple(np.insert(one, at, other) for one, other in zip(old, new, strict=True)))
        before += len(old[-1])
    return _made(rows, parts)


@overload
def chosen(rows: PrefixRows, keep: NDArray[Any]) -> PrefixRows: ...
@overload
def chosen(rows: PortRows, keep: NDArray[Any]) -> PortRows: ...
def chosen(rows: Rows, keep: NDArray[Any]) -> Rows:
    """Return the rows that a mask of all of them marks."""
    parts = []
    for columns in columns_of(rows):
        mine, keep = keep[: len(columns[-1])], keep[len(columns[-1]) :]
        parts.append(tuple(column[mine] for column in columns))
    return _made(rows, parts)
