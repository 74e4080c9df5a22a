"""Numbers for new rules. The guardians of all namespaces share them, and after a restart they go on.

People, logs and programs name a rule by its number, so none is given twice. The last one is kept beside the
records, and on the disk for the next boot: by a thread, because a disk may never answer.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path

from fwtop.model.whole_file import replacing

_LAST_NUMBER = "last-rule"
_ANSWER_SECONDS = 1.0  # much longer than a healthy disk takes


class Numbers:
    """The numbers that one machine has given."""

    def __init__(self, run_directory: Path, lasting: Path | None = None) -> None:
        """Take the directory of all records, and that of files that outlast a restart, if there is one."""
        self._run_directory = run_directory
        self._kept = lasting / _LAST_NUMBER if lasting is not None else None
        self._last = 0
        self._keeper: threading.Thread | None = None

    def take(self) -> int:
        """Return a number that no rule of any namespace has; raises OSError."""
        return self._count(lambda last: max(last, *self._recorded(), 0) + 1)

    def note(self, taken: int) -> None:
        """Have later numbers be above one that is taken; raises OSError."""
        self._count(lambda last: max(last, taken))

    def _count(self, following: Callable[[int], int]) -> int:
        self._run_directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(self._run_directory / _LAST_NUMBER, flags, 0o600), "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # held for a moment: guardians of all namespaces share the file
            number = following(_number(file.read(20)) or self._of_former_boots())
            file.seek(0)
            file.write(str(number))
            file.truncate()
        self._last = number
        self._keep()
        return number

    def _recorded(self) -> list[int]:
        paths = self._run_directory.glob("state-*/*-*.json")
        return [
            _number(path.stem.partition("-")[2]) for path in paths if path.stem.startswith(("rule-", "over-"))
        ]

    def _of_former_boots(self) -> int:
        """Return the last number before this boot, 0 where the disk does not tell."""
        found = [0]

        def read() -> None:
            with contextlib.suppress(OSError):
                found.append(self._on_disk())

        reader = threading.Thread(target=read, name="fwtop-numbers", daemon=True)
        reader.start()
        reader.join(_ANSWER_SECONDS)
        return found[-1]

    def _keep(self) -> None:
        """Have the last number written to the disk."""
        if self._kept is not None and (self._keeper is None or not self._keeper.is_alive()):
            self._keeper = threading.Thread(target=self._write, name="fwtop-numbers", daemon=True)
            self._keeper.start()

    def _write(self) -> None:
        if self._kept is None:
            return
        with contextlib.suppress(OSError):
            self._kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            while self._on_disk() < (last := self._last):
                with replacing(self._kept, permissions=0o600) as file:
                    file.write(str(last))

    def _on_disk(self) -> int:
        try:
            return _number(self._kept.read_text(encoding="ascii", errors="replace")) if self._kept else 0
        except FileNotFoundError:
            return 0


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
