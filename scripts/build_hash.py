#!/usr/bin/env python3
"""Print the hash of what set-up installs, or the list of files: the one definition of "the program".

Runs with the distribution's bare python3, before there is any virtual environment.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("fwtop", "bpf", "geoip")
FILES = ("LICENSE", "pyproject.toml")
GEOIP_TOOLS = (
    Path("geoip/build.py"),
    Path("geoip/registries.py"),
)  # they make the data; only it is installed
LEFT_OUT_SUFFIXES = (".pyc", ".mmdb", ".tmp", ".swp")


def program_files(root: Path) -> Iterator[Path]:
    """Yield the files of the program in a stable order, relative to `root`."""
    yield from (Path(name) for name in FILES if (root / name).is_file())
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            relative = path.relative_to(root)
            unwanted = (
                "__pycache__" in path.parts or path.suffix in LEFT_OUT_SUFFIXES or relative in GEOIP_TOOLS
            )
            if path.is_file() and not unwanted:
                yield relative


def build_hash(root: Path) -> str:
    """Return 16 hexadecimal digits that change when any installed file does."""
    digest = hashlib.sha256()
    for path in program_files(root):
        content = hashlib.sha256((root / path).read_bytes()).hexdigest()
        digest.update(f"{path.as_posix()}\0{content}\n".encode())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    clone = Path(__file__).resolve().parent.parent
    if sys.argv[1:] == ["--files"]:
        print("\n".join(path.as_posix() for path in program_files(clone)))
    else:
        print(build_hash(clone))
