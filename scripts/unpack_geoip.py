#!/usr/bin/env python3
"""Unpack *.mmdb.xz from one directory into another, skipping files that are current."""

from __future__ import annotations

import lzma
import os
import sys
from pathlib import Path


def unpack(packed: Path, target: Path) -> None:
    """Write `target` by rename; its time of change becomes that of `packed`."""
    source = packed.stat()
    if target.exists() and target.stat().st_mtime_ns == source.st_mtime_ns:
        return
    making = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        making.write_bytes(lzma.decompress(packed.read_bytes()))
        os.utime(making, ns=(source.st_mtime_ns, source.st_mtime_ns))
        making.replace(target)
    finally:
        making.unlink(missing_ok=True)


if __name__ == "__main__":
    origin, destination = Path(sys.argv[1]), Path(sys.argv[2])
    for path in sorted(origin.glob("*.mmdb.xz")):
        unpack(path, destination / path.stem)
