"""A thread's visit to a named network namespace."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

NETNS = Path("/run/netns")
_CLONE_NEWNET = 0x40000000


@contextlib.contextmanager
def inside(own: str) -> Iterator[None]:
    """Run a few lines of this thread in a namespace, and come back."""
    libc = ctypes.CDLL(None, use_errno=True)
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.open(NETNS / own, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if libc.setns(there, _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"can't enter {own}")
        finally:
            os.close(there)
        try:
            yield
        finally:
            libc.setns(here, _CLONE_NEWNET)
    finally:
        os.close(here)
