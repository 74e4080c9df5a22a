"""Files that a screen writes: beside the sessions or, failing that, into the user's own directory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from fwtop.model.errors import FwtopError
from fwtop.model.paths import exports_directory
from fwtop.store.directory import DEFAULT_MAX_BYTES, SESSION_DIRECTORY, drop_old

_SAME_NAME = 1_000


def write_export(at: float, suffix: str, content: bytes, directories: Iterable[Path] | None = None) -> str:
    """Write into a new file named after a time (Unix seconds) and return its path; never overwrites.

    Raises FwtopError.
    """
    if directories is None:
        with suppress(OSError):
            SESSION_DIRECTORY.mkdir(mode=0o700, exist_ok=True)
        directories = (SESSION_DIRECTORY, exports_directory())
    stem = time.strftime("fwtop-%Y-%m-%dT%H-%M-%S", time.gmtime(at))
    failure = FwtopError("there is no directory to write to")
    for directory in directories:
        try:
            path = _write_new(directory, stem, suffix, content)
        except OSError as error:
            failure = FwtopError(f"nothing was written to {directory}: {error.strerror}")
            continue
        if directory == SESSION_DIRECTORY:
            drop_old(directory, DEFAULT_MAX_BYTES)
        return str(path)
    raise failure


def _write_new(directory: Path, stem: str, suffix: str, content: bytes) -> Path:
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    for number in range(1, _SAME_NAME):
        path = directory / f"{stem}{f'-{number}' if number > 1 else ''}.{suffix}"
        try:
            handle = os.open(path, flags, 0o600)
        except FileExistsError:
            continue
        with open(handle, "wb") as file:
            file.write(content)
        return path
    raise FileExistsError(0, "a thousand files of this second")
