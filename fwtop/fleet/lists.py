"""Long lists of sources, on their way from whoever signs a document to each machine's guardian.

They lie on the board SOURCES, in pieces, under their SHA-256, which the document has. A node fetches them
once, for the preview, and holds them in memory until they were handed over: the guardian compares the digest.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import mmap
import os
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from fwtop.fleet.document import MAX_SOURCES, MAX_SOURCES_BYTES, Refusal, Sealed, Sources, read_document
from fwtop.fleet.transport import MAX_DOCUMENT, SOURCES, Transport
from fwtop.model.addresses.prefix_list import ATTACH_ABOVE, SEALS, bundle, map_sealed, read_bundle
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule

FETCHING = "fetching"  # reason: they are on their way
_HELD_SECONDS = 600.0  # after they were wanted last
_MOST = 2  # lists that a node holds: whoever asks it to fetch need not be an operator


def detached(rules: Sequence[Rule]) -> tuple[list[Rule], mmap.mmap | None, Sources | None]:
    """Return rules without their sources, these as a bundle, and what names that; None: they fit in.

    Raises FwtopError for too many.
    """
    if sum(len(rule.match.sources) for rule in rules) <= ATTACH_ABOVE:
        return [*rules], None, None
    given = {str(number): rule.match.sources for number, rule in enumerate(rules)}
    descriptor = bundle({name: sources for name, sources in given.items() if len(sources)})
    try:
        content = map_sealed(descriptor)
        entries = sum(map(len, read_bundle(descriptor).values()))
    finally:
        os.close(descriptor)
    if entries > MAX_SOURCES or len(content) > MAX_SOURCES_BYTES:
        line = f"{entries:,} entries, {len(content) >> 20} MiB: at most {MAX_SOURCES:,}"
        raise FwtopError(f"{line} and {MAX_SOURCES_BYTES >> 20} MiB go to a fleet; nothing was changed", 2)
    bare = [replace(rule, match=replace(rule.match, sources=())) for rule in rules]
    return bare, content, Sources(hashlib.sha256(content).hexdigest(), len(content), entries)


async def send(
    transport: Transport, content: mmap.mmap, about: Sources, seconds: float, told: Callable[[int], None]
) -> None:
    """Put lists into the store for so many seconds; `told` is given the bytes sent. Raises FwtopError."""
    for number, begin in enumerate(range(0, about.size, MAX_DOCUMENT)):
        piece = content[begin : begin + MAX_DOCUMENT]
        await transport.put(SOURCES, f"{about.sha256}.{number}", piece, seconds=seconds)
        told(begin + len(piece))


class _Held(Struct):
    about: Sources
    task: asyncio.Task[None] | None = None
    got: int = 0  # bytes
    descriptor: int | None = None  # of the whole
    wrong: str = ""
    release: asyncio.TimerHandle | None = None


class Lists:
    """What a node has fetched."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}

    def of(self, sealed: Sealed, transport: Transport) -> int | None:
        """Return the descriptor of a document's lists, None if it has none.

        Raises FwtopError: FETCHING until they are here; if they can't be had, once, and then they are
        fetched anew.
        """
        about = read_document(sealed.text.encode()).sources
        if not isinstance(about, Sources):
            return None
        held = self._held.get(about.sha256)
        if held is None or held.about != about:
            while len(self._held) >= _MOST or about.sha256 in self._held:
                self._drop(next(iter(self._held)))
            held = self._held[about.sha256] = _Held(about)
            held.task = asyncio.create_task(_fetch(transport, held))
        if held.release is not None:
            held.release.cancel()
        held.release = asyncio.get_running_loop().call_later(_HELD_SECONDS, self._drop, about.sha256)
        if held.wrong:
            self._drop(about.sha256)
            raise FwtopError(held.wrong, reason=Refusal.SOURCES, retryable=True)
        if held.descriptor is None:
            line = f"the list is on its way: {held.got / about.size:.0%} of {about.size / (1 << 20):.1f} MiB"
            raise FwtopError(line, reason=FETCHING, retryable=True)
        return held.descriptor

    def _drop(self, sha256: str) -> None:
        held = self._held.pop(sha256, None)
        if held is None:
            return
        if held.release is not None:
            held.release.cancel()
        if held.task is not None:
            held.task.cancel()
        if held.descriptor is not None:
            os.close(held.descriptor)


async def _fetch(transport: Transport, held: _Held) -> None:
    """Fetch lists piece by piece into a sealed memory file."""
    descriptor, found, about = (
        os.memfd_create("fwtop-fleet", os.MFD_ALLOW_SEALING),
        hashlib.sha256(),
        held.about,
    )
    try:
        with open(descriptor, "wb", closefd=False) as file:
            for number in range(-(-about.size // MAX_DOCUMENT)):
                name = f"{about.sha256}.{number}"
                entry = (await transport.read(SOURCES, name)).get(name)
                if entry is None:
                    raise FwtopError(f"piece {number} of the list is not in the store; nothing was changed")
                file.write(entry.document)
                found.update(entry.document)
                held.got += len(entry.document)
        if held.got != about.size or found.hexdigest() != about.sha256:
            raise FwtopError(
                "the list that the servers sent is not the one that was signed; nothing was changed"
            )
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
        held.descriptor, descriptor = descriptor, -1
    except (FwtopError, OSError) as error:
        held.wrong = str(error)
    finally:
        if descriptor >= 0:
            os.close(descriptor)
