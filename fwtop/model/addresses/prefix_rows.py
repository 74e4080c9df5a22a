"""A long list of prefixes as sorted columns: 5 bytes per IPv4 prefix, 17 per IPv6 one, and no Python loops.

A module of its own, so that a guardian without a long list doesn't load numpy.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from mmap import mmap
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from fwtop.model.addresses.address import Prefix

MAGIC = b"\0FWL"  # a short list begins with 4 or 6
_HEAD = struct.Struct("<4sIQQ")  # magic, reserved, prefixes of IPv4, of IPv6
_PACKED_ROW = np.dtype([("family", "u1"), ("length", "u1"), ("hi", ">u8"), ("lo", ">u8")])
_CHUNK = 50_000  # prefixes made into objects at a time
_CHECKED = 1 << 20  # prefixes checked at a time: temporary arrays stay small
_FULL = np.uint64(0xFFFFFFFFFFFFFFFF)
_Columns = tuple[NDArray[Any], ...]  # the words of the addresses, highest first, and the lengths
_WORDS: dict[int, tuple[Any, ...]] = {4: (np.uint32,), 6: (np.uint64, np.uint64)}


class PrefixRows(Sequence[Prefix]):
    """An immutable sequence of unique prefixes, ordered by family, value and length."""

    def __init__(self, four: _Columns | None = None, six: _Columns | None = None) -> None:
        """Take over columns that are valid, sorted and without duplicates."""
        self._columns = {4: four or _empty(4), 6: six or _empty(6)}
        self._covered: dict[int, int] = {}  # by family, once asked
        self.read_from: bytes | mmap | None = None  # their encoding, if they came so
        for columns in self._columns.values():
            for column in columns:
                column.flags.writeable = False

    @staticmethod
    def of_bytes(data: bytes | mmap) -> PrefixRows:
        """Read what `tobytes` wrote, without copying it; raises ValueError if anything is wrong with it."""
        if len(data) < _HEAD.size:
            raise ValueError("not a list of prefixes")
        magic, reserved, four, six = _HEAD.unpack_from(data)
        if magic != MAGIC or reserved or len(data) != _HEAD.size + 5 * four + 17 * six:
            raise ValueError("not a list of prefixes")
        at, read = _HEAD.size, []
        for kind, count in (("<u8", six), ("<u8", six), ("<u4", four), ("u1", four), ("u1", six)):
            read.append(np.frombuffer(data, kind, count, at))
            at += read[-1].nbytes
        found = {4: (read[2], read[3]), 6: (read[0], read[1], read[4])}
        if not all(_is_valid(family, columns) for family, columns in found.items()):
            raise ValueError("not a list of prefixes")
        rows = PrefixRows(found[4], found[6])
        rows.read_from = data
        return rows

    @staticmethod
    def of_packed(data: bytes | mmap) -> PrefixRows:
        """Decode rows of 18 bytes, in any order; raises ValueError if one is not a prefix."""
        rows = np.frombuffer(data, _PACKED_ROW)
        four, six = rows[rows["family"] == 4], rows[rows["family"] == 6]
        bad = len(four) + len(six) < len(rows) or four["hi"].any() or (four["lo"] >> np.uint64(32)).any()
        columns = {
            4: (four["lo"].astype(np.uint32), four["length"].copy()),
            6: (six["hi"].astype(np.uint64), six["lo"].astype(np.uint64), six["length"].copy()),
        }
        if bad or not all(_have_no_host_bits(*item) for item in columns.items()):
            raise ValueError("not a list of prefixes")
        return PrefixRows(_sorted(4, columns[4]), _sorted(6, columns[6]))

    @staticmethod
    def of(prefixes: Sequence[Prefix]) -> PrefixRows:
        """Convert a sequence of prefixes."""
        if isinstance(prefixes, PrefixRows):
            return prefixes
        senders: PrefixRows | None = getattr(prefixes, "prefixes", None)  # keyed_rows.py
        if senders is not None:
            return senders
        four = [item for item in prefixes if item.family == 4]
        six = [item for item in prefixes if item.family == 6]
        columns = {
            4: (np.array([item.value for item in four], np.uint32), _lengths(four)),
            6: (
                np.array([item.hi for item in six], np.uint64),
                np.array([item.lo for item in six], np.uint64),
                _lengths(six),
            ),
        }
        return PrefixRows(_sorted(4, columns[4]), _sorted(6, columns[6]))

    @staticmethod
    def of_columns(four: list[_Columns], six: list[_Columns] | None = None) -> PrefixRows:
        """Join columns of prefixes in any order, whose host bits must be zero; the lists are empty then.

        So that a list of many millions takes little more memory than its keys, 8 bytes for each of IPv4.
        """
        return PrefixRows(_sorted4(four) if four else None, _joined(6, six or []))

    @staticmethod
    def union(lists: Iterable[Sequence[Prefix]]) -> PrefixRows:
        """Return the union of several lists."""
        given = [PrefixRows.of(item) for item in lists]
        return PrefixRows(*(_union(family, [item._columns[family] for item in given]) for family in (4, 6)))

    def __len__(self) -> int:
        """Return the number of prefixes."""
        return self.count(4) + self.count(6)

    def count(self, family: int) -> int:
        """Return the number of prefixes of a family."""
        return len(self._columns[family][-1])

    @overload
    def __getitem__(self, place: int) -> Prefix: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Prefix, ...]: ...
    def __getitem__(self, place: int | slice) -> Prefix | tuple[Prefix, ...]:
        """Return one prefix, or a tuple of them for a slice."""
        places = range(len(self))[place]
        if isinstance(places, range):
            if places.step != 1:
                return tuple(self[at] for at in places)
            return tuple(self._between(places.start, places.stop))
        return next(self._between(places, places + 1))

    def __iter__(self) -> Iterator[Prefix]:
        """Yield the prefixes in order."""
        for start in range(0, len(self), _CHUNK):
            yield from self._between(start, start + _CHUNK)

    def _between(self, start: int, stop: int) -> Iterator[Prefix]:
        four = self.count(4)
        yield from _prefixes(4, tuple(column[start:stop] for column in self._columns[4]))
        first, last = max(start - four, 0), max(stop - four, 0)
        yield from _prefixes(6, tuple(column[first:last] for column in self._columns[6]))

    def __eq__(self, other: object) -> bool:
        """Compare with any other sequence of prefixes."""
        if isinstance(other, PrefixRows):
            pairs = [
                pair for key in (4, 6) for pair in zip(self._columns[key], other._columns[key], strict=True)
            ]
            return all(np.array_equal(mine, others) for mine, others in pairs)
        return isinstance(other, tuple) and len(self) == len(other) and all(map(Prefix.__eq__, self, other))

    def __hash__(self) -> int:
        """Hash the bytes."""
        return hash(self.tobytes())

    def __deepcopy__(self, _memo: dict[int, Any]) -> PrefixRows:
        """Return itself, as it is immutable."""
        return self

    def pieces(self) -> list[bytes | memoryview]:
        """Return the encoding in pieces to be written one after the other, most of them not copied."""
        (value, short), (hi, lo, length) = self._columns[4], self._columns[6]
        head = _HEAD.pack(MAGIC, 0, len(short), len(length))
        columns = [
            hi.astype("<u8", copy=False),
            lo.astype("<u8", copy=False),
            value.astype("<u4", copy=False),
        ]
        filled = [np.ascontiguousarray(item) for item in (*columns, short, length) if len(item)]
        return [head, *(item.view(np.uint8).data for item in filled)]

    def tobytes(self) -> bytes:
        """Encode as 5 bytes per IPv4 prefix and 17 per IPv6 one, the inverse of `of_bytes`."""
        return b"".join(self.pieces())

    def encoded(self) -> bytes | mmap:
        """Return the same without copying what the rows were read from."""
        return self.read_from if self.read_from is not None else self.tobytes()

    @cached_property
    def families(self) -> frozenset[int]:
        """The address families in the list."""
        return frozenset(family for family in (4, 6) if self.count(family))

    def of_family(self, family: int) -> PrefixRows:
        """Return the prefixes of one family."""
        if self.families <= {family}:
            return self
        return PrefixRows(self._columns[4]) if family == 4 else PrefixRows(None, self._columns[6])

    def shortest(self, family: int) -> Prefix | None:
        """Return the shortest prefix of a family, None if there is none."""
        columns = self._columns[family]
        if not len(columns[-1]):
            return None
        at = int(columns[-1].argmin())
        return next(_prefixes(family, tuple(column[at : at + 1] for column in columns)))

    def counter_rows(self) -> NDArray[np.int32]:
        """Return the indexes of the rows that have a counter, in the order of their counters.

        First IPv4 up to /24 and then longer, without prefixes inside others; then all of IPv6.
        """
        outer = self.outer4()
        wide = self._columns[4][1][outer] <= 24
        more = np.arange(self.count(4), len(self), dtype=np.int32)
        return np.concatenate([outer[wide], outer[~wide], more])

    def outer4(self) -> NDArray[np.int32]:
        """Return the indexes of the IPv4 prefixes that are in no other one."""
        starts, lengths = self._columns[4]
        return np.flatnonzero(~_is_inside(starts, starts | _low_bits32(lengths))).astype(np.int32)

    def outer_pieces4(self) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.uint8]]]:
        """Yield addresses and lengths of the IPv4 prefixes that are in no other one, in order, a million at
        a time.
        """
        value, length = self._columns[4]
        furthest = -1  # the last address of those before
        for start in range(0, len(value), _CHECKED):
            first, short = value[start : start + _CHECKED], length[start : start + _CHECKED]
            ends = first.astype(np.int64) + (np.int64(1) << 32 - short.astype(np.int64)) - 1
            reach = np.maximum.accumulate(np.append(furthest, ends))
            kept = first > reach[:-1]
            furthest = int(reach[-1])
            yield first[kept], short[kept]

    def columns4(self) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
        """Return the addresses and lengths of the IPv4 prefixes."""
        value, length = self._columns[4]
        return value, length

    def columns6(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint8]]:
        """Return the upper and lower halves of the addresses, and the lengths, of the IPv6 prefixes."""
        hi, lo, length = self._columns[6]
        return hi, lo, length

    def overlapping(self, other: Prefix) -> Prefix | None:
        """Return a prefix inside or around `other`, None if there is none."""
        columns = self._columns[other.family]
        rows = self.of_family(other.family)
        first = _place(columns, other)
        if first < len(rows) and other.contains(rows[first]):
            return rows[first]
        for length in self._lengths[other.family]:
            if length <= other.length:
                around = Prefix.of_columns(other.family, other.hi, other.lo, length)
                at = _place(columns, around)
                if at < len(rows) and rows[at] == around:
                    return around
        return None

    def without(self, excluded: Sequence[Prefix]) -> PrefixRows:
        """Return the prefixes that are not inside any of `excluded`."""
        kept = {}
        for family, columns in self._columns.items():
            keep = np.ones(len(columns[-1]), np.bool_)
            for item in excluded:
                if item.family == family:  # in order of address, what it contains is in one piece
                    end = Prefix(family, item.value | ((1 << item.bits - item.length) - 1), item.bits)
                    keep[_place(columns, item) : _place(columns, end, after=True)] = False
            kept[family] = columns if keep.all() else tuple(column[keep] for column in columns)
        return PrefixRows(kept[4], kept[6])

    def covered(self, family: int) -> int:
        """Return the number of addresses that the prefixes of a family cover.

        Exact for IPv4 and for IPv6 up to /64; overlaps of longer prefixes are counted twice, which is
        negligible.
        """
        if family not in self._covered:
            self._covered[family] = self._addresses(family)
        return self._covered[family]

    def _addresses(self, family: int) -> int:
        if family == 4:
            counts = np.zeros(33, np.int64)
            for _, lengths in self.outer_pieces4():
                counts += np.bincount(lengths, minlength=33)
            return sum(int(count) << 32 - length for length, count in enumerate(counts))
        starts, _, lengths = self._columns[6]
        narrow = lengths > 64
        starts, wide = starts[~narrow], lengths[~narrow]
        ends = starts | _low_bits(64 - wide.astype(np.int64))
        kept = np.concatenate([wide[~_is_inside(starts, ends)], lengths[narrow]])
        return sum(int(count) << 128 - length for length, count in enumerate(_histogram(kept)) if count)

    @cached_property
    def _lengths(self) -> dict[int, list[int]]:
        return {
            family: np.flatnonzero(_histogram(columns[-1])).tolist()
            for family, columns in self._columns.items()
        }


def _histogram(lengths: NDArray[np.uint8]) -> list[int]:
    """Count prefixes by length, piece by piece, as numpy makes each of them 8 bytes wide."""
    found = np.zeros(129, np.int64)
    for start in range(0, len(lengths), _CHECKED):
        found += np.bincount(lengths[start : start + _CHECKED], minlength=129)
    counts: list[int] = found.tolist()
    return counts


def _empty(family: int) -> _Columns:
    return (*(np.zeros(0, kind) for kind in _WORDS[family]), np.zeros(0, np.uint8))


def _lengths(prefixes: list[Prefix]) -> NDArray[np.uint8]:
    return np.array([item.length for item in prefixes], np.uint8)


def _prefixes(family: int, columns: _Columns) -> Iterator[Prefix]:
    values = columns[0].tolist()
    if family == 6:
        values = [above << 64 | below for above, below in zip(values, columns[1].tolist(), strict=True)]
    return map(Prefix, [family] * len(values), values, columns[-1].tolist())


def _place(columns: _Columns, prefix: Prefix, *, after: bool = False) -> int:
    """Return the index at which a prefix is or would be inserted; `after` it, if it is there."""
    words = (prefix.value,) if prefix.family == 4 else (prefix.hi, prefix.lo)
    first, last = 0, len(columns[-1])
    for column, wanted in zip(columns, (*words, prefix.length), strict=True):
        part, number = column[first:last], column.dtype.type(wanted)
        left, right = (int(np.searchsorted(part, number, side)) for side in ("left", "right"))
        first, last = first + left, first + right
    return last if after else first


def _is_valid(family: int, columns: _Columns) -> bool:
    """Whether the columns are prefixes in strictly ascending order."""
    for start in range(0, len(columns[-1]), _CHECKED):
        part = tuple(column[start : start + _CHECKED + 1] for column in columns)
        if not _have_no_host_bits(family, part) or not _is_ascending(part):
            return False
    return True


def _have_no_host_bits(family: int, columns: _Columns) -> bool:
    lengths = columns[-1]
    if family == 4:
        return not ((lengths > 32).any() or (columns[0] & _low_bits32(np.minimum(lengths, 32))).any())
    free = 128 - np.minimum(lengths, 128).astype(np.int64)
    above, below = _low_bits(np.clip(free - 64, 0, 64)), _low_bits(np.clip(free, 0, 64))
    return not ((lengths > 128).any() or (columns[0] & above).any() or (columns[1] & below).any())


def _is_ascending(columns: _Columns) -> bool:
    later = np.zeros(max(0, len(columns[-1]) - 1), np.bool_)
    same = ~later
    for column in columns:
        later |= same & (column[1:] > column[:-1])
        same &= column[1:] == column[:-1]
    return bool(later.all())


def _sorted(family: int, columns: _Columns) -> _Columns:
    """Sort columns and drop duplicates."""
    if family == 4:
        return _sorted4([columns])
    order = np.argsort(columns[0])
    ordered = tuple(column[order] for column in columns)
    if (ordered[0][1:] == ordered[0][:-1]).any():  # prefixes that differ in what follows only
        order = np.lexsort(ordered[::-1])
        ordered = tuple(column[order] for column in ordered)
    kept = _differs(ordered)
    hi, lo, length = (column[kept] for column in ordered)
    return hi.astype(np.uint64), lo.astype(np.uint64), length.astype(np.uint8)


def _sorted4(parts: list[_Columns]) -> _Columns:
    """Sort columns of IPv4 prefixes and drop duplicates; the list is empty then."""
    keys = np.empty(sum(len(part[-1]) for part in parts), np.uint64)
    end = len(keys)
    while parts:
        value, length = parts.pop()
        part = keys[end - len(length) : end]
        part[:] = value
        part <<= np.uint64(6)
        part |= length.astype(np.uint64)
        end -= len(length)
    keys.sort()
    kept = _differs((keys,))
    if not kept.all():
        keys = keys[kept]
    del kept
    found = np.empty(len(keys), np.uint32), np.empty(len(keys), np.uint8)
    for start in range(0, len(keys), _CHECKED):
        piece = keys[start : start + _CHECKED]
        found[0][start : start + _CHECKED] = piece >> np.uint64(6)
        found[1][start : start + _CHECKED] = piece & np.uint64(63)
    return found


def _differs(columns: _Columns) -> NDArray[np.bool_]:
    """Mark the rows that differ from the one before."""
    changes = np.ones(len(columns[-1]), np.bool_)
    if len(changes) > 1:
        np.not_equal(columns[0][1:], columns[0][:-1], out=changes[1:])
    for column in columns[1:]:
        changes[1:] |= column[1:] != column[:-1]
    return changes


def _union(family: int, lists: list[_Columns]) -> _Columns | None:
    used = [columns for columns in lists if len(columns[-1])]
    return used[0] if len(used) == 1 else _joined(family, used)


def _joined(family: int, parts: Sequence[_Columns]) -> _Columns | None:
    """Join columns and sort them."""
    if not parts:
        return None
    return _sorted(family, tuple(np.concatenate(item) for item in zip(*parts, strict=True)))


def _is_inside(starts: NDArray[Any], ends: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark the prefixes inside an earlier one: sorted prefixes are nested or disjoint, the wider first."""
    inside = np.zeros(len(starts), np.bool_)
    inside[1:] = starts[1:] <= np.maximum.accumulate(ends)[:-1]
    return inside


def _low_bits32(lengths: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return the host bits of IPv4 prefixes."""
    return np.array([(1 << 32 - length) - 1 for length in range(33)], np.uint32)[lengths]


def _low_bits(count: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return numbers whose lowest `count` (0 to 64) bits are set."""
    shifted = _FULL >> (64 - np.maximum(count, 1)).astype(np.uint64)
    return np.where(count == 0, np.uint64(0), shifted)
