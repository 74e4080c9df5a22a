"""The records of rules: small files on the tmpfs below /run, root's alone, each replaced in one step.

They are gone with the boot, as the rules are, so they last as long as what they tell of, and no disk that is
full, damaged or does not answer stands in the way of a rule's end. A reserve is kept for the case that the
tmpfs itself is full.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from mmap import mmap
from pathlib import Path
from typing import Any

import msgspec

from fwtop.kernel.descriptors import closing
from fwtop.model.files import replacing

_RECORD = ".json"
_LIST = ".list"
_NEW = ".new"
_RESERVE = "reserve"
_RESERVE_BYTES = 64 << 10  # enough for the last records of some hundred rules, which replace others
_LAST_NUMBER = "last-rule"
_ANSWER_SECONDS = 1.0  # much longer than a healthy disk takes


def lock_path_of(run_directory: Path, number: int) -> Path:
    """Return the file that the guardian of a namespace keeps locked, by the namespace's inode."""
    return run_directory / f"{number}.lock"


class Records:
    """The records of one namespace in one boot."""

    def __init__(
        self, run_directory: Path, netns: int, boot: str, inode: int = 0, lasting: Path | None = None
    ) -> None:
        """By its `inode` others see whether the namespace still exists; `lasting` outlasts the boot."""
        self.directory = run_directory / f"state-{netns}-{inode}"
        self.numbers = Numbers(run_directory, lasting)
        self._boot = boot

    def exist(self) -> bool:
        """Return whether a guardian of this namespace has left any."""
        return self.directory.is_dir()

    def make_room(self) -> None:
        """Keep room for the ends of rules; raises OSError if there is none for new rules, then."""
        path = self.directory / _RESERVE
        if path.exists():
            return
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _made(path) as file:
            os.posix_fallocate(file, 0, _RESERVE_BYTES)

    def put(self, name: str, record: dict[str, Any], blob: bytes | mmap | None = None) -> None:
        """Keep a record, with bytes beside it, in one step each; raises OSError."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if blob is not None:
            replace_file(self.directory / (name + _LIST), blob)
        encoded = msgspec.json.encode({**record, "boot": self._boot})
        replace_file(self.directory / (name + _RECORD), encoded)

    def put_at_last(self, name: str, record: dict[str, Any]) -> None:
        """Keep a record even if that takes the reserve; raises OSError."""
        try:
            self.put(name, record)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            (self.directory / _RESERVE).unlink(missing_ok=True)
            self.put(name, record)

    def drop(self, name: str) -> None:
        """Forget a record; what is not there is no error."""
        with contextlib.suppress(OSError):
            for suffix in (_RECORD, _LIST):
                (self.directory / (name + suffix)).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove what a crash left half written."""
        for path in self.directory.glob(f"*{_NEW}"):
            path.unlink(missing_ok=True)

    def leave(self) -> None:
        """Remove the directory if nothing is recorded."""
        with contextlib.suppress(OSError):
            if [path.name for path in self.directory.iterdir()] == [_RESERVE]:
                (self.directory / _RESERVE).unlink()
                self.directory.rmdir()

    def names(self, kind: str) -> list[str]:
        """Return the names of what was kept as `kind-…`."""
        return sorted(path.name.removesuffix(_RECORD) for path in self.directory.glob(f"{kind}-*{_RECORD}"))

    def records(self, kind: str) -> Iterator[tuple[str, dict[str, Any] | None]]:
        """Yield name and record of what was kept as `kind-…`, None for one that can't be read."""
        for name in self.names(kind):
            try:
                record = self.record(name)
            except ValueError:
                yield name, None
            else:
                if record:
                    yield name, record

    def has(self, name: str) -> bool:
        """Return whether there is a record of this name."""
        return (self.directory / (name + _RECORD)).exists()

    def record(self, name: str) -> dict[str, Any]:
        """Return a record, empty if there is none of this boot; raises ValueError if it can't be read."""
        try:
            record = msgspec.json.decode((self.directory / (name + _RECORD)).read_bytes(), type=dict)
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError, msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(str(error)) from None
        if record.pop("boot", None) != self._boot:
            self.drop(name)
            return {}
        return record

    def listed(self, name: str) -> bytes | None:
        """Return the bytes that were kept beside a record."""
        with contextlib.suppress(OSError):
            return (self.directory / (name + _LIST)).read_bytes()
        return None

    @staticmethod
    def remove_deserted(run_directory: Path, alive: set[int]) -> None:
        """Remove the records of namespaces that are gone; `alive` are the inodes of those that exist.

        A namespace may live where nobody sees it: records stay as long as one of their rules has time left.
        """
        for directory in run_directory.glob("state-*-*"):
            inode = directory.name.rpartition("-")[2]
            if not inode.isdigit() or int(inode) in alive:
                continue
            with contextlib.suppress(OSError):
                if any(_expires(path) > time.monotonic() for path in directory.glob(f"rule-*{_RECORD}")):
                    continue
                for path in directory.iterdir():
                    path.unlink()
                directory.rmdir()


def replace_file(path: Path, data: bytes | mmap) -> None:
    """Replace a file in one step, without waiting for a disk; a crash leaves the old one or the new one.

    Raises OSError.
    """
    new = path.with_name(path.name + _NEW)
    with _made(new) as descriptor, memoryview(data) as view:
        at = 0
        while at < len(view):
            at += os.write(descriptor, view[at:])
        new.rename(path)


@contextlib.contextmanager
def _made(path: Path) -> Iterator[int]:
    """Make a file (0600) and yield its descriptor; it is removed where something fails."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with closing(os.open(path, flags, 0o600)) as descriptor:
        try:
            yield descriptor
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def _expires(path: Path) -> float:
    """Return when the rule of a record expires, CLOCK_MONOTONIC seconds; 0 for a damaged record."""
    try:
        return float(msgspec.json.decode(path.read_bytes())["expires"])
    except (OSError, ValueError, KeyError, TypeError, msgspec.MsgspecError):
        return 0.0


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
