"""Names of the kernel functions that drop packets.

No client ever names an address, or whoever took over a console could probe where the kernel lies in memory.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import BinaryIO

from fwtop.model.text import safe_text

KALLSYMS = "/proc/kallsyms"
_TEXT = b"tTwW"
_FARTHEST = 1 << 16  # an address further behind a symbol isn't in that function
_UPPER_DIGITS = 12  # of an address's 16, without those below _FARTHEST
_PAUSE_SECONDS = 1.0  # between two readings of the file, which take a tenth of a second
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
    best = dict.fromkeys(addresses, (0, b""))
    # Functions that contain an address begin with its upper digits or those before: only their lines, a few
    # of 200,000, are parsed.
    near: dict[bytes, list[int]] = {}
    for address in best:
        for upper in (address // _FARTHEST, address // _FARTHEST - 1):
            near.setdefault(b"%0*x" % (_UPPER_DIGITS, upper), []).append(address)
    for line in file if near else ():
        inside = near.get(line[:_UPPER_DIGITS])
        if inside and len(line) > 20 and line[17] in _TEXT:
            start, name = int(line[:16], 16), line[19:].split(maxsplit=1)[0]
            for address in inside:
                if best[address][0] <= start <= address:
                    best[address] = (start, name)
    found = (best[address] for address in addresses)
    return [
        safe_text(name.decode("ascii", "replace"), limit=40) if start > address - _FARTHEST else ""
        for address, (start, name) in zip(addresses, found, strict=True)
    ]
