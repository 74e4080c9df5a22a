"""Look whole columns of addresses up in a MaxMind DB file, as array operations on its search tree.

The tree is one flat table, so that a batch walks it level by level with one gather a level: 20,000
addresses cost a few milliseconds, where a call each would cost 60. The file is mapped, not read: its
pages are shared by all processes. Format: https://maxmind.github.io/MaxMind-DB/
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import maxminddb
import numpy as np
from numpy.typing import NDArray

from fwtop.enrich.record import DamagedRecordError, RecordDecoder
from fwtop.model.address import Prefix
from fwtop.model.packets import I64, U8, U64

_FIRST_BITS = 16  # levels of the IPv4 tree that are walked once, at opening
_V4_DEPTH = 96  # where IPv4 hangs in a tree for both families


class CorruptDatabaseError(Exception):
    """The file is not a MaxMind DB, or contradicts itself."""


@dataclass(frozen=True, slots=True)
class Leaves:
    """Every network of a tree that has a record: columns of one length, in the order of addresses."""

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
    """One open database. Raises CorruptDatabaseError, and OSError when it can't be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # The reader in Python: the one in C is brought down by some damaged files.
            with maxminddb.open_database(path, maxminddb.MODE_MMAP) as reader:
                self.metadata = reader.metadata()
        except (maxminddb.InvalidDatabaseError, ValueError, TypeError, KeyError) as error:
            raise CorruptDatabaseError("it is not a MaxMind DB file") from error
        self._map_tree()
        self._v4_root = self._find_v4_root()
        self._v4_table = self._walk_first_bits()

    def _map_tree(self) -> None:
        """View both records of every node as numbers, wherever the record size puts them."""
        meta = self.metadata
        node_bytes = meta.record_size // 4
        if meta.record_size not in (24, 28, 32) or meta.ip_version not in (4, 6) or meta.node_count < 1:
            raise CorruptDatabaseError("its metadata make no sense")
        with self.path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        data_start = meta.node_count * node_bytes + 16
        if len(mapped) < data_start:
            raise CorruptDatabaseError("it ends within its search tree")
        self._nodes = meta.node_count
        self._decoder = RecordDecoder(mapped, data_start)
        self._shift = data_start - meta.node_count - 16  # from a record's number to its place in the file
        shape, strides = (meta.node_count, 2), (node_bytes, max(3, node_bytes - 4))
        # A 24-bit record is the upper part of the four bytes that begin with it; the 16 zero bytes after
        # the tree make the last one readable. 28-bit records share their middle byte.
        self._raw: NDArray[np.uint32] = np.ndarray(shape, ">u4", mapped, 0, strides)

    def _children(self, node: I64, bit: I64) -> I64:
        """Return the records that follow `node` on `bit`: a node, or >= node_count."""
        raw = self._raw[node, bit].astype(np.int64)
        if self.metadata.record_size == 32:
            return raw
        if self.metadata.record_size == 24:
            return raw >> 8
        # 28 bits: left is bytes 0-2 with the upper half of byte 3 on top, right bytes 4-6 with its lower
        # half; `raw` holds bytes 0-3 or 3-6.
        left = raw >> 8 | (raw & 0xF0) << 20
        return np.where(bit == 0, left, raw & 0x0FFFFFFF)

    def _find_v4_root(self) -> int:
        node = 0
        for _ in range(_V4_DEPTH if self.metadata.ip_version == 6 else 0):
            if node >= self._nodes:
                break
            node = int(self._children(np.array([node]), np.array([0]))[0])
        return node

    def _walk_first_bits(self) -> I64:
        prefixes = np.arange(1 << _FIRST_BITS, dtype=np.uint64) << np.uint64(32 - _FIRST_BITS)
        start = np.full(len(prefixes), self._v4_root, np.int64)
        return self._walk(start, prefixes, range(31, 31 - _FIRST_BITS, -1))

    def _walk(self, start: I64, addresses: U64, bits: range) -> I64:
        """Follow each address from its start node; rows that meet a record stay there."""
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
        """Return for each address the number of its record, 0 where there is none.

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
        return found

    def content(self, record: int) -> dict[str, Any]:
        """Return what a record holds, {} for number 0 and for a damaged one."""
        if record == 0:
            return {}
        try:
            value = self._decoder.decode(record + self._shift)
        except DamagedRecordError:
            return {}
        return value if isinstance(value, dict) else {}

    def leaves(self) -> Iterator[Leaves]:
        """Yield the networks of the tree, one family after the other."""
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
