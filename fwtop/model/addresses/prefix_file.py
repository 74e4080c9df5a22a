"""Read a file of addresses and prefixes, millions of them in a second or two, piece by piece."""

from __future__ import annotations

import codecs
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from fwtop.model.addresses.address import HostBitsError, Prefix
from fwtop.model.addresses.prefix_list import MAX_PREFIXES, collection_paused
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

MAX_FILE_BYTES = 1 << 30
_SHOWN_ERRORS = 3
_NUMPY_BYTES = 100_000  # for smaller files importing numpy takes longer than parsing
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd")  # gzip, bzip2, xz, zstd
_MAPPED = 0xFFFF  # upper bits of IPv4-mapped addresses, ::ffff:192.0.2.1
_JOINED = 64  # pieces
_PIECE = 1 << 18  # bytes; keeps the working set in the CPU cache


def read_prefix_file(name: str, *, for_list: bool = False) -> Sequence[Prefix]:
    """Read one address or prefix per line; # starts a comment, `-` means standard input.

    Returns a long list as PrefixRows, a short one in file order; `for_list` takes all kinds of entries that
    named lists hold. Raises FwtopError (code 2) with the numbers of invalid lines.
    """
    lines = _Lines(safe_text(name, limit=100), for_list=for_list)
    with _opened(name) as file:
        head = _read(file, name, _NUMPY_BYTES).removeprefix(codecs.BOM_UTF8)
        if head.startswith(_COMPRESSED):
            raise FwtopError(
                f"{safe_text(name, limit=100)} is compressed: unpack it first; nothing was changed", 2
            )
        if len(head) < _NUMPY_BYTES - len(codecs.BOM_UTF8):
            for number, line in enumerate(head.split(b"\n"), 1):
                lines.take(number, line)
            lines.check()
            return lines.saying_more() or tuple(lines.found)
        with collection_paused():
            return _read_long(file, name, head, lines)


class _Lines:
    """Lines that are read singly: the prefixes in them, and what is wrong with the first bad ones."""

    def __init__(self, shown: str, *, for_list: bool = False) -> None:
        self.found: dict[Prefix, None] = {}
        self._saying_more: list[str] = []
        self._for_list = for_list
        self._shown = shown
        self._bad: list[str] = []
        self._wrong = 0

    def take(self, number: int, line: bytes) -> None:
        """Read a line."""
        text = line.decode("utf-8", "replace").partition("#")[0].strip()
        if not text:
            return
        why: str | None = ""
        try:
            self.found[_parse(text)] = None
            return
        except HostBitsError as error:
            why = f" has host bits, the network is {error.network}"
        except ValueError:
            if self._for_list and (why := _why_no_entry(text)) is None:
                self._saying_more.append(text)
                return
        self._wrong += 1
        if self._wrong <= _SHOWN_ERRORS:
            whole = line.decode("utf-8", "replace").strip()
            self._bad.append(f"line {number}: {safe_text(whole, limit=40)!r}{why}")

    def check(self) -> None:
        """Raise FwtopError if there were bad lines."""
        if self._bad:
            more = f" and {self._wrong - _SHOWN_ERRORS:,} more" if self._wrong > _SHOWN_ERRORS else ""
            first = ", ".join(self._bad)
            raise FwtopError(
                f"{self._shown}: not an address or prefix: {first}{more}; nothing was changed", 2
            )

    def saying_more(self) -> Sequence[Prefix]:
        """Return the entries with ports, or pairs of networks; none if there are none. Raises FwtopError."""
        if not self._saying_more:
            return ()
        from fwtop.model.addresses.named_list import entries_of

        return entries_of([*self._saying_more, *map(str, list(self.found)[:1])])


class _Columns:
    """Columns of many pieces, in arrays large enough that freeing them returns their memory to the system."""

    def __init__(self) -> None:
        self._large: list[tuple[Any, ...]] = []
        self._small: list[tuple[Any, ...]] = []

    def add(self, columns: tuple[Any, ...] | None) -> None:
        """Take a piece's columns, None for none."""
        if columns is not None:
            self._small.append(columns)
        if len(self._small) >= _JOINED:
            self._join()

    def all(self) -> list[tuple[Any, ...]]:
        """Return what was taken, and keep nothing."""
        if self._small:
            self._join()
        found, self._large = self._large, []
        return found

    def _join(self) -> None:
        import numpy as np

        self._large.append(tuple(np.concatenate(item) for item in zip(*self._small, strict=True)))
        self._small.clear()


