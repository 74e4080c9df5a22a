"""Pairs of networks: what a prefix sends to another one, as entries of a named list."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.keyed_rows import SENDER, KeyedRows
from fwtop.model.addresses.prefix_rows import PrefixRows
from fwtop.model.text import safe_text

_PACKED = struct.Struct(">B16sB16sB")


class PairEntry(Struct, frozen=True, order=True):
    """What a prefix sends to another one of its family; it is a row of PairRows."""

    prefix: Prefix
    to: Prefix

    @staticmethod
    def parse(text: str) -> PairEntry | None:
        """Parse `192.0.2.0/24,198.51.100.7`, as ipset(8) writes it; None if it is nothing of the kind.

        Raises ValueError with a message for the user.
        """
        source, comma, to = text.strip().partition(",")
        if not comma:
            return None
        pair = PairEntry(Prefix.parse(source), Prefix.parse(to))
        if pair.prefix.family != pair.to.family:
            shown = safe_text(text.strip(), limit=100)
            raise ValueError(f"{shown!r} has addresses of both families: source and destination are of one")
        return pair

    @property
    def singles(self) -> Iterator[PairEntry]:
        """It as kernels look it up: hash:net,net holds no /0, but both halves."""
        if self.to.length:
            return iter((self,))
        half = 1 << self.to.bits - 1
        return (PairEntry(self.prefix, Prefix(self.to.family, value, 1)) for value in (0, half))

    def __str__(self) -> str:
        """Return it as `parse` reads it."""
        return f"{self.prefix},{self.to}"


class PairRows(KeyedRows[PairEntry]):
    """Entries of pairs of networks."""

    magic = b"\0FWD"
    words, example = "pairs of networks", "192.0.2.0/24,198.51.100.7"
    row = np.dtype([*SENDER, ("to", "V16"), ("to_length", "u1")])
    set_type = "hash:net,net"

    @staticmethod
    def _packed(entry: PairEntry) -> bytes:
        on, to = entry.prefix, entry.to
        source, destination = (item.value.to_bytes(16, "big") for item in (on, to))
        return _PACKED.pack(on.family, source, on.length, destination, to.length)

    def entries(self, part: slice = slice(None)) -> Iterator[PairEntry]:  # noqa: D102 # as KeyedRows says
        for family, address, length, to, to_length in _PACKED.iter_unpack(self.keys[part].tobytes()):
            source, destination = (
                Prefix(family, int.from_bytes(value, "big"), bits)
                for value, bits in ((address, length), (to, to_length))
            )
            yield PairEntry(source, destination)

    def _bad(self) -> NDArray[np.bool_]:
        rows = self.rows
        columns = [rows["family"].reshape(-1, 1), rows["to_length"].reshape(-1, 1), self.bytes_of("to")]
        try:
            PrefixRows.of_packed(np.hstack(columns).tobytes())
        except ValueError:
            return np.ones(1, np.bool_)
        return np.zeros(1, np.bool_)

    @property
    def elements(self) -> int:  # noqa: D102
        return len(self) + int(np.count_nonzero(self.rows["to_length"] == 0))

    @cached_property
    def single(self) -> PairRows:  # noqa: D102
        if self.elements == len(self):
            return self
        return PairRows.of(one for entry in self.entries() for one in entry.singles)

    def sent_to(self, here: Iterable[Prefix]) -> PrefixRows:
        """Return the prefixes of which something that is sent to one of these addresses is listed."""
        rows, to = self.rows, self.bytes_of("to")
        hit = np.zeros(len(rows), np.bool_)
        for one in here:
            least = np.minimum(rows["to_length"], one.length)
            mask = _MASKS[least + 128 - one.bits]
            mine = np.frombuffer(one.value.to_bytes(16, "big"), np.uint8)
            hit |= (rows["family"] == one.family) & ((to & mask) == (mine & mask)).all(axis=1)
        return PairRows(self.keys[hit]).prefixes

    def outermost(self) -> PairRows:
        """Return the pairs that lie within no other one, as kernels look them up."""
        listed = self.single
        rows, inside = listed.rows, np.zeros(len(listed), np.bool_)
        for family, length, to_length in listed.lengths:
            narrower = (rows["length"] > length) & (rows["to_length"] >= to_length)
            narrower |= (rows["length"] >= length) & (rows["to_length"] > to_length)
            at = np.flatnonzero((rows["family"] == family) & narrower)
            inside[at] |= listed.has(_around(rows[at], family, length, to_length))
        return PairRows(listed.keys[~inside])

    @property
    def lengths(self) -> list[tuple[int, int, int]]:
        """The combinations of family and both lengths in use."""
        fields = (self.rows[name] for name in ("family", "length", "to_length"))
        found = np.unique(np.stack(list(fields), axis=1), axis=0)
        return [(int(family), int(length), int(to_length)) for family, length, to_length in found]

    def has(self, keys: NDArray[Any]) -> NDArray[np.bool_]:
        """Mark those of some keys that are listed."""
        at = np.searchsorted(self.keys, keys)
        return np.asarray(self.keys[np.minimum(at, len(self) - 1)] == keys)

    def crossing(self) -> tuple[PairEntry, PairEntry] | None:
        """Return two pairs that overlap without one holding the other; None if there are none."""
        sources: dict[Prefix, list[Prefix]] = {}  # of each destination, sorted
        for one in sorted(self.entries()):
            sources.setdefault(one.to, []).append(one.prefix)
        lengths = {to.length for to in sources}
        for one in self.entries():
            for length in (length for length in lengths if length < one.to.length):
                around = _cut(one.to, length)
                inside = sources.get(around, ())
                at = bisect_right(inside, one.prefix)
                if at < len(inside) and one.prefix.contains(inside[at]):
                    return one, PairEntry(inside[at], around)
        return None

    def holding(self, wanted: PairEntry) -> PairEntry | None:  # noqa: D102
        row = PairRows.of((wanted,)).rows
        around = [
            _around(row, family, length, to_length)
            for family, length, to_length in self.lengths
            if family == wanted.to.family and length <= wanted.prefix.length and to_length <= wanted.to.length
        ]
        keys = np.concatenate(around) if around else self.keys[:0]
        found = PairRows(keys[self.has(keys)]).entries() if len(self) else ()
        return max(found, key=lambda one: (one.prefix.length, one.to.length), default=None)


# By how many of 128 bits count; addresses of IPv4 are in the last 32.
_MASKS = np.array([[*((1 << 128) - (1 << 128 - bits)).to_bytes(16, "big")] for bits in range(129)], np.uint8)


def _around(rows: NDArray[Any], family: int, length: int, to_length: int) -> NDArray[Any]:
    """Return the keys of the pairs of these lengths that hold each of some rows of a family."""
    made = rows.copy()
    for field, own, bits in (("address", "length", length), ("to", "to_length", to_length)):
        whole = np.frombuffer(made[field].tobytes(), np.uint8).reshape(-1, 16)
        cut = whole & _MASKS[bits + (96 if family == 4 else 0)]
        made[field], made[own] = np.frombuffer(cut.tobytes(), "V16"), bits
    return np.frombuffer(made.tobytes(), f"S{made.dtype.itemsize}")


def _cut(prefix: Prefix, length: int) -> Prefix:
    return Prefix.of_columns(prefix.family, prefix.hi, prefix.lo, length)
