"""Crash logs: where a process that survives a failure leaves the traceback, bounded in number and size."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from fwtop.model.paths import STATE_DIRECTORY, exports_directory
from fwtop.model.text import safe_text

_MOST_LOGS = 8  # that a process writes
_KEPT_LOGS = 30  # of all processes, in a directory of fwtop's own
_MOST_LINES = 400  # of a log, half of them from each end
_LINE_LENGTH = 2000
_PATTERN = "crash-*.log"
Places = Callable[[], Iterable[Path]]


def failure_words(failure: BaseException) -> str:
    """Return what failed in a few words, fit for a terminal: "ValueError: zero-size array"."""
    words = safe_text(failure, limit=120)
    return f"{type(failure).__name__}: {words}" if words else type(failure).__name__


class CrashLog:
    """The crash logs of one process. Safe in any thread.

    A failure that repeats has one log, and after some logs nothing more is written: what fails twice a second
    must not fill the disk.
    """

    def __init__(self, places: Places = lambda: (STATE_DIRECTORY, exports_directory())) -> None:
        """`places` are directories of fwtop's own, the preferred first."""
        self._places = places
        self._lock = threading.Lock()
        self._written: dict[tuple[object, ...], str] = {}  # what failed, and where → path

    def path_of(self, failure: BaseException) -> str:
        """Write the sanitised traceback unless that was done; return the log's path, "" if there is none."""
        frames = traceback.extract_tb(failure.__traceback__)
        what = (type(failure), *((frame.filename, frame.lineno) for frame in frames))
        with self._lock:
            if what not in self._written and len(self._written) < _MOST_LOGS:
                path = self._write(failure)
                if not path:  # a full disk may be emptied
                    return ""
                self._written[what] = path
            return self._written.get(what, "")

    def _write(self, failure: BaseException) -> str:
        lines = "".join(traceback.format_exception(failure)).splitlines()
        if len(lines) > _MOST_LINES:
            half = _MOST_LINES // 2
            lines = [*lines[:half], f"[{len(lines) - 2 * half} lines left out]", *lines[-half:]]
        text = "".join(safe_text(line, limit=_LINE_LENGTH) + "\n" for line in lines)
        name = time.strftime(f"crash-%Y%m%d-%H%M%S-{os.getpid()}-{len(self._written)}.log")
        own = tuple(self._places())
        for place in (*own, Path(os.environ.get("TMPDIR", "/tmp"))):  # noqa: S108 - opened with O_EXCL
            path = place / name
            try:
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except OSError:
                continue
            try:
                with open(handle, "w", encoding="utf-8") as log:
                    log.write(text)
            except OSError:
                with suppress(OSError):
                    path.unlink()
                continue
            if place in own:
                _drop_old(place)
            return str(path)
        return ""


def _drop_old(directory: Path) -> None:
    with suppress(OSError):
        for old in sorted(directory.glob(_PATTERN))[:-_KEPT_LOGS]:  # their names sort by time
            old.unlink()


CRASHES = CrashLog()
