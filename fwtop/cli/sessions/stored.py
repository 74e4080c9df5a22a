"""Shared by the verbs on stored sessions: find a session, and read it without root."""

from __future__ import annotations

import argparse
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from fwtop.cli.files import open_file
from fwtop.cli.options import option
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.sandbox.child import ask, unprivileged
from fwtop.sandbox.confine import Profile
from fwtop.store.directory import SESSION_DIRECTORY, find_session
from fwtop.store.history import FILE_NAME


def add_directory(parser: argparse.ArgumentParser) -> None:
    """Add --directory."""
    option(parser, "--directory", "DIR", "session directory", Path, default=SESSION_DIRECTORY)


def add_session(parser: argparse.ArgumentParser) -> None:
    """Add the session argument and --directory."""
    session = "session id or a unique prefix of it, or a file (default: the last session)"
    parser.add_argument("session", nargs="?", metavar="SESSION", help=session)
    add_directory(parser)


class StoredSession:
    """A session named on the command line.

    A file is opened immediately with the caller's rights, unless another user planted it. `located` then
    copies it for the unprivileged user, who parses it. So is the history beside a directory other than
    fwtop's own, which that user could not open; `history` is its copy while `located` lasts.
    """

    def __init__(self, name: str | None, directory: Path) -> None:
        self._name = name
        self._directory = directory
        self._files: dict[str, BinaryIO] = {}
        self.history: Path | None = None
        if name is not None and (os.sep in name or name.endswith(".db")):
            directory = find_session(name).parent
            self._files = _opened(find_session(name))
        self._history: dict[str, BinaryIO] = {}
        if directory != SESSION_DIRECTORY:
            self._history = _opened(directory.absolute().parent / FILE_NAME)

    @contextmanager
    def located(self) -> Iterator[Path]:
        """Yield the database's path; raises FwtopError if there is no such session."""
        if not self._files and not self._history:
            yield find_session(self._name, self._directory)
            return
        with ExitStack() as stack:
            copies = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fwtop-")))
            if self._history:
                self.history = copies / FILE_NAME
                _copy(self._history, self.history)
            if not self._files:
                yield find_session(self._name, self._directory)
                return
            inner = copies / "sessions"  # of which a file may have the history's name
            inner.mkdir()
            path = inner / Path(str(self._name)).name
            _copy(self._files, path)
            yield path


def _copy(files: dict[str, BinaryIO], path: Path) -> None:
    for suffix, file in files.items():
        with file, open(f"{path}{suffix}", "wb") as copy:
            shutil.copyfileobj(file, copy)


def _opened(path: Path) -> dict[str, BinaryIO]:
    files: dict[str, BinaryIO] = {}
    for suffix in ("", "-wal"):
        try:
            files[suffix] = open_file(Path(f"{path}{suffix}"))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise FwtopError(f"{safe_text(path)} can't be read: {error.strerror}") from None
    return files


T = TypeVar("T")


def run_unprivileged(function: Callable[[], T], kind: Any = Any, *, read: Iterable[Path] = ()) -> T:  # noqa: ANN401
    """Call `function` in a child without privileges and return its result, of type `kind`.

    The child can open the program's files, the sessions, and files below `read`, but not the terminal. It may
    write temporary files. It parses what attackers sent, so check or sanitise its result; an error in it is
    raised again here, sanitised. If the caller is not root, `function` runs in this process.
    """
    if os.geteuid() != 0:
        return function()
    places = (Path(tempfile.gettempdir()),)
    return ask(
        function,
        kind,
        who="the unprivileged reader",
        enter=lambda: unprivileged(Profile.READER, read=read, write=places),
    )


def sanitised(value: Any, depth: int = 6) -> Any:  # noqa: ANN401 - whatever JSON holds
    """Return a reader's document, which a hostile file may have taken over, for root's terminal.

    Raises ValueError for what no reader writes.
    """
    if depth == 0:
        raise ValueError("nested too deeply")
    if isinstance(value, dict):
        return {safe_text(key): sanitised(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list):
        return [sanitised(item, depth - 1) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("not a number")
    return safe_text(value) if isinstance(value, str) else value
