"""A bounded queue of alarms on disk: what could not be delivered yet survives the end of the process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from fwtop.kernel.descriptors import closing

_SUFFIX = ".json"


class Spool:
    """One file per alarm in a directory, oldest first. Several processes may share it."""

    def __init__(self, directory: Path, most: int = 1000) -> None:
        self._directory = directory
        self._most = most
        self._count = 0

    def put(self, line: bytes) -> int:
        """Add an alarm; return how many old ones had to go for it. Raises OSError."""
        self._count += 1
        name = f"{time.time_ns():020}-{os.getpid()}-{self._count:06}"
        made = self._directory / f"{name}.new"
        try:
            made.write_bytes(line)
            made.rename(self._directory / f"{name}{_SUFFIX}")
        except OSError:
            with contextlib.suppress(OSError):
                made.unlink()
            raise
        surplus = self._names()[: -self._most]
        for old in surplus:
            self.remove(old)
        return len(surplus)

    def oldest(self) -> tuple[str, bytes] | None:
        """Return name and content of the oldest alarm, None if there is none."""
        for name in self._names():
            try:
                return name, (self._directory / name).read_bytes()
            except FileNotFoundError:  # another process has delivered it
                continue
        return None

    def remove(self, name: str) -> None:
        """Remove an alarm that was delivered or refused."""
        (self._directory / name).unlink(missing_ok=True)

    def __len__(self) -> int:
        """Return how many alarms wait."""
        return len(self._names())

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from delivering the same alarm."""
        with closing(os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield

    def _names(self) -> list[str]:
        return sorted(name for name in os.listdir(self._directory) if name.endswith(_SUFFIX))
