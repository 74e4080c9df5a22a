"""Names for places in the kernel's code, from /proc/kallsyms as root opened it.

Only who opened the file decides whether it shows addresses (kernel/kallsyms.c: kallsyms_show_value of the
file's credentials), so the console reads them from the descriptor that the loader passed on. The file is
some megabytes and is read when there is a new place to name, not before, and not often.
"""

from __future__ import annotations

import os
import time

from fwtop.model.text import safe_text

_CHUNK_BYTES = 1 << 20
_PAUSE_SECONDS = 10.0
_TEXT = b"tTwW"
_FARTHEST = 1 << 16  # a place further behind a symbol isn't in that function


class Symbols:
    """Names addresses; without a descriptor it knows none."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._names: dict[int, str] = {0: ""}
        self._next = 0.0

    def names(self, addresses: list[int]) -> dict[int, str]:
        """Return the function that each address lies in; "" where that isn't known (yet)."""
        new = [address for address in addresses if address not in self._names]
        if new and self._descriptor is not None and time.monotonic() >= self._next:
            self._next = time.monotonic() + _PAUSE_SECONDS
            self._names.update(self._look_up(self._descriptor, sorted(new)))
        return {address: self._names.get(address, "") for address in addresses}

    def _look_up(self, descriptor: int, addresses: list[int]) -> dict[int, str]:
        best = dict.fromkeys(addresses, (0, b""))
        lowest, highest = addresses[0] - _FARTHEST, addresses[-1]
        for line in _lines(descriptor):
            start = int(line[:16], 16)
            if not lowest <= start <= highest or line[17] not in _TEXT:
                continue
            for address in addresses:
                if best[address][0] <= start <= address:
                    best[address] = (start, line[19:].partition(b"\t")[0])
        return {
            address: safe_text(name, limit=40) if start > address - _FARTHEST else ""
            for address, (start, name) in best.items()
        }


def _lines(descriptor: int) -> list[bytes]:
    """Return the lines that are long enough to be symbols."""
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        parts = []
        while part := os.read(descriptor, _CHUNK_BYTES):
            parts.append(part)
    except OSError:
        return []
    return [line for line in b"".join(parts).split(b"\n") if len(line) > 19]
