"""The directory that a confined screen may write to, made before it is confined."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from fwtop.model.paths import exports_directory


def make_exports_directory() -> tuple[Path, ...]:
    """Return the caller's directory for exports; nothing for root, who becomes the sessions' owner."""
    if os.geteuid() == 0:
        return ()
    directory = exports_directory()
    with contextlib.suppress(OSError):  # the export key then says why it can't write
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return (directory,)
