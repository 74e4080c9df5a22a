"""The bytes of payloads as one array, wherever in each packet they begin."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fwtop.model.packets import I64, U8, PacketBatch


def window(batch: PacketBatch, rows: NDArray[np.intp], size: int) -> tuple[U8, I64]:
    """Return the first `size` bytes of the rows' payloads (zero-padded) and how many of them are there."""
    offset = batch.payload_offset[rows].astype(np.int64)
    there = np.minimum(batch.captured[rows].astype(np.int64) - offset, batch.payload_length[rows])
    there = np.minimum(there, size)
    width = batch.data.shape[1]
    first = int(offset[0]) if len(offset) else 0
    if len(rows) and first + size <= width and bool((offset == first).all()):
        data = batch.data[:, first : first + size]
        data = data.copy() if len(rows) == len(batch) else data[rows]
    else:
        data = _gathered(batch.data, rows, offset, there, size)
    short = there < size
    if short.any():
        data[short] *= np.arange(size) < there[short, None]
    return data, there


def _gathered(data: U8, rows: NDArray[np.intp], offset: I64, there: I64, size: int) -> U8:
    flat = np.ascontiguousarray(data).reshape(-1)
    places = rows * data.shape[1] + offset
    out = np.zeros((len(rows), size), np.uint8)
    inside = places + size <= len(flat)
    if inside.any():
        windows = np.ndarray(len(flat) - size + 1, f"V{size}", flat, strides=(1,))
        out[inside] = windows[places[inside]].view(np.uint8).reshape(-1, size)
    for row in np.flatnonzero(~inside).tolist():  # the last few rows: their window ends behind the array
        taken = flat[places[row] : places[row] + there[row]]
        out[row, : len(taken)] = taken
    return out
