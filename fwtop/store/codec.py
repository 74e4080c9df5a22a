"""Lossless serialisation of snapshots and other frozen values of the model: compressed MessagePack.

The encoding follows the annotations: a field added to a class needs no change here. A reader with other
fields ignores unknown ones and uses defaults for missing ones.
"""

from __future__ import annotations

import zlib
from typing import TypeVar

from fwtop.model.wire import pack, unpack

_ZLIB_LEVEL = 1  # level 6: a sixth smaller, three times as slow
_MAX_BYTES = 64 << 20  # of a decoded value: bounds memory if a file is damaged
_T = TypeVar("_T")


def encode_value(value: object) -> bytes:
    """Encode any frozen value of the model; a busy snapshot takes about 6 KB."""
    return zlib.compress(pack(value), _ZLIB_LEVEL)


def decode_value(cls: type[_T], data: bytes) -> _T:
    """Decode a `cls` that `encode_value` encoded; raises ValueError on anything else."""
    unpacker = zlib.decompressobj()
    try:
        packed = unpacker.decompress(data, _MAX_BYTES)
    except zlib.error:
        raise ValueError(f"a stored {cls.__name__} is damaged") from None
    if not unpacker.eof:
        raise ValueError(f"a stored {cls.__name__} is cut short or too large")
    try:
        return unpack(cls, packed)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"a stored {cls.__name__} is damaged ({type(error).__name__})") from None
