"""A long list of prefixes as rows of one array: 18 bytes a prefix instead of 100, and no loop over a million.

A file of its own because a guardian without a long list needn't carry numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from fwtop.model.address import Prefix

_ROW = np.dtype([("family", "u1"), ("length", "u1"), ("hi", ">u8"), ("lo", ">u8")])
_CHUNK = 50_000
_FULL = np.uint64(0xFFFFFFFFFFFFFFFF)
_Rows = NDArray[Any]


class PrefixRows(Sequence[Prefix]):
    """Prefixes in their order (family, value, length), each once; never changed."""

    def __init__(self, rows: _Rows) -> None:
        """Take rows that are good; sorts them where they are not sorted."""
        rows = rows.astype(_ROW, copy=False)  # numpy joins arrays in the machine's own byte order
        self._rows = rows if _is_sorted(rows) else _sorted(rows)
        self._rows.flags.writeable = False

    @staticmethod
    def of_bytes(data: bytes) -> PrefixRows:
        """Read rows of 18 bytes; raises ValueError on host bits and whatever else is no prefix."""
        rows = np.frombuffer(data, _ROW)
        if not _is_good(rows):
            raise ValueError("not a list of prefixes")
        return PrefixRows(rows)

    @staticmethod
    def of(prefixes: Sequence[Prefix]) -> PrefixRows:
        """Take over any sequence of prefixes."""
        if isinstance(prefixes, PrefixRows):
            return prefixes
        rows = np.empty(len(prefixes), _ROW)
        rows["family"] = [item.family for item in prefixes]
        rows["length"] = [item.length for item in prefixes]
        rows["hi"] = [item.value >> 64 for item in prefixes]
        rows["lo"] = [item.value & 0xFFFFFFFFFFFFFFFF for item in prefixes]
        return PrefixRows(rows)

    @staticmethod
    def of_ipv4(values: NDArray[np.int64], lengths: NDArray[np.int64]) -> PrefixRows:
        """Take over IPv4 prefixes whose host bits are zero, in any order."""
        keys = values << 6 | lengths
        keys.sort()
        if len(keys):
            keys = keys[np.append(True, keys[1:] != keys[:-1])]
        rows = np.zeros(len(keys), _ROW)
        rows["family"], rows["length"], rows["lo"] = 4, keys & 63, keys >> 6
        return PrefixRows(rows)

    @staticmethod
    def joined(lists: Iterable[Sequence[Prefix]]) -> PrefixRows:
        """Return all prefixes of several lists, each once."""
        return PrefixRows(np.concatenate([PrefixRows.of(item)._rows for item in lists]))

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> Prefix: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Prefix, ...]: ...
    def __getitem__(self, place: int | slice) -> Prefix | tuple[Prefix, ...]:
        """Return one prefix, or some as a tuple."""
        if isinstance(place, slice):
            return tuple(_prefixes(self._rows[place]))
        for found in _prefixes(self._rows[place : place + 1 or None]):
            return found
        raise IndexError(place)

    def __iter__(self) -> Iterator[Prefix]:
        """Make the prefixes one after the other."""
        for start in range(0, len(self._rows), _CHUNK):
            yield from _prefixes(self._rows[start : start + _CHUNK])

    def __eq__(self, other: object) -> bool:
        """Compare with any other sequence of prefixes."""
        if isinstance(other, PrefixRows):
            return bool(np.array_equal(self._rows, other._rows))
        return isinstance(other, tuple) and len(self) == len(other) and all(map(Prefix.__eq__, self, other))

    def __hash__(self) -> int:
        """Hash the bytes."""
        return hash(self.tobytes())

    def __deepcopy__(self, _memo: dict[int, Any]) -> PrefixRows:
        """Return itself: it never changes."""
        return self

    def tobytes(self) -> bytes:
        """Write as 18 bytes a prefix, as `of_bytes` reads."""
        return self._rows.tobytes()

    @cached_property
    def families(self) -> frozenset[int]:
        """The address families in the list."""
        return frozenset(np.unique(self._rows["family"]).tolist())

    def of_family(self, family: int) -> PrefixRows:
        """Return the prefixes of one family."""
        if self.families <= {family}:
            return self
        return PrefixRows(self._rows[self._rows["family"] == family])

    def shortest(self, family: int) -> Prefix | None:
        """Return the broadest prefix of a family."""
        rows = self.of_family(family)._rows
        if not len(rows):
            return None
        at = int(rows["length"].argmin())
        return next(_prefixes(rows[at : at + 1]))

    def counted(self) -> NDArray[np.int32]:
        """Return the places of the rows with a counter of their own, in the order of their numbers.

        IPv4 within no other prefix: up to /24, then longer ones; then IPv6.
        """
        rows = self.of_family(4)._rows
        starts, length = rows["lo"].astype(np.uint64), rows["length"].astype(np.int64)
        outer = np.flatnonzero(~_is_inside(starts, starts | _low_bits(32 - length)))
        wide = length <= 24
        more = np.arange(len(rows), len(self._rows), dtype=np.int32)
        return np.concatenate([outer[wide[outer]], outer[~wide[outer]], more]).astype(np.int32)

    def columns(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return addresses as rows of 16 bytes (IPv4 in the last four) and the lengths."""
        table = np.ascontiguousarray(self._rows).view(np.uint8).reshape(-1, _ROW.itemsize)
        return table[:, 2:], table[:, 1]

    def overlapping(self, other: Prefix) -> Prefix | None:
        """Return one that shares addresses with `other`: within it, or around it."""
        rows = self.of_family(other.family)
        first = rows._place(other)
        if first < len(rows) and other.contains(rows[first]):
            return rows[first]
        for length in rows._lengths:
            if length <= other.length:
                around = Prefix.of_columns(other.family, other.hi, other.lo, length)
                at = rows._place(around)
                if at < len(rows) and rows[at] == around:
                    return around
        return None

    def without(self, excluded: Sequence[Prefix]) -> PrefixRows:
        """Return the list without the prefixes that lie within any of `excluded`."""
        rows = self._rows
        keep = np.ones(len(rows), np.bool_)
        for item in excluded:
            bits = _low_bits(
                np.array([min(64, item.bits - item.length), max(0, item.bits - item.length - 64)])
            )
            keep &= (
                (rows["family"] != item.family)
                | (rows["length"] < item.length)
                | ((rows["lo"] & ~bits[0]) != item.lo)
                | ((rows["hi"] & ~bits[1]) != item.hi)
            )
        return PrefixRows(rows[keep])

    def covered(self, family: int) -> int:
        """Return how many addresses the prefixes of a family cover together.

        IPv4 and IPv6 up to /64 exactly; longer ones are added one by one, which is too much by nothing
        that counts.
        """
        rows = self.of_family(family)._rows
        bits, wide = (32, 32) if family == 4 else (128, 64)
        wider = rows[rows["length"] <= wide]
        starts = wider["lo" if family == 4 else "hi"].astype(np.uint64)
        ends = starts | _low_bits(wide - wider["length"].astype(np.int64))
        kept = rows["length"]
        kept = np.concatenate([wider["length"][~_is_inside(starts, ends)], kept[kept > wide]])
        return sum(int(count) << bits - length for length, count in enumerate(np.bincount(kept)) if count)

    @cached_property
    def _lengths(self) -> list[int]:
        found: list[int] = np.unique(self._rows["length"]).tolist()
        return found

    @cached_property
    def _keys(self) -> NDArray[Any]:
        """Numbers or byte strings in the order of the rows, all of one family."""
        rows = self._rows
        if self.families <= {4}:
            numbers: NDArray[np.int64] = rows["lo"].astype(np.int64) << 6 | rows["length"]
            return numbers
        table = np.ascontiguousarray(rows).view(np.uint8).reshape(-1, _ROW.itemsize)
        return np.ascontiguousarray(np.hstack([table[:, 2:], table[:, 1:2]])).view("S17").reshape(-1)

    def _place(self, prefix: Prefix) -> int:
        """Return where a prefix stands or would stand among those of its family."""
        if prefix.family == 4:
            return int(np.searchsorted(self._keys, prefix.value << 6 | prefix.length))
        return int(
            np.searchsorted(self._keys, np.bytes_(prefix.value.to_bytes(16, "big") + bytes([prefix.length])))
        )


