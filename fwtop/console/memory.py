"""What keeps the console small: rare collections, and freed memory given back."""

from __future__ import annotations

import ctypes
import gc
import time

# Most objects of a tick are freed by their reference counts. Python's usual thresholds would walk through all
# that was ever made several times a second: a fifth of the console's time on a calm machine.
_YOUNG, _MIDDLE, _OLD = 10_000, 10, 20
_RETURN_SECONDS = 3.0  # less than a tick takes in calm
_LIBC = ctypes.CDLL(None)


def collect_seldom() -> None:
    """Collect after many more new objects than usual."""
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)


def keep_out_of_collections() -> None:
    """Exempt everything that exists from later collections; for when a long-lived part has been built."""
    gc.collect()
    gc.freeze()
    _LIBC.malloc_trim(0)


class FreedMemory:
    """Returns to the system what lies free between the heap's blocks, 4 to 6 MiB after some ticks, in 1 ms.

    By itself, malloc(3) returns only the free memory at the heap's end.
    """

    def __init__(self) -> None:
        self._due = time.monotonic() + _RETURN_SECONDS

    def give_back(self) -> None:
        """Return it, if that was long enough ago."""
        if (now := time.monotonic()) >= self._due:
            _LIBC.malloc_trim(0)
            self._due = now + _RETURN_SECONDS
