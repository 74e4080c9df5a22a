"""The operator's files as they were read: the text, or why there is none."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection
from pathlib import Path

from msgspec import Struct

_MOST_BYTES = 1 << 20  # the guardian's memory is locked, and a table takes many times its text


class ConfigText(Struct, frozen=True):
    """A file as it was read: its text, or why there is none."""

    path: str
    text: str
    wrong: str = ""


def read_regular(
    path: Path, most_bytes: int = -1, *, owners: Collection[int] | None = None, follow: bool = True
) -> bytes:
    """Return a file's content; raises OSError, also where it is not of `owners`, or others may write it.

    Anything else than a regular file is refused: a FIFO would be waited for, a device may have no end.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        if owners is not None and about.st_uid not in owners:
            raise OSError(errno.EPERM, f"it belongs to user {about.st_uid}")
        others = stat.S_IWOTH | (0 if about.st_uid else stat.S_IWGRP)
        if owners is not None and about.st_mode & others:
            raise OSError(errno.EPERM, "others may write it: chmod go-w")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(most_bytes + 1 if most_bytes >= 0 else -1)
    finally:
        os.close(descriptor)
    if 0 <= most_bytes < len(content):
        raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes")
    return content


def read_regular_text(path: Path) -> ConfigText | None:
    """Read a file; None if there is none."""
    try:
        return ConfigText(str(path), read_regular(path, _MOST_BYTES).decode("utf-8"))
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        return ConfigText(str(path), "", "it is not UTF-8")
    except OSError as error:
        return ConfigText(str(path), "", error.strerror or str(error))
