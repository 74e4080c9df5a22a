"""Vectorised lookup of addresses in a MaxMind DB file.

The tree is one flat table, so that a batch walks it level by level with one gather a level: 20,000
addresses cost a few milliseconds, where a call each would cost 60. The file is mapped, not read: its
pages are shared by all processes. Format: https://maxmind.github.io/MaxMind-DB/
"""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import maxminddb
import maxminddb.decoder
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fwtop.enrich.special import special_purpose
from fwtop.model.addresses.address import Prefix
from fwtop.model.text import safe_text
from fwtop.model.traffic.packets import I64, U8, U16, U32, U64, OriginColumns

_FIRST_BITS = 16  # levels of the IPv4 tree that are resolved at opening
_V4_DEPTH = 96  # depth of the IPv4 subtree in a tree of both families
STALE_DAYS = 180
_SECONDS_A_DAY = 86_400
_MOST_REMEMBERED = 16_384  # addresses; walking 128 bits in numpy takes 1 ms, for however few
_MOST_NAMES = 4_096
_RECORDS_OF_A_NAME = 8  # of a system, that are searched for its name
_KEY_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class CorruptDatabaseError(Exception):
    """The file is not a MaxMind DB, or inconsistent."""


class Leaves(Struct, frozen=True):
    """The networks of a tree that have a record, as columns ordered by address."""

    family: U8
    hi: U64
    lo: U64
    length: U8
    record: I64

    def prefix(self, row: int) -> Prefix:
        """Return one row as a prefix."""
        return Prefix.of_columns(
            int(self.family[row]), int(self.hi[row]), int(self.lo[row]), int(self.length[row])
        )


