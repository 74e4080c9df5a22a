"""Entries of a named list that say more than who sends: where to, or to which ports.

They are kept as sorted keys of bytes, big endian: family, address and length of the sender, then what is
more, so that bytes sort as entries do. Wherever only senders matter (who could be hit, how many), the rows
are a sequence of the entries' prefixes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from mmap import mmap
from typing import Any, ClassVar, Generic, Self, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_rows import PrefixRows

_Entry = TypeVar("_Entry")
MAX_ELEMENTS = 262_144  # of a list: single ports, or pairs, as kernels look them up
SENDER = [("family", "u1"), ("address", "V16"), ("length", "u1")]  # how each row begins


class KeyedRows(Sequence[Prefix], Generic[_Entry]):
    """An immutable sequence of unique entries; as a sequence it has their prefixes."""

    magic: ClassVar[bytes]  # how `tobytes` begins
    words: ClassVar[str]  # what these are
    example: ClassVar[str]
    row: ClassVar[np.dtype[Any]]
    set_type: ClassVar[str]  # of an ipset that holds them

    def __init__(self, keys: NDArray[Any] | None = None) -> None:
        """Take over sorted keys without duplicates."""
        self.keys = keys if keys is not None else np.zeros(0, self._key())
        self.keys.flags.writeable = False

    @classmethod
    def _key(cls) -> np.dtype[Any]:
        return np.dtype(f"S{cls.row.itemsize}")

    @classmethod
    def of_packed(cls, packed: bytes) -> Self:
        """Take rows of bytes in any order."""
        return cls(np.unique(np.frombuffer(packed, cls._key())))

    @classmethod
    def of(cls, entries: Iterable[_Entry]) -> Self:
        """Convert entries, in any order."""
        return cls.of_packed(b"".join(map(cls._packed, entries)))

    @staticmethod
    @abstractmethod
    def _packed(entry: _Entry) -> bytes:
        """Return an entry as the bytes of a row."""

    @abstractmethod
    def entries(self, part: slice = slice(None)) -> Iterator[_Entry]:
        """Yield entries in order."""

    @abstractmethod
    def _bad(self) -> NDArray[np.bool_]:
        """Mark rows with something wrong behind the sender."""

    @property
    def elements(self) -> int:
        """How many elements kernels hold for them, those of entries that overlap counted twice."""
        return len(self)

    @property
    def single(self) -> Self:
        """The same as kernels look them up."""
        return self

    @abstractmethod
    def outermost(self) -> Self:
        """Return what kernels look up without what lies within another one, which nft refuses."""

    @abstractmethod
    def holding(self, wanted: _Entry) -> _Entry | None:
        """Return the narrowest entry that holds all of one, None if there is none."""

    @classmethod
    def of_bytes(cls, data: bytes | mmap) -> Self:
        """Read what `tobytes` wrote; raises ValueError if anything is wrong with it."""
        wrong = ValueError(f"not a list of {cls.words}")
        if data[: len(cls.magic)] != cls.magic or (len(data) - len(cls.magic)) % cls.row.itemsize:
            raise wrong
        found = cls(np.frombuffer(data, cls._key(), -1, len(cls.magic)).copy())
        if found._bad().any() or (found.keys[1:] <= found.keys[:-1]).any():
            raise wrong
        try:
            found.prefixes  # noqa: B018 # which also finds host bits
        except ValueError:
            raise wrong from None
        return found

    def packed(self) -> bytes:
        """Return the prefixes as 18 bytes each: family, length, address."""
        rows = self.rows
        columns = [rows["family"].reshape(-1, 1), rows["length"].reshape(-1, 1), self.bytes_of("address")]
        return np.hstack(columns).tobytes()

    def tobytes(self) -> bytes:
        """Encode as rows of bytes."""
        return self.magic + self.keys.tobytes()

    @property
    def rows(self) -> NDArray[Any]:
        """The entries' fields, in columns named as in `row`."""
        return np.frombuffer(self.keys.tobytes(), self.row)

    def bytes_of(self, field: str) -> NDArray[np.uint8]:
        """Return the 16 bytes of an address of each entry, IPv4 in the last four."""
        return np.frombuffer(self.rows[field].tobytes(), np.uint8).reshape(-1, 16)

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
            return tuple(dict.fromkeys(_senders(self.keys[place], self.row)))
        return next(_senders(self.keys[place : place + 1 or None], self.row))

    def __iter__(self) -> Iterator[Prefix]:
        """Yield the entries' prefixes."""
        return iter(self.prefixes)

    def __eq__(self, other: object) -> bool:
        """Compare with other rows of this kind."""
        return type(other) is type(self) and np.array_equal(self.keys, other.keys)

    def __hash__(self) -> int:
        """Hash the bytes."""
        return hash(self.tobytes())

    def __deepcopy__(self, _memo: dict[int, Any]) -> Self:
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

    def of_family(self, family: int) -> Self:
        """Return the entries of one family."""
        return type(self)(self.keys[self.rows["family"] == family])

    def shortest(self, family: int) -> Prefix | None:
        """Return the shortest prefix of a family, None if there is none."""
        return self.prefixes.shortest(family)

    def overlapping(self, other: Prefix) -> Prefix | None:
        """Return a prefix inside or around `other`, None if there is none."""
        return self.prefixes.overlapping(other)


def _senders(keys: NDArray[Any], row: np.dtype[Any]) -> Iterator[Prefix]:
    fields = np.frombuffer(keys.tobytes(), row)
    for family, address, length in zip(fields["family"], fields["address"], fields["length"], strict=True):
        yield Prefix(int(family), int.from_bytes(bytes(address), "big"), int(length))
