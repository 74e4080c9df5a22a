"""DNS question names in UDP payloads, found as whole arrays (RFC 1035, section 4.1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fwtop.aggregate.payload_bytes import window
from fwtop.model.packets import I64, U8, Fragment, PacketBatch

NAME_BYTES = 96  # of the wire form that are kept
_HEADER = 12
_PORTS = (53, 5353, 5355)
_MOST_LABELS = 40


@dataclass(frozen=True, slots=True)
class DnsNames:
    """Rows that are DNS messages, their question's name in wire form (n, NAME_BYTES) and its size."""

    rows: NDArray[np.intp]
    data: U8
    size: I64  # at most NAME_BYTES


def find_names(batch: PacketBatch, rows: NDArray[np.intp]) -> DnsNames:
    """Find DNS messages with one question among rows that have payload.

    On the ports of DNS the header must make sense; on others the name and the question's class must, too.
    """
    rows = rows[(batch.protocol[rows] == 17) & (batch.fragment[rows] != Fragment.LATER)]
    offset = batch.payload_offset[rows].astype(np.int64)
    there = np.minimum(batch.captured[rows].astype(np.int64) - offset, batch.payload_length[rows])
    long = there >= _HEADER + 5
    rows, offset, there = rows[long], offset[long], there[long]
    data = batch.data
    flags, count = data[rows, offset + 3], data[rows, offset + 5]
    plausible = (data[rows, offset + 2] & 0x70 == 0) & (flags & 0x40 == 0)
    plausible &= (data[rows, offset + 4] == 0) & (count == 1)
    rows = rows[plausible]
    bytes_, there = window(batch, rows, _HEADER + NAME_BYTES)
    size, complete = _walk(bytes_[:, _HEADER:], there - _HEADER)
    known = np.isin(batch.sport[rows], _PORTS) | np.isin(batch.dport[rows], _PORTS)
    good = (size > 0) & known
    other = np.flatnonzero((size > 0) & complete & ~known)
    good[other] = _is_internet(batch, rows[other], _HEADER + size[other] + 2)
    names, size = bytes_[good, _HEADER:], size[good]
    names *= np.arange(NAME_BYTES) < size[:, None]
    return DnsNames(rows[good], names, size)


def _walk(data: U8, there: I64) -> tuple[I64, NDArray[np.bool_]]:
    """Step from label to label; returns the name's size (0: no name) and whether its end is there."""
    size = np.zeros(len(data), np.int64)
    complete = np.zeros(len(data), np.bool_)
    walking = np.arange(len(data))
    at = np.zeros(len(data), np.int64)
    for _ in range(_MOST_LABELS):
        if not len(walking):
            break
        label = data[walking, at[walking]].astype(np.int64)
        done = walking[label == 0]
        size[done] = at[done] + 1
        complete[done] = True
        going = (label > 0) & (label < 64)
        walking, label = walking[going], label[going]
        at[walking] += 1 + label
        cut = at[walking] >= there[walking]  # the bytes end within the name: keep what there is
        size[walking[cut]] = there[walking[cut]]
        walking = walking[~cut]
    return size, complete


def _is_internet(batch: PacketBatch, rows: NDArray[np.intp], at: I64) -> NDArray[np.bool_]:
    """Tell whether the question's class, `at` bytes into the payload, is IN or ANY."""
    place = batch.payload_offset[rows] + at
    inside = place + 2 <= batch.captured[rows]
    place = np.where(inside, place, 0)
    low = batch.data[rows, place + 1]
    return np.asarray(inside & (batch.data[rows, place] == 0) & ((low == 1) | (low == 255)))


def labels_of(wire: bytes) -> list[bytes]:
    """Split a name in wire form into its labels; a cut one gives those that are there."""
    labels, at = [], 0
    while at < len(wire) and 0 < wire[at] < 64:
        labels.append(wire[at + 1 : at + 1 + wire[at]])
        at += 1 + wire[at]
    return labels
