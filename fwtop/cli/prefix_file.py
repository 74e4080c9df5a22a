"""Read a file of addresses and prefixes, a million of them in a second or two."""

from __future__ import annotations

import codecs
import re
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from fwtop.model.address import Prefix
from fwtop.model.bulk import collection_paused
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

MAX_PREFIXES = 1_000_000
MAX_FILE_BYTES = 128 << 20
_SHOWN_ERRORS = 3
_WORTH_IT = 100_000  # bytes: below, importing numpy takes longer than reading
_MAPPED = 0xFFFF  # what an IPv4 address in IPv6 begins with: ::ffff:192.0.2.1
_ODD_LINE = re.compile(rb"[^0-9./]|^$")


def read_prefix_file(name: str) -> Sequence[Prefix]:
    """Read one address or prefix a line; # starts a comment, `-` is standard input.

    A long list comes as PrefixRows (model/bulk_rows.py), in order.

    Raises FwtopError (code 2) naming bad lines by number; then nothing of the file is used.
    """
    data = _contents(name)
    with collection_paused():
        if len(data) >= _WORTH_IT:
            found = _read_quickly(data)
            if found is not None and len(found) <= MAX_PREFIXES:
                return found
        return _read_lines(name, data.decode("utf-8", "replace").split("\n"))


def _read_quickly(data: bytes) -> Sequence[Prefix] | None:
    """Read plain IPv4 lines as an array and only the others one by one; None where any is not a prefix."""
    from fwtop.cli.plain_prefixes import plain_ipv4
    from fwtop.model.bulk_rows import PrefixRows

    data = data.replace(b"\r\n", b"\n")
    plain = plain_ipv4(data)
    if plain is not None:
        return plain
    lines = data.split(b"\n")
    is_odd = _ODD_LINE.search
    odd = [line.partition(b"#")[0].decode("utf-8", "replace").strip() for line in lines if is_odd(line)]
    parsed = [_parse(line) for line in odd if line]
    plain = plain_ipv4(b"\n".join([line for line in lines if not is_odd(line)]))
    if plain is None or None in parsed:
        return None
    return PrefixRows.joined((plain, tuple(item for item in parsed if item is not None)))


def _read_lines(name: str, lines: list[str]) -> tuple[Prefix, ...]:
    found: dict[Prefix, None] = {}
    bad: list[int] = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        prefix = _parse(text)
        if prefix is None:
            bad.append(number)
        else:
            found[prefix] = None
    shown = safe_text(name, limit=100)
    if bad:
        first = ", ".join(
            f"line {number}: {safe_text(lines[number - 1].strip(), limit=40)!r}" for number in bad[:3]
        )
        more = f" and {len(bad) - _SHOWN_ERRORS:,} more" if len(bad) > _SHOWN_ERRORS else ""
        raise FwtopError(f"{shown}: not an address or prefix: {first}{more}; nothing was changed", 2)
    if len(found) > MAX_PREFIXES:
        raise FwtopError(
            f"{shown} holds {len(found):,} prefixes, at most {MAX_PREFIXES:,} fit; nothing was changed", 2
        )
    return tuple(found)


def _contents(name: str) -> bytes:
    """Read no further than fits: a pipe or a device doesn't say how long it is."""
    try:
        if name == "-":
            data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise FwtopError(f"cannot read {safe_text(name)}: {error.strerror}; nothing was changed", 2) from None
    if len(data) > MAX_FILE_BYTES:
        line = f"{safe_text(name)} is larger than {MAX_FILE_BYTES >> 20} MiB; nothing was changed"
        raise FwtopError(line, 2)
    return data.removeprefix(codecs.BOM_UTF8)


def _parse(text: str) -> Prefix | None:
    """Read the usual forms quickly, the others as Prefix.parse does; None when it is neither."""
    address, slash, length = text.partition("/")
    family, kind, bits = (6, socket.AF_INET6, 128) if ":" in address else (4, socket.AF_INET, 32)
    try:
        value = int.from_bytes(socket.inet_pton(kind, address), "big")
        free = bits - (bits if not slash else int(length) if length.isascii() and length.isdigit() else -1)
        if 0 <= free <= bits and (family == 4 or value >> 32 != _MAPPED):
            return Prefix(family, value >> free << free, bits - free)
    except OSError:
        if family == 4:
            return None
    try:
        return Prefix.parse(text)
    except ValueError:
        return None