class MmdbFile:
    """An open database; raises CorruptDatabaseError and OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # The reader in Python: damaged files can crash the one in C.
            with maxminddb.open_database(path, maxminddb.MODE_MMAP) as reader:
                self.metadata = reader.metadata()
        except (maxminddb.InvalidDatabaseError, ValueError, TypeError, KeyError) as error:
            raise CorruptDatabaseError("it is not a MaxMind DB file") from error
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._map_tree(mapped)
        self._mapped = mapped
        self._v4_root = self._find_v4_root()
        self._v4_table = self._walk_first_bits()
        self.unmap_pages()

    def _map_tree(self, mapped: mmap.mmap) -> None:
        """View both records of every node as arrays of numbers, for each record size."""
        meta = self.metadata
        node_bytes = meta.record_size // 4
        if meta.record_size not in (24, 28, 32) or meta.ip_version not in (4, 6) or meta.node_count < 1:
            raise CorruptDatabaseError("its metadata make no sense")
        data_start = meta.node_count * node_bytes + 16
        if len(mapped) < data_start:
            raise CorruptDatabaseError("it ends within its search tree")
        self._nodes = meta.node_count
        self._decoder = maxminddb.decoder.Decoder(mapped, data_start)
        # Added to a record's number, it gives the offset in the file
        self._shift = data_start - meta.node_count - 16
        shape, strides = (meta.node_count, 2), (node_bytes, max(3, node_bytes - 4))
        # A 24-bit record is the upper part of the four bytes that begin with it; the 16 zero bytes after
        # the tree make the last one readable. 28-bit records share their middle byte.
        self._raw: NDArray[np.uint32] = np.ndarray(shape, ">u4", mapped, 0, strides)

    def _children(self, node: I64, bit: I64) -> I64:
        """Return the children of nodes for a bit: nodes, or records >= node_count."""
        raw = self._raw[node, bit].astype(np.int64)
        if self.metadata.record_size == 32:
            return raw
        if self.metadata.record_size == 24:
            return raw >> 8
        # 28 bits: left is bytes 0-2 with the upper half of byte 3 on top, right bytes 4-6 with its lower
        # half; `raw` holds bytes 0-3 or 3-6.
        left = raw >> 8 | (raw & 0xF0) << 20
        return np.where(bit == 0, left, raw & 0x0FFFFFFF)

    def unmap_pages(self) -> None:
        """Let go of the pages that were touched, up to 14 MB; the page cache has them for the next lookup.

        Opening touches most pages of the tree, and so do forged sources: mapping them again takes 0.5 ms.
        """
        self._mapped.madvise(mmap.MADV_DONTNEED)

    def _find_v4_root(self) -> int:
        node = 0
        for _ in range(_V4_DEPTH if self.metadata.ip_version == 6 else 0):
            if node >= self._nodes:
                break
            node = int(self._children(np.array([node]), np.array([0]))[0])
        return node

    def _walk_first_bits(self) -> I64:
        """Return where each combination of the first bits leads: every level doubles their number."""
        at = np.array([self._v4_root])
        for _ in range(_FIRST_BITS):
            at, bit = np.repeat(at, 2), np.tile([0, 1], len(at))
            inner = at < self._nodes
            at[inner] = self._children(at[inner], bit[inner])
        return at

    def _walk(self, start: I64, addresses: U64, bits: range) -> I64:
        """Walk each address from its start node until it reaches a record."""
        at = start.copy()
        rows = np.flatnonzero(at < self._nodes)
        for shift in bits:
            if not len(rows):
                break
            bit = (addresses[rows] >> np.uint64(shift) & np.uint64(1)).astype(np.int64)
            at[rows] = self._children(at[rows], bit)
            rows = rows[at[rows] < self._nodes]
        return at

    def records(self, family: U8, hi: U64, lo: U64) -> I64:
        """Return the record number of each address, 0 if it has none.

        Numbers are positions in the file: equal for addresses of the same network, and of networks that
        share a record.
        """
        found = np.zeros(len(family), np.int64)
        four, six = np.flatnonzero(family == 4), np.flatnonzero(family == 6)
        if len(four):
            low = lo[four]
            start = self._v4_table[(low >> np.uint64(32 - _FIRST_BITS)).astype(np.int64) & 0xFFFF]
            found[four] = self._walk(start, low, range(31 - _FIRST_BITS, -1, -1))
        if len(six) and self.metadata.ip_version == 6:
            middle = self._walk(np.zeros(len(six), np.int64), hi[six], range(63, -1, -1))
            found[six] = self._walk(middle, lo[six], range(63, -1, -1))
        found[found <= self._nodes] = 0
        self.unmap_pages()
        return found

    def content(self, record: int) -> dict[str, Any]:
        """Return the contents of a record, {} for number 0 or a damaged one."""
        if record == 0:
            return {}
        try:
            value, _ = self._decoder.decode(record + self._shift)
        except (maxminddb.InvalidDatabaseError, ValueError, TypeError):  # of a file that was damaged
            return {}
        return value if isinstance(value, dict) else {}

    def leaves(self) -> Iterator[Leaves]:
        """Yield the networks of the tree by family."""
        if self._v4_root < self._nodes:
            yield self._expand(4, self._v4_root, 32)
        if self.metadata.ip_version == 6:
            yield self._expand(6, 0, 128)

    def _expand(self, family: int, root: int, depth: int) -> Leaves:
        node, hi, lo = np.array([root], np.int64), np.zeros(1, np.uint64), np.zeros(1, np.uint64)
        parts: list[tuple[U64, U64, int, I64]] = []
        for length in range(1, depth + 1):
            bit = np.repeat(np.array([[0, 1]]), len(node), 0).ravel()
            node = self._children(np.repeat(node, 2), bit)
            hi, lo = np.repeat(hi, 2), np.repeat(lo, 2)
            shift = np.uint64((depth - length) % 64)
            column = hi if depth - length >= 64 else lo
            column |= bit.astype(np.uint64) << shift
            ends = node > self._nodes
            parts.append((hi[ends], lo[ends], length, node[ends]))
            # The IPv4 tree also hangs under ::/96 and, in some files, under 2002::/16 and ::ffff:0:0/96.
            inner = (node < self._nodes) & ((family == 4) | (node != self._v4_root))
            node, hi, lo = node[inner], hi[inner], lo[inner]
        lengths = np.concatenate([np.full(len(part[0]), part[2], np.uint8) for part in parts])
        columns = [np.concatenate([part[k] for part in parts]) for k in (0, 1, 3)]
        order = np.lexsort((columns[1], columns[0]))
        high, low, record = (column[order] for column in columns)
        return Leaves(np.full(len(order), family, np.uint8), high, low, lengths[order], record)


_Cache = tuple[I64, U16, U32]


def _positions(cache: _Cache, records: I64) -> NDArray[np.intp]:
    return np.minimum(np.searchsorted(cache[0], records), len(cache[0]) - 1)


def _missed(cache: _Cache, records: I64) -> I64:
    """Return the records that the cache lacks, each once."""
    missed: I64 = records[cache[0][_positions(cache, records)] != records]
    missed.sort()  # np.unique would import numpy.ma: 35 ms the first time
    first = np.append(True, missed[1:] != missed[:-1])[: len(missed)]
    return np.asarray(missed[first], np.int64)


class _Found(Struct, frozen=True):
    """Addresses that were looked up, in ascending order of their keys, and their records.

    Addresses may share a key: one of them is then looked up every time.
    """

    keys: U64
    family: U8
    hi: U64
    lo: U64
    records: I64

    @staticmethod
    def none() -> _Found:
        empty = np.zeros(0, np.uint64)
        return _Found(empty, np.zeros(0, np.uint8), empty, empty, np.zeros(0, np.int64))

    def get(self, keys: U64, family: U8, hi: U64, lo: U64) -> tuple[I64, NDArray[np.bool_]]:
        """Return the records of addresses, and which of them are known."""
        if not len(self.keys):
            return np.zeros(len(keys), np.int64), np.zeros(len(keys), np.bool_)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        known = (self.lo[at] == lo) & (self.hi[at] == hi) & (self.family[at] == family)
        return self.records[at], known

    def with_new(self, new: _Found) -> _Found:
        """Return these and other addresses; too many begin anew."""
        parts = [new] if len(self.keys) + len(new.keys) > _MOST_REMEMBERED else [self, new]
        columns = [
            np.concatenate([getattr(part, name) for part in parts]) for name in _Found.__struct_fields__
        ]
        order = np.argsort(columns[0], kind="stable")
        return _Found(*(column[order] for column in columns))


class Database:
    """One database and a cache of its records, so that each is decoded once.

    Memory is bounded by the number of distinct records in the file (bundled data: 90,000), whatever
    addresses an attacker makes up. `registered`: its countries are those that registries note, also for
    addresses that are nobody's, 192.168.0.0/16 as Australian; an operator's own data may know private ones.
    """

    def __init__(self, path: Path, *, registered: bool = False) -> None:
        self.file = MmdbFile(path)
        self._registered = registered
        # Records in order (0: no record), country and AS of each; replaced as a whole, for other threads
        self._cache: _Cache = np.zeros(1, np.int64), np.zeros(1, np.uint16), np.zeros(1, np.uint32)
        self._found = _Found.none()
        self._learning = threading.Lock()
        self._names: dict[int, str] = {}  # of the systems that were asked for

    def columns(self, family: U8, hi: U64, lo: U64) -> OriginColumns:
        """Look n addresses up."""
        return self._without_special(self.by_record(self._records(family, hi, lo)), family, hi, lo)

    def of_leaves(self, leaves: Leaves) -> OriginColumns:
        """Return the origins of the networks of its tree."""
        return self._without_special(self.by_record(leaves.record), leaves.family, leaves.hi, leaves.lo)

    def _without_special(self, found: OriginColumns, family: U8, hi: U64, lo: U64) -> OriginColumns:
        if not self._registered:
            return found
        special = special_purpose(family, hi, lo)
        return OriginColumns(np.where(special, 0, found.country), np.where(special, 0, found.asn))

    def _records(self, family: U8, hi: U64, lo: U64) -> I64:
        """Return the record numbers of addresses; those of the last lookups are remembered."""
        if len(family) > _MOST_REMEMBERED // 4:  # a flood of forged sources: none of them comes again
            return self.file.records(family, hi, lo)
        found = self._found
        keys = hi * _KEY_FACTOR ^ lo
        records, known = found.get(keys, family, hi, lo)
        missed = np.flatnonzero(~known)
        if len(missed):
            records[missed] = self.file.records(family[missed], hi[missed], lo[missed])
            new = _Found(keys[missed], family[missed], hi[missed], lo[missed], records[missed])
            self._found = found.with_new(new)
        return records

    def by_record(self, records: I64) -> OriginColumns:
        """Return the contents of records by number."""
        cache = self._cache
        if len(_missed(cache, records)):
            with self._learning:
                cache = self._cache = self._learned(_missed(self._cache, records))
        at = _positions(cache, records)
        return OriginColumns(cache[1][at], cache[2][at])

    def _learned(self, records: I64) -> _Cache:
        """Return the cache with further records."""
        country, asn = np.zeros(len(records), np.uint16), np.zeros(len(records), np.uint32)
        for place, record in enumerate(records.tolist()):
            content = self.file.content(record)
            country[place] = _country_number(content)
            asn[place] = _system(content)[0]
        self.file.unmap_pages()
        known = np.concatenate([self._cache[0], records])
        order = np.argsort(known)
        countries, numbers = np.append(self._cache[1], country), np.append(self._cache[2], asn)
        return known[order], countries[order], numbers[order]

    def name_of(self, asn: int) -> str:
        """Return the raw name of an autonomous system that a lookup has returned; "" if it has none.

        Few are shown of the many that forged sources have, so names are decoded when asked for.
        """
        if name := self._names.get(asn):
            return name
        known, _, numbers = self._cache
        records = known[np.flatnonzero(numbers == asn)[:_RECORDS_OF_A_NAME]].tolist()
        name = next(filter(None, (_system(self.file.content(record))[1] for record in records)), "")
        self.file.unmap_pages()
        if name:
            if len(self._names) >= _MOST_NAMES:
                self._names.clear()
            self._names[asn] = name
        return name

    def is_of(self, *words: str) -> bool:
        """Return whether its type names one of these."""
        kind = str(self.file.metadata.database_type).lower()
        return any(word in kind for word in words)

    @property
    def day(self) -> str:
        """The day that the data are of."""
        return time.strftime("%Y-%m-%d", time.gmtime(max(0, min(self.file.metadata.build_epoch, 1 << 35))))

    def age_days(self, now: float) -> int:
        """Return the age of the data."""
        return max(0, int((now - self.file.metadata.build_epoch) / _SECONDS_A_DAY))

    def describe(self, now: float) -> str:
        """Return the name and age of the database."""
        meta, age = self.file.metadata, self.age_days(now)
        text = f"{self.file.path}: {safe_text(meta.database_type, limit=40)} of {self.day} ({age} days old)"
        if age > STALE_DAYS:
            text += ", getting stale"
        licence = meta.description.get("en", "") if isinstance(meta.description, dict) else ""
        return f"{text}. {safe_text(licence, limit=300)}" if licence else text


def _country_number(content: dict[str, Any]) -> int:
    """Return the country of a record of GeoLite2, DB-IP, IPinfo or ip-location-db as a number."""
    for key in ("country", "registered_country", "country_code"):
        found = content.get(key)
        code = found.get("iso_code", "") if isinstance(found, dict) else found
        # In IPinfo Lite, "country" is a name
        if isinstance(code, str) and len(code) == len("NL") and code.isascii() and code.isalpha():
            return int.from_bytes(code.upper().encode(), "big")
    return 0


def _system(content: dict[str, Any]) -> tuple[int, str]:
    """Return the AS number and its raw name of a record, 0 and "" if unknown."""
    number = content.get("autonomous_system_number") or content.get("asn") or 0
    name = content.get("autonomous_system_organization") or content.get("as_name") or ""
    digits = str(number).upper().removeprefix("AS")
    value = int(digits) if digits.isascii() and digits.isdigit() else 0
    return (value if value < 1 << 32 else 0), str(name)
