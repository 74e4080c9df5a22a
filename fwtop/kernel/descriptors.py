"""Open descriptors that end with a block."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def closing(descriptor: int) -> Iterator[int]:
    """Close a descriptor when the block ends."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)
