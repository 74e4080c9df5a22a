"""Long lists of prefixes as bytes, and their transfer beside a request.

A request is one JSON message of at most MAX_MESSAGE bytes, room for 50,000 prefixes. Longer lists are passed
as a sealed memory file (memfd_create(2)), whose descriptor accompanies the message.
"""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import socket
import stat
import struct
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from msgspec.structs import replace

from fwtop.model.addresses.address import Prefix, prefixes_of, says_more
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Apply, Plan, RuleChange
from fwtop.model.rule import Rule

ATTACH_ABOVE = 5_000  # prefixes
MAX_PREFIXES = 25_000_000  # of any kind of rule; rules/kinds/ say how many each takes
_MAX_BYTES = 32 + 17 * MAX_PREFIXES
_ENTRY = struct.Struct("!BB16s")  # family, length, address (IPv4 in the last four bytes)
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class SealedFile(mmap.mmap):
    """A list in a memory file that nobody can change, mapped; `descriptor` hands it on without a copy."""

    descriptor: int  # closed with the object

    @classmethod
    def of(cls, descriptor: int, size: int) -> SealedFile:
        """Map a file, whose descriptor stays the caller's; raises OSError."""
        mapped = cls(descriptor, size, mmap.MAP_PRIVATE, mmap.PROT_READ)
        mapped.descriptor = os.dup(descriptor)
        weakref.finalize(mapped, os.close, mapped.descriptor)
        return mapped


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause the garbage collector, which would scan a million new objects repeatedly."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def pack_prefixes(prefixes: Sequence[Prefix]) -> bytes | mmap.mmap:
    """Encode prefixes as 18 bytes each; a long list is sorted and deduplicated, and takes 5 to 17.

    One that came in a memory file is that file, mapped: nothing is copied.
    """
    if says_more(prefixes):
        return prefixes.tobytes()
    if len(prefixes) > ATTACH_ABOVE:
        from fwtop.model.addresses.prefix_rows import PrefixRows

        return PrefixRows.of(prefixes).encoded()
    pack = _ENTRY.pack
    return b"".join([pack(item.family, item.length, item.value.to_bytes(16, "big")) for item in prefixes])


def unpack_prefixes(data: bytes | mmap.mmap) -> Sequence[Prefix]:
    """Decode what `pack_prefixes` encoded; raises ValueError on anything else, including host bits.

    A long list is returned as PrefixRows, which refer to `data`.
    """
    if data[:1] == b"\0":
        from fwtop.model.addresses.list_rows import rows_of_bytes

        return rows_of_bytes(data)
    if len(data) % _ENTRY.size or len(data) > ATTACH_ABOVE * _ENTRY.size:
        raise ValueError("not a list of prefixes, or too long")
    number = int.from_bytes
    found = []
    for family, length, address in _ENTRY.iter_unpack(data):
        value = number(address, "big")
        bits = 32 if family == 4 else 128
        if family not in (4, 6) or length > bits or value >> bits or value & ((1 << bits - length) - 1):
            raise ValueError("not a list of prefixes")
        found.append(Prefix(family, value, length))
    return tuple(found)


def listed_entries(texts: Sequence[str]) -> Sequence[Prefix]:
    """Parse entries of a named list; loads no numpy for plain prefixes. Raises FwtopError (code 2)."""
    if not any(
        text[:1] == "[" or "," in text or (":" in text and ("." in text or text.endswith(("/tcp", "/udp"))))
        for text in texts
    ):
        return prefixes_of(texts)
    from fwtop.model.addresses.named_list import entries_of

    return entries_of(texts)


def together(lists: Sequence[Sequence[Prefix]]) -> Sequence[Prefix]:
    """Return the entries of several lists, all of one kind; raises FwtopError (code 2)."""
    filled = [item for item in lists if len(item)]
    if len(filled) <= 1:
        return filled[0] if filled else ()
    from fwtop.model.addresses.list_rows import joined

    try:
        return joined(filled)
    except ValueError as error:
        raise FwtopError(f"{error}; nothing was changed", 2) from None


def entry_texts(entries: Sequence[Prefix]) -> Iterator[str]:
    """Yield a list's entries as they are typed, with ports or pairs, if it has such."""
    return map(str, entries.entries()) if says_more(entries) else map(prefix_text, entries)


