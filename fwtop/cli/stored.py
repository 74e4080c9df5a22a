"""What the verbs on stored sessions share: finding one, and reading it without being root."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.store.directory import SESSION_DIRECTORY, find_session


def add_directory(parser: argparse.ArgumentParser) -> None:
    """Declare where sessions are looked for."""
    parser.add_argument(
        "--directory",
        type=Path,
        default=SESSION_DIRECTORY,
        metavar="DIR",
        help=f"where the sessions are (default {SESSION_DIRECTORY})",
    )


def add_session(parser: argparse.ArgumentParser) -> None:
    """Declare which session is meant."""
    parser.add_argument(
        "session",
        nargs="?",
        metavar="SESSION",
        help="id or the beginning of it, or a file (default: the last session)",
    )
    add_directory(parser)


class StoredSession:
    """A session named on the command line.

    A file is opened at once, with the rights of whoever asked; `located` then makes it readable to the
    unprivileged user, who is the one to parse it.
    """

    def __init__(self, name: str | None, directory: Path) -> None:
        self._name = name
        self._directory = directory
        self._files: dict[str, BinaryIO] = {}
        if name is not None and (os.sep in name or name.endswith(".db")):
            self._files = _opened(find_session(name))

    @contextmanager
    def located(self) -> Iterator[Path]:
        """Yield the database's path; raises FwtopError where there is no such session."""
        if not self._files:
            yield find_session(self._name, self._directory)
            return
        with ExitStack() as stack:
            copies = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fwtop-")))
            path = copies / Path(str(self._name)).name
            for suffix, file in self._files.items():
                with file, open(f"{path}{suffix}", "wb") as copy:
                    shutil.copyfileobj(file, copy)
            yield path


def _opened(path: Path) -> dict[str, BinaryIO]:
    files: dict[str, BinaryIO] = {}
    for suffix in ("", "-wal"):
        try:
            files[suffix] = open(f"{path}{suffix}", "rb")  # noqa: SIM115 - closed when it is copied
        except FileNotFoundError:
            continue
        except OSError as error:
            raise FwtopError(f"{safe_text(path)} can't be read: {error.strerror}") from None
    return files
