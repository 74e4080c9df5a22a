"""The operator's TOML files: an unreadable or broken one is told in one line, and the defaults hold."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

from msgspec import Struct

from fwtop.model.text import safe_text

_MOST_BYTES = 1 << 20  # the guardian's memory is locked, and a table takes many times its text


class ConfigText(Struct, frozen=True):
    """A file as it was read: its text, or why there is none."""

    path: str
    text: str
    wrong: str = ""


def read_regular(path: Path, most_bytes: int = -1) -> bytes:
    """Return a file's content; raises OSError.

    Anything else than a regular file is refused: a FIFO would be waited for, a device may have no end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        content = file.read(most_bytes + 1 if most_bytes >= 0 else -1)
    if 0 <= most_bytes < len(content):
        raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes")
    return content


def table_of(file: ConfigText) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Parse a file; return its table, and one line if it can't be used."""
    import tomllib  # few machines have such a file, and the guardian's memory is locked

    try:
        if file.wrong:
            raise ValueError(file.wrong)
        return tomllib.loads(file.text), ()
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError as error:
        reason = str(error)
    return {}, (safe_text(f"{file.path} is ignored: {reason}; the defaults hold"),)


def read_table(path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Read and parse a file; one that is not there is an empty table."""
    try:
        file = ConfigText(str(path), read_regular(path, _MOST_BYTES).decode("utf-8"))
    except FileNotFoundError:
        return {}, ()
    except (OSError, ValueError) as error:
        file = ConfigText(str(path), "", str(error))
    return table_of(file)


def line_of(text: str, name: str, section: str = "") -> int | None:
    """Return the line that sets a name in a section; None for an inline table and the like."""
    import re

    present = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?$", line):
            present = header[1].strip("\"'")
        elif present == section and re.match(rf"\s*[\"']?{re.escape(name)}[\"']?\s*[=.]", line):
            return number
    return None
