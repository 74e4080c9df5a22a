"""Decode the records of a MaxMind DB file, in half the time of the library's reader in Python.

The library's reader in C is faster still, but some damaged files bring it down, and with it the console
(maxminddb 3.2.0, on files that tests/unit/test_enrich.py makes). Here a damaged
record is an error, its depth and its lists are bounded, and what several records point to is decoded
once: 4 µs a record. Format: https://maxmind.github.io/MaxMind-DB/
"""

from __future__ import annotations

import mmap
import struct
from typing import Any

_POINTER, _TEXT, _DOUBLE, _BYTES, _UINT16, _UINT32, _MAP = 1, 2, 3, 4, 5, 6, 7
_INT32, _UINT64, _UINT128, _ARRAY, _BOOLEAN, _FLOAT = 8, 9, 10, 11, 14, 15
_UNSIGNED = frozenset((_UINT16, _UINT32, _UINT64, _UINT128))
_POINTER_BASE = (0, 2048, 526_336, 0)
_SIZE_BASE = {29: 29, 30: 285, 31: 65_821}
_MAX_DEPTH = 16
_MAX_ENTRIES = 4096  # of one map or array: real ones have under 100
_MAX_SHARED = 1 << 16

Value = dict[Any, Any] | list[Any] | str | int | float | bytes | bool


class DamagedRecordError(Exception):
    """The bytes are not a record."""


class RecordDecoder:
    """Reads records of one mapped file whose data section begins at `start`."""

    def __init__(self, buffer: mmap.mmap, start: int) -> None:
        self._buffer, self._start = buffer, start
        self._shared: dict[int, Value] = {}

    def decode(self, place: int) -> Value:
        """Return the value at a place in the file; DamagedRecordError when there is none."""
        try:
            return self._value(place, 0)[0]
        except (IndexError, ValueError, TypeError, struct.error) as error:
            raise DamagedRecordError from error

    def _value(self, place: int, depth: int) -> tuple[Value, int]:
        control = self._buffer[place]
        kind, size = control >> 5, control & 31
        place += 1
        if kind == _POINTER:
            return self._pointed_to(place, size, depth)
        if kind == 0:
            kind = 7 + self._buffer[place]
            place += 1
        if size >= 29:
            extra = size - 28
            size = _SIZE_BASE[size] + int.from_bytes(self._buffer[place : place + extra], "big")
            place += extra
        if kind in (_MAP, _ARRAY):
            return self._collection(kind, size, place, depth)
        if kind == _BOOLEAN:
            return size != 0, place
        end = place + size
        raw = self._buffer[place:end]
        if len(raw) != size:
            raise DamagedRecordError
        return _scalar(kind, raw), end

    def _pointed_to(self, place: int, bits: int, depth: int) -> tuple[Value, int]:
        width = bits >> 3
        end = place + width + 1
        target = int.from_bytes(self._buffer[place:end], "big") + _POINTER_BASE[width]
        if width < 3:
            target += (bits & 7) << 8 * (width + 1)
        if target in self._shared:
            return self._shared[target], end
        if depth >= _MAX_DEPTH:
            raise DamagedRecordError
        value, _ = self._value(self._start + target, depth + 1)
        if len(self._shared) < _MAX_SHARED:
            self._shared[target] = value
        return value, end

    def _collection(self, kind: int, size: int, place: int, depth: int) -> tuple[Value, int]:
        if size > _MAX_ENTRIES or depth >= _MAX_DEPTH:
            raise DamagedRecordError
        values: list[Any] = []
        for _ in range(2 * size if kind == _MAP else size):
            value, place = self._value(place, depth + 1)
            values.append(value)
        if kind == _ARRAY:
            return values, place
        return dict(zip(values[::2], values[1::2], strict=True)), place


def _scalar(kind: int, raw: bytes) -> Value:
    if kind == _TEXT:
        return raw.decode()
    if kind in _UNSIGNED:
        return int.from_bytes(raw, "big")
    if kind == _INT32:
        return int.from_bytes(raw.rjust(4, b"\0"), "big", signed=True)
    if kind == _BYTES:
        return raw
    if kind in (_DOUBLE, _FLOAT):
        return float(struct.unpack("!d" if kind == _DOUBLE else "!f", raw)[0])
    raise DamagedRecordError
