"""Payloads of many packets as one matrix, to search for byte strings."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct

from fwtop.analysis.window.traffic import Rows, payload
from fwtop.model.rule import PayloadMatch
from fwtop.model.traffic.packets import I64, U8, Mask, PacketBatch

WIDTH = 160  # about the payload bytes of a live sample


class Texts(Struct, frozen=True, dict=True):
    """The first WIDTH payload bytes of n packets, zero-padded, and how many of each are real."""

    matrix: U8
    length: I64

    @staticmethod
    def of(packets: PacketBatch, rows: Rows | None = None) -> Texts:
        """Return the payloads of the rows; None: of all packets with one."""
        chosen = np.flatnonzero(packets.payload_length > 0) if rows is None else rows
        return Texts(*payload(packets, chosen, WIDTH))

    def __len__(self) -> int:
        return len(self.length)

    def select(self, rows: Rows | Mask) -> Texts:
        """Select rows."""
        return Texts(self.matrix[rows], self.length[rows])

    @cached_property
    def _blob(self) -> bytes:
        return self.matrix.tobytes()

    @cached_property
    def _lowered(self) -> bytes:
        return self._blob.lower()

    def hits(self, match: PayloadMatch) -> Mask:
        """Mark the packets that contain the bytes, ignoring padding. A mask requires an offset."""
        size = len(match.data)
        if size == 0 or (match.offset or 0) + size > WIDTH or len(self) == 0:
            return np.zeros(len(self), np.bool_)
        if match.offset is None:
            if match.dns_name is None:
                return self._found(match.data, self._blob)
            return self._found(match.data.lower(), self._lowered)
        care = np.frombuffer(match.compared_bits, np.uint8)
        window = self.matrix[:, match.offset : match.offset + size]
        same = (window & care == np.frombuffer(match.data, np.uint8) & care).all(1)
        return np.asarray(same & (self.length >= match.offset + size))

    def _found(self, data: bytes, blob: bytes) -> Mask:
        hit = np.zeros(len(self), np.bool_)
        row, _ = self._first(data, blob, 0)
        while row >= 0:
            hit[row] = True
            row, _ = self._first(data, blob, (row + 1) * WIDTH)
        return hit

    def _first(self, data: bytes, blob: bytes, start: int) -> tuple[int, int]:
        """Return row and column of the first match from `start`, ignoring padding; row -1: none."""
        at = blob.find(data, start)
        while at >= 0:
            row, column = divmod(at, WIDTH)
            if column + len(data) <= self._ends[row]:
                return row, column
            at = blob.find(data, (row + 1) * WIDTH)  # in the padding, or beyond the end of a row
        return -1, 0

    @cached_property
    def _ends(self) -> list[int]:
        return list(self.length.tolist())

    def has(self, match: PayloadMatch) -> bool:
        """Check whether any packet contains the bytes; faster than counting."""
        if match.offset is not None:
            return bool(self.hits(match).any())
        named = match.dns_name is not None
        data = match.data.lower() if named else match.data
        if (data, named) not in self._searched:
            self._searched[data, named] = self._first(data, self._lowered if named else self._blob, 0)[0] >= 0
        return self._searched[data, named]

    @cached_property
    def _searched(self) -> dict[tuple[bytes, bool], bool]:
        """What was searched for, as it is or in names: candidates share pieces."""
        return {}

    def share(self, match: PayloadMatch) -> float:
        """Return the share (0 to 1) of the packets that contain the bytes."""
        return float(self.hits(match).mean()) if len(self) else 0.0