def _prefixes(rows: _Rows) -> Iterator[Prefix]:
    lows = rows["lo"].tolist()
    values = [above << 64 | below for above, below in zip(rows["hi"].tolist(), lows, strict=True)]
    return map(Prefix, rows["family"].tolist(), values, rows["length"].tolist())


def _is_good(rows: _Rows) -> bool:
    family, length = rows["family"], rows["length"].astype(np.int64)
    hi, lo = rows["hi"].astype(np.uint64), rows["lo"].astype(np.uint64)
    four, six = family == 4, family == 6
    good = (four & (length <= 32) & (hi == 0) & (lo >> np.uint64(32) == 0)) | (six & (length <= 128))
    free = np.where(four, 32, 128) - length  # host bits, which must be zero
    good &= (lo & _low_bits(np.clip(free, 0, 64))) == 0
    good &= (hi & _low_bits(np.clip(free - 64, 0, 64))) == 0
    return bool(good.all())


def _is_inside(starts: NDArray[np.uint64], ends: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Tell which prefixes lie within another: they are within each other or apart, the wider one first."""
    inside = np.zeros(len(starts), np.bool_)
    inside[1:] = starts[1:] <= np.maximum.accumulate(ends)[:-1]
    return inside


def _low_bits(count: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return numbers whose lowest `count` (0 to 64) bits are set."""
    shifted = _FULL >> (64 - np.maximum(count, 1)).astype(np.uint64)
    return np.where(count == 0, np.uint64(0), shifted)


def _is_sorted(rows: _Rows) -> bool:
    """Say whether each row comes after the one before it."""
    if (rows["family"] == 4).all():
        return bool((np.diff(rows["lo"].astype(np.int64) << 6 | rows["length"]) > 0).all())
    later = np.zeros(max(0, len(rows) - 1), np.bool_)
    same = ~later
    for name in ("family", "hi", "lo", "length"):
        column = rows[name].astype(np.uint64)
        later |= same & (column[1:] > column[:-1])
        same &= column[1:] == column[:-1]
    return bool(later.all())


def _sorted(rows: _Rows) -> _Rows:
    ordered: _Rows = rows[np.lexsort((rows["length"], rows["lo"], rows["hi"], rows["family"]))]
    unique: _Rows = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    return unique
