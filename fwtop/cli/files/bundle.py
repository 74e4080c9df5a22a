"""Writing a bundle of files: into a new folder, or as a zip archive."""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

from fwtop.cli.files.trusted import locate
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

# What the unprivileged reader may name: no other folders, nothing hidden.
_NAME = re.compile(r"(?:[a-z]+/)?[A-Za-z0-9][A-Za-z0-9_.-]{0,80}")
_MOST_FILES = 1_000
_FIRST_YEAR = (1980, 1, 1, 0, 0, 0)  # of zip archives: the same session gives the same archive


def checked(files: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Return the files if all of their names are those of a bundle; raises FwtopError."""
    if len(files) > _MOST_FILES or not all(_NAME.fullmatch(name) for name in files):
        raise FwtopError("the unprivileged reader named files that no bundle has; nothing was written")
    return files


def zipped(files: Mapping[str, bytes]) -> bytes:
    """Return the files as a zip archive."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in checked(files).items():
            archive.writestr(zipfile.ZipInfo(name, _FIRST_YEAR), content, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Make a new folder and write the files into it; raises FwtopError, also if it is there already."""
    checked(files)
    try:
        parent, name = locate(path)
        try:
            os.mkdir(name, 0o755, dir_fd=parent)
            folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        finally:
            os.close(parent)
        try:
            for subfolder in sorted({name.partition("/")[0] for name in files if "/" in name}):
                os.mkdir(subfolder, 0o755, dir_fd=folder)
            for file_name, content in files.items():
                _write(folder, file_name, content)
        finally:
            os.close(folder)
    except FileExistsError:
        raise FwtopError(
            f"{safe_text(path)} is there already and was not changed; name a new folder, or a file.zip"
        ) from None
    except OSError as error:
        raise FwtopError(f"{safe_text(path)} was not written: {error.strerror}") from None


def _write(folder: int, name: str, content: bytes) -> None:
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(name, flags, 0o644, dir_fd=folder), "wb") as file:
        file.write(content)
