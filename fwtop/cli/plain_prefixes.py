"""A million IPv4 prefixes, one a line and nothing else, read as arrays of bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # nothing here uses its threads, which cost a start

import numpy as np
from numpy.typing import NDArray

from fwtop.model.bulk_rows import PrefixRows

_PIECE = 1 << 18  # bytes: what is worked on stays in the processor's cache
_DOT, _SLASH, _END = ord("."), ord("/"), ord("\n")
_Bytes = NDArray[np.uint8]
_Numbers = NDArray[np.int64]


def plain_ipv4(text: bytes) -> PrefixRows | None:
    """Read lines that are all IPv4 addresses or prefixes; None where any is something else.

    The slower way then reads it or says what is wrong. Host bits are cleared, doubles are left out.
    """
    values, lengths = [], []
    for piece in _pieces(text):
        found = _prefixes(np.frombuffer(piece, np.uint8))
        if found is None:
            return None
        values.append(found[0])
        lengths.append(found[1])
    none = np.zeros(0, np.int64)
    return PrefixRows.of_ipv4(np.concatenate([none, *values]), np.concatenate([none, *lengths]))


def _pieces(text: bytes) -> Iterator[bytes]:
    """Cut at ends of lines; the last line gets one if it has none."""
    start = 0
    while start < len(text):
        end = text.find(b"\n", start + _PIECE) + 1 or len(text)
        yield text[start:end] if text[end - 1] == _END else text[start:end] + b"\n"
        start = end


def _prefixes(data: _Bytes) -> tuple[_Numbers, _Numbers] | None:
    """Return values and lengths."""
    ends = np.flatnonzero(data - np.uint8(48) > 9)  # of the numbers: . / or the line's end
    numbers = _numbers(data, ends)
    marks = data[ends]
    last = np.flatnonzero(marks == _END)
    if numbers is None or not _is_regular(marks, last):
        return None
    first = last - np.diff(last, prepend=-1) + 1
    octets = [numbers[first + place] for place in range(4)]
    length = np.where(last - first == 4, numbers[last], 32)
    if any((octet > 255).any() for octet in octets) or (length > 32).any():
        return None
    whole = octets[0] << 24 | octets[1] << 16 | octets[2] << 8 | octets[3]
    return whole >> (32 - length) << (32 - length), length


def _numbers(data: _Bytes, ends: NDArray[np.intp]) -> _Numbers | None:
    """Return the number that ends before each mark; None unless all have 1 to 3 digits, no leading zero."""
    width = np.diff(ends, prepend=-1) - 1
    if not ((width >= 1) & (width <= 3)).all():
        return None
    digits = [(data[ends - 1 - place] - np.uint8(48)) * (width > place) for place in range(3)]
    numbers: _Numbers = digits[0] + np.int64(10) * digits[1] + np.int64(100) * digits[2]
    # A leading zero means octal to some, and inet_pton(3) refuses it.
    return None if (numbers < np.array([0, 0, 10, 100])[width]).any() else numbers


def _is_regular(marks: _Bytes, last: NDArray[np.intp]) -> bool:
    """Say whether every line has three dots, then perhaps a slash, then its end."""
    parts = np.diff(last, prepend=-1)
    if not ((parts == 4) | (parts == 5)).all():
        return False
    first = last - parts + 1
    dots = all((marks[first + place] == _DOT).all() for place in range(3))
    return dots and bool((marks[first[parts == 5] + 3] == _SLASH).all())