def prefix_text(prefix: Prefix) -> str:
    """Format a prefix like `str`, but eight times as fast for IPv4."""
    if prefix.family == 6:
        return str(prefix)
    address = socket.inet_ntoa(prefix.value.to_bytes(4, "big"))
    return address if prefix.length == 32 else f"{address}/{prefix.length}"


def detach_sources(
    request: Plan | Apply | RuleChange, rule: Rule
) -> tuple[Plan | Apply | RuleChange, int | None]:
    """Return a request for a rule, and the descriptor of its source list if that is too long for the message.

    The caller closes the descriptor. `request.rule` is replaced. The sources of a rule on a named list are
    the guardian's: what the caller knows of them is left out.
    """
    if rule.list_name is not None:
        rule = replace(rule, match=replace(rule.match, sources=()))
    if len(rule.match.sources) <= ATTACH_ABOVE:
        return replace(request, rule=rule.to_dict()), None
    short = replace(rule, match=replace(rule.match, sources=()))
    return replace(request, rule=short.to_dict(), attached=True), sealed(rule.match.sources)


def sealed(prefixes: Sequence[Prefix]) -> int:
    """Write a list into a memory file that nobody can change any more; one that came in such is there."""
    read_from = getattr(prefixes, "read_from", None)  # of PrefixRows: not imported for a short list
    if isinstance(read_from, SealedFile):
        return os.dup(read_from.descriptor)
    descriptor = os.memfd_create("fwtop-sources", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb", buffering=0, closefd=False) as file:
        for piece in _pieces(prefixes):
            view = memoryview(piece)
            while view:  # write(2) takes 2 GiB at most
                view = view[file.write(view) :]
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    return descriptor


def _pieces(prefixes: Sequence[Prefix]) -> Sequence[bytes | memoryview]:
    """Return what `pack_prefixes` would, a long list without copying it."""
    if says_more(prefixes) or (len(prefixes) <= ATTACH_ABOVE and isinstance(prefixes, tuple)):
        return [bytes(pack_prefixes(prefixes))]
    from fwtop.model.addresses.prefix_rows import PrefixRows

    return PrefixRows.of(prefixes).pieces()


def read_sources(descriptor: int) -> Sequence[Prefix]:
    """Read a list from a client's descriptor; raises ValueError.

    A long list is not copied: it stays in that file, which is mapped.
    """
    return unpack_prefixes(map_sealed(descriptor))


def map_sealed(descriptor: int) -> SealedFile:
    """Map a client's memory file; raises ValueError.

    It must be sealed, as anything else could block, grow or change meanwhile.
    """
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        raise ValueError("the list is not a memory file") from None
    status = os.fstat(descriptor)
    if seals & SEALS != SEALS or not stat.S_ISREG(status.st_mode):
        raise ValueError("the list is not sealed")
    if status.st_size > _MAX_BYTES:
        raise ValueError(f"more than {MAX_PREFIXES:,} prefixes")
    if not status.st_size:
        raise ValueError("the list is empty")
    return SealedFile.of(descriptor, status.st_size)


# Several named lists in one sealed memory file, beside a policy's text (docs/API.md). For each: the length of
# its name (one byte), its name, the size of what follows (8 bytes, little endian), and its entries as in a
# list that goes alone.
_SIZE_BYTES = 8


def bundle(lists: Mapping[str, Sequence[Prefix]]) -> int:
    """Write lists into a memory file that nobody can change any more; its descriptor is the caller's."""
    descriptor = os.memfd_create("fwtop-lists", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb", closefd=False) as file:
        for name, entries in lists.items():
            own, packed = name.encode(), pack_prefixes(entries)
            file.write(bytes([len(own)]) + own + len(packed).to_bytes(_SIZE_BYTES, "little"))
            file.write(packed)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    return descriptor


def read_bundle(descriptor: int) -> dict[str, Sequence[Prefix]]:
    """Read a client's lists by name; raises ValueError where it is no such file."""
    mapped, found, at = map_sealed(descriptor), {}, 0
    while at < len(mapped):
        start = at + 1 + mapped[at]
        name = mapped[at + 1 : start].decode()
        end = start + _SIZE_BYTES
        at = end + int.from_bytes(mapped[start:end], "little")
        if at > len(mapped) or name in found:
            raise ValueError("not a bundle of lists")
        found[name] = unpack_prefixes(mapped[end:at])
    return found
