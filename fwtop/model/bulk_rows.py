"""Long lists of prefixes as rows of an array: the same bytes as model/bulk.py's, five times as fast.

A file of its own because a guardian without a long list needn't carry numpy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fwtop.model.address import Prefix

_ROW = np.dtype([("family", "u1"), ("length", "u1"), ("hi", ">u8"), ("lo", ">u8")])


def pack_many(prefixes: Sequence[Prefix]) -> bytes:
    """Write prefixes as `pack_prefixes` does."""
    rows = np.empty(len(prefixes), _ROW)
    rows["family"] = [item.family for item in prefixes]
    rows["length"] = [item.length for item in prefixes]
    rows["hi"] = [item.value >> 64 for item in prefixes]
    rows["lo"] = [item.value & 0xFFFFFFFFFFFFFFFF for item in prefixes]
    return rows.tobytes()


def unpack_many(data: bytes) -> tuple[Prefix, ...]:
    """Read what `pack_many` wrote, whole rows; raises ValueError as `unpack_prefixes` does."""
    rows = np.frombuffer(data, _ROW)
    family, length = rows["family"], rows["length"].astype(np.int64)
    hi, lo = rows["hi"].astype(np.uint64), rows["lo"].astype(np.uint64)
    four, six = family == 4, family == 6
    good = (four & (length <= 32) & (hi == 0) & (lo >> np.uint64(32) == 0)) | (six & (length <= 128))
    free = np.where(four, 32, 128) - length  # host bits, which must be zero
    good &= (lo & _low_bits(np.clip(free, 0, 64))) == 0
    good &= (hi & _low_bits(np.clip(free - 64, 0, 64))) == 0
    if not good.all():
        raise ValueError("not a list of prefixes")
    low = lo.tolist()
    values = (
        low if four.all() else [above << 64 | below for above, below in zip(hi.tolist(), low, strict=True)]
    )
    return tuple(map(Prefix, family.tolist(), values, length.tolist()))


def _low_bits(count: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return numbers whose lowest `count` (0 to 64) bits are set."""
    full = np.uint64(0xFFFFFFFFFFFFFFFF)
    shifted = full >> (64 - np.maximum(count, 1)).astype(np.uint64)
    return np.where(count == 0, np.uint64(0), shifted)
