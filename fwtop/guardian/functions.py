"""Names of the kernel functions that drop packets.

No client ever names an address, or whoever took over a console could probe where the kernel lies in memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from fwtop.model.text import safe_text

KALLSYMS = "/proc/kallsyms"
_TEXT = b"tTwW"
_FARTHEST = 1 << 16  # an address further behind a symbol isn't in that function
_PAUSE_SECONDS = 1.0  # between two readings of the file, which take a quarter of a second
_MAX_KNOWN = 4096  # addresses


class Functions:
    """A cache of functions by addresses inside them. Of the worker's thread."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {0: ""}
        self._next = 0.0

    def names(self, addresses: Sequence[int]) -> list[str]:
        """Name the functions, "" where none is known (yet); raises OSError."""
        new = [address for address in addresses if address not in self._known]
        if new and time.monotonic() >= self._next:
            if len(self._known) + len(new) > _MAX_KNOWN:
                self._known = {0: ""}
            with open(KALLSYMS, "rb") as file:
                self._known.update(zip(new, names_in(file, new), strict=True))
            self._next = time.monotonic() + _PAUSE_SECONDS
        return [self._known.get(address, "") for address in addresses]


def names_in(file: BinaryIO, addresses: Sequence[int]) -> list[str]:
    """Name addresses by a file in the format of /proc/kallsyms."""
    if not addresses:
        return []
    best = dict.fromkeys(addresses, (0, b""))
    lowest, highest = min(addresses) - _FARTHEST, max(addresses)
    for start, name in _functions(file):
        if not lowest <= start <= highest:
            continue
        for address in best:
            if best[address][0] <= start <= address:
                best[address] = (start, name)
    found = (best[address] for address in addresses)
    return [
        safe_text(name.decode("ascii", "replace"), limit=40) if start > address - _FARTHEST else ""
        for address, (start, name) in zip(addresses, found, strict=True)
    ]


def _functions(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    for line in file:
        if len(line) > 20 and line[17] in _TEXT:
            yield int(line[:16], 16), line[19:].split(maxsplit=1)[0]
