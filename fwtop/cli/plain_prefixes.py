"""A million IPv4 prefixes, one a line and nothing else, read as one array of bytes."""

from __future__ import annotations

from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from fwtop.model.address import Prefix

_Numbers = NDArray[np.int64]


def plain_ipv4(text: str) -> tuple[Prefix, ...] | None:
    """Read ASCII lines that are all IPv4 addresses or prefixes; None where any is something else.

    The slower way then reads it or says what is wrong. Host bits are cleared, doubles are left out.
    """
    data = np.frombuffer((text if text.endswith("\n") else text + "\n").encode(), np.uint8)
    ends = np.flatnonzero((data < ord("0")) | (data > ord("9")))  # of the numbers: . / or newline
    numbers = _numbers(data, ends)
    last = np.flatnonzero(data[ends] == ord("\n"))
    if numbers is None or not _is_regular(data[ends], last):
        return None
    first = last - np.diff(last, prepend=-1) + 1
    octets = [numbers[first + place] for place in range(4)]
    length = np.where(last - first == 4, numbers[last], 32)
    if any((octet > 255).any() for octet in octets) or (length > 32).any():
        return None
    whole = octets[0] << 24 | octets[1] << 16 | octets[2] << 8 | octets[3]
    value = whole >> (32 - length) << (32 - length)
    _, kept = np.unique(value << 6 | length, return_index=True)
    kept.sort()
    return tuple(map(Prefix, repeat(4), value[kept].tolist(), length[kept].tolist()))


def _numbers(data: NDArray[np.uint8], ends: NDArray[np.intp]) -> _Numbers | None:
    """Return the number that ends before each mark; None unless all have 1 to 3 digits, no leading zero."""
    width = np.diff(ends, prepend=-1) - 1
    if not ((width >= 1) & (width <= 3)).all():
        return None
    digits = [np.where(width > place, data[ends - 1 - place].astype(np.int64) - 48, 0) for place in range(3)]
    numbers: _Numbers = digits[0] + 10 * digits[1] + 100 * digits[2]
    # A leading zero means octal to some, and inet_pton(3) refuses it.
    return None if (numbers < np.array([0, 0, 10, 100])[width]).any() else numbers


def _is_regular(marks: NDArray[np.uint8], last: NDArray[np.intp]) -> bool:
    """Say whether every line has three dots, then perhaps a slash, then its end."""
    parts = np.diff(last, prepend=-1)
    if not ((parts == 4) | (parts == 5)).all():
        return False
    first = last - parts + 1
    dots = all((marks[first + place] == ord(".")).all() for place in range(3))
    return dots and bool((marks[first[parts == 5] + 3] == ord("/")).all())
