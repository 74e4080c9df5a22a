"""Parse long lists of plain prefixes, one per line, with numpy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # unused here, and creating its threads costs startup time

import numpy as np
from numpy.typing import NDArray

_DOT, _SLASH, _END = b"./\n"
_HAS_DOT, _HAS_HEX, _IS_ODD = 1, 2, 4  # of a line
_GROUPS = 8  # of 16 bits in an IPv6 address
_NO_GAP = 99
_Bytes = NDArray[np.uint8]
_Numbers = NDArray[np.int64]
_Parser = Callable[[_Bytes], "_Columns | None"]
_Columns = tuple[NDArray[Any], ...]  # the words of the addresses, and the lengths


def _table(default: int, *values: tuple[str, int]) -> _Bytes:
    table = np.full(256, default, np.uint8)
    for characters, value in values:
        table[np.frombuffer(characters.encode(), np.uint8)] = value
    return table


_KIND = _table(_IS_ODD, ("0123456789/\n", 0), (".", _HAS_DOT), (":abcdefABCDEF", _HAS_HEX))
_NIBBLE = _table(0, *((f"{number:x}{number:X}", number) for number in range(16)))
_ENDS_GROUP = _table(0, (":/\n", 1)).astype(np.bool_)


class Piece(Struct, frozen=True):
    """Parsed lines: IPv4 and IPv6 prefixes, and the indexes and texts of lines of any other form."""

    four: _Columns | None
    six: _Columns | None
    others: list[tuple[int, bytes]]
    lines: int


def parse_lines(text: bytes) -> Piece:
    """Parse whole lines, each of which ends; prefixes with host bits are of another form."""
    data = np.frombuffer(text, np.uint8)
    if b":" not in text and (only := _ipv4(data)) is not None:
        return Piece(only, None, [], len(only[-1]))
    ends = np.flatnonzero(data == _END)
    sizes = np.diff(ends, prepend=-1)
    kinds = np.bitwise_or.reduceat(_KIND[data], ends - sizes + 1)
    plain, hexadecimal = kinds <= _HAS_DOT, kinds == _HAS_HEX
    four, six = (
        _parsed(data, sizes, lines, parse) for lines, parse in ((plain, _ipv4), (hexadecimal, _ipv6))
    )
    left = ~(plain | hexadecimal)
    left |= (plain & (four is None)) | (hexadecimal & (six is None))
    return Piece(four, six, list(_lines(text, ends, left)), len(ends))


def _parsed(data: _Bytes, sizes: _Numbers, lines: NDArray[np.bool_], parse: _Parser) -> _Columns | None:
    """Parse the marked lines; None if there is none, or not all are prefixes."""
    if not lines.any():
        return None
    return parse(data if lines.all() else data[np.repeat(lines, sizes)])


def _lines(text: bytes, ends: NDArray[np.intp], wanted: NDArray[np.bool_]) -> Iterator[tuple[int, bytes]]:
    for index in np.flatnonzero(wanted).tolist():
        yield index, text[ends[index - 1] + 1 if index else 0 : ends[index]]


def _ipv4(data: _Bytes) -> _Columns | None:
    """Return addresses and prefix lengths, None if a line is not an IPv4 network."""
    ends = np.flatnonzero(data - np.uint8(48) > 9)  # positions of . / and line ends
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
    free = 32 - length
    if (whole >> free << free != whole).any():
        return None
    return whole.astype(np.uint32), length.astype(np.uint8)


def _numbers(data: _Bytes, ends: NDArray[np.intp]) -> _Numbers | None:
    """Return the number before each mark; None unless all have 1 to 3 digits without a leading zero."""
    width = np.diff(ends, prepend=-1) - 1
    if not ((width >= 1) & (width <= 3)).all():
        return None
    digits = [(data[ends - 1 - place] - np.uint8(48)) * (width > place) for place in range(3)]
    numbers: _Numbers = digits[0] + np.int64(10) * digits[1] + np.int64(100) * digits[2]
    # Some parsers take a leading zero for octal; inet_pton(3) rejects it.
    return None if (numbers < np.array([0, 0, 10, 100])[width]).any() else numbers


def _is_regular(marks: _Bytes, last: NDArray[np.intp]) -> bool:
    """Return whether every line has three dots and an optional slash."""
    parts = np.diff(last, prepend=-1)
    if not ((parts == 4) | (parts == 5)).all():
        return False
    first = last - parts + 1
    dots = all((marks[first + place] == _DOT).all() for place in range(3))
    return dots and bool((marks[first[parts == 5] + 3] == _SLASH).all())


def _ipv6(data: _Bytes) -> _Columns | None:
    """Return halves of addresses and prefix lengths; None if a line is no IPv6 network, or IPv4 in IPv6."""
    ends = np.flatnonzero(_ENDS_GROUP[data])
    width = np.diff(ends, prepend=-1) - 1
    if (width > 4).any():
        return None
    value = np.zeros(len(ends), np.uint16)
    for place in range(4):
        value |= np.where(width > place, _NIBBLE[data[np.maximum(ends - 1 - place, 0)]], 0).astype(
            np.uint16
        ) << (4 * place)
    marks = data[ends]
    last = np.flatnonzero(marks == _END)
    with_length = marks[last - 1] == _SLASH
    length = _lengths(value[last], width[last], with_length)
    if length is None or np.count_nonzero(marks == _SLASH) != np.count_nonzero(with_length):
        return None
    in_address = np.ones(len(ends), np.bool_)
    in_address[last[with_length]] = False
    groups = _groups(value[in_address], width[in_address] == 0, np.diff(last, prepend=-1) - with_length)
    if groups is None:
        return None
    hi, lo = np.ascontiguousarray(groups.view(">u8").astype(np.uint64).T)
    if ((hi == 0) & (lo >> np.uint64(32) == 0xFFFF)).any():
        return None
    free = 128 - length
    if (_cleared(hi, free - 64) != hi).any() or (_cleared(lo, free) != lo).any():
        return None
    return hi, lo, length.astype(np.uint8)


def _lengths(digits: NDArray[np.uint16], width: _Numbers, given: NDArray[np.bool_]) -> _Numbers | None:
    """Return prefix lengths from digits read as hexadecimal; None if one is no number of 0 to 128."""
    read = digits.astype(np.int64)
    low, middle, high = read & 15, read >> 4 & 15, read >> 8
    number = low + 10 * middle + 100 * high
    good = (low <= 9) & (middle <= 9) & (high <= 1) & (number <= 128) & (width >= 1) & (width <= 3)
    good &= number >= np.array([0, 0, 10, 100, 1000])[width]  # a leading zero is for a slower parser
    return np.where(given, number, 128) if bool((good | ~given).all()) else None


def _groups(
    value: NDArray[np.uint16], is_empty: NDArray[np.bool_], count: _Numbers
) -> NDArray[np.uint16] | None:
    """Return the eight groups of each address, from its `count` fields between colons.

    An empty field that is neither the first nor the last stands for the zeros of `::`; the first or the last
    one may be empty next to it.
    """
    first = np.cumsum(count) - count
    line = np.repeat(np.arange(len(count)), count)
    index = np.arange(len(value)) - first[line]
    inner = np.flatnonzero(is_empty & (index > 0) & (index < count[line] - 1))
    gap = np.full(len(count), _NO_GAP)
    gap[line[inner]] = index[inner]
    empty_first, empty_last = is_empty[first], is_empty[first + count - 1]
    whole = (gap == _NO_GAP) & (count == _GROUPS) & ~empty_first & ~empty_last
    shortened = (gap != _NO_GAP) & (count - 1 - empty_first - empty_last < _GROUPS)
    shortened &= (~empty_first | (gap == 1)) & (~empty_last | (gap == count - 2))
    one_gap = len(inner) == np.count_nonzero(gap != _NO_GAP)
    if not (one_gap and bool((whole | shortened).all())):
        return None
    place = np.where(index < gap[line], index, _GROUPS - count[line] + index)
    groups = np.zeros((len(count), _GROUPS), ">u2")
    used = ~is_empty
    groups[line[used], place[used]] = value[used]
    return groups


def _cleared(half: NDArray[np.uint64], free: _Numbers) -> NDArray[np.uint64]:
    """Clear the lowest `free` bits; all from 64 on, none below 1."""
    shift = np.clip(free, 0, 63).astype(np.uint64)
    return np.where(free >= 64, np.uint64(0), half >> shift << shift)
