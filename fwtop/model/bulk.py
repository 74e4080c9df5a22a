"""Long lists of prefixes: as bytes, and beside a message that could not carry them.

A request is one JSON message of at most MAX_MESSAGE bytes, which 50,000 prefixes fill. Longer lists travel
as a sealed memory file (memfd_create(2)) whose descriptor goes with the message.
"""

from __future__ import annotations

import fcntl
import gc
import os
import socket
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from fwtop.model.address import Prefix
from fwtop.model.protocol import Apply, Plan
from fwtop.model.rule import Rule

ATTACH_ABOVE = 5_000  # prefixes
MAX_PREFIXES = 1_000_000
_ENTRY = struct.Struct("!BB16s")  # family, length, address (IPv4 in the last four bytes)
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


@contextmanager
def collection_paused() -> Iterator[None]:
    """Keep the garbage collector from looking at a million new objects again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def pack_prefixes(prefixes: Sequence[Prefix]) -> bytes:
    """Write prefixes as 18 bytes each; a long list in order and without doubles."""
    if len(prefixes) > ATTACH_ABOVE:
        from fwtop.model.bulk_rows import PrefixRows

        return PrefixRows.of(prefixes).tobytes()
    pack = _ENTRY.pack
    return b"".join([pack(item.family, item.length, item.value.to_bytes(16, "big")) for item in prefixes])


def unpack_prefixes(data: bytes) -> Sequence[Prefix]:
    """Read what `pack_prefixes` wrote; raises ValueError on anything else (host bits set, too).

    A long list comes back as PrefixRows (model/bulk_rows.py), in order and without doubles.
    """
    if len(data) % _ENTRY.size or len(data) > MAX_PREFIXES * _ENTRY.size:
        raise ValueError("not a list of prefixes, or too long")
    if len(data) > ATTACH_ABOVE * _ENTRY.size:
        from fwtop.model.bulk_rows import PrefixRows

        return PrefixRows.of_bytes(data)
    number = int.from_bytes
    found = []
    for family, length, address in _ENTRY.iter_unpack(data):
        value = number(address, "big")
        bits = 32 if family == 4 else 128
        if family not in (4, 6) or length > bits or value >> bits or value & ((1 << bits - length) - 1):
            raise ValueError("not a list of prefixes")
        found.append(Prefix(family, value, length))
    return tuple(found)


def prefix_text(prefix: Prefix) -> str:
    """Write a prefix as `str` does, eight times as fast for IPv4."""
    if prefix.family == 6:
        return str(prefix)
    address = socket.inet_ntoa(prefix.value.to_bytes(4, "big"))
    return address if prefix.length == 32 else f"{address}/{prefix.length}"


def detach_sources(request: Plan | Apply, rule: Rule) -> tuple[Plan | Apply, int | None]:
    """Return the request for a rule with a long list's place taken by a descriptor, to be sent with it.

    The caller closes the descriptor. `request.rule` is ignored: give an empty one.
    """
    if len(rule.match.sources) <= ATTACH_ABOVE:
        return replace(request, rule=rule.to_dict()), None
    short = replace(rule, match=replace(rule.match, sources=()))
    descriptor = os.memfd_create("fwtop-sources", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(pack_prefixes(rule.match.sources))
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return replace(request, rule=short.to_dict(), attached=True), descriptor


def read_sources(descriptor: int) -> Sequence[Prefix]:
    """Read the list behind a descriptor that somebody else sent; raises ValueError.

    Only a sealed memory file is taken: nothing that could block, grow, or change while it is read.
    """
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        raise ValueError("the list is not a memory file") from None
    status = os.fstat(descriptor)
    if seals & _SEALS != _SEALS or not stat.S_ISREG(status.st_mode):
        raise ValueError("the list is not sealed")
    if status.st_size > MAX_PREFIXES * _ENTRY.size:
        raise ValueError(f"more than {MAX_PREFIXES:,} prefixes")
    with open(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        return unpack_prefixes(file.read())