def _read_long(file: BinaryIO, name: str, head: bytes, lines: _Lines) -> Sequence[Prefix]:
    """Parse plain lines with numpy, piece by piece, and all others one by one."""
    from fwtop.model.addresses.plain_prefixes import parse_lines
    from fwtop.model.addresses.prefix_rows import PrefixRows

    four, six = _Columns(), _Columns()
    before = count = 0
    for text in _pieces(file, name, head):
        piece = parse_lines(text)
        four.add(piece.four)
        six.add(piece.six)
        for index, line in piece.others:
            lines.take(before + index + 1, line)
        before += piece.lines
        count += piece.lines - len(piece.others)
        if count + len(lines.found) > 2 * MAX_PREFIXES:  # however often each is repeated
            break
    lines.check()
    found = PrefixRows.of_columns(four.all(), six.all())
    if more := lines.saying_more():
        if len(found):
            raise FwtopError(f"{safe_text(name, limit=100)} has entries of two kinds; nothing was changed", 2)
        return more
    if lines.found:
        found = PrefixRows.union((found, tuple(lines.found)))
    if len(found) > MAX_PREFIXES or count > 2 * MAX_PREFIXES:
        raise FwtopError(
            f"{safe_text(name, limit=100)} has more than {MAX_PREFIXES:,} prefixes; nothing was changed", 2
        )
    return found


def _pieces(file: BinaryIO, name: str, head: bytes) -> Iterator[bytes]:
    """Yield whole lines, some thousand at a time, with plain line ends."""
    total, rest = len(head), head
    while data := _read(file, name, _PIECE):
        total += len(data)
        if total > MAX_FILE_BYTES:
            line = f"{safe_text(name)} is larger than {MAX_FILE_BYTES >> 20} MiB; nothing was changed"
            raise FwtopError(line, 2)
        end = data.rfind(b"\n") + 1
        if not end and len(rest) > _PIECE:
            line = f"{safe_text(name)} has a line of more than {_PIECE >> 10} KiB; nothing was changed"
            raise FwtopError(line, 2)
        if end:
            yield (rest + data[:end]).replace(b"\r\n", b"\n")
            rest = data[end:]
        else:
            rest += data
    if rest:
        yield (rest.removesuffix(b"\n") + b"\n").replace(b"\r\n", b"\n")


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        file = Path(name).open("rb")  # noqa: SIM115
    except OSError as error:
        raise _unreadable(name, error) from None
    with file:
        yield file


def _read(file: BinaryIO, name: str, size: int) -> bytes:
    try:
        return file.read(size)
    except OSError as error:
        raise _unreadable(name, error) from None


def _unreadable(name: str, error: OSError) -> FwtopError:
    return FwtopError(f"cannot read {safe_text(name)}: {error.strerror}; nothing was changed", 2)


def _why_no_entry(text: str) -> str | None:
    """Return what to add to a line that is no entry of a list that says more; None: it is one."""
    from fwtop.model.addresses.pair_rows import PairEntry
    from fwtop.model.addresses.port_rows import PortEntry

    try:
        return "" if PairEntry.parse(text) is None and PortEntry.parse(text) is None else None
    except HostBitsError as error:
        return f" has host bits, the network is {error.network}"
    except ValueError:
        return ""


def _parse(text: str) -> Prefix:
    """Parse common forms fast and others by Prefix.parse, which raises ValueError."""
    address, slash, length = text.partition("/")
    family, kind, bits = (6, socket.AF_INET6, 128) if ":" in address else (4, socket.AF_INET, 32)
    try:
        value = int.from_bytes(socket.inet_pton(kind, address), "big")
        free = bits - (bits if not slash else int(length) if length.isascii() and length.isdigit() else -1)
        if 0 <= free <= bits and (family == 4 or value >> 32 != _MAPPED) and value >> free << free == value:
            return Prefix(family, value, bits - free)
    except (OSError, ValueError):  # ValueError: a zero byte, thousands of digits
        if family == 4:
            raise ValueError("not an address or prefix") from None
    return Prefix.parse(text)
