"""A second copy of what ending a rule needs, on the tmpfs below /run: small files, root's alone.

The journal's disk may be full, read-only or damaged while a rule is active; what is written here is then
enough to end it, and to write the journal anew. It is gone with the boot, as the rules are.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import syslog
import threading
import time
from collections.abc import Callable, Iterator
from mmap import mmap
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from fwtop.guardian.objects.sysctls import Changed
from fwtop.model.text import safe_text

_RECORD = ".json"
_LIST = ".list"
_NEW = ".new"
_LAST_NUMBER = "last-rule"


def lock_path_of(run_directory: Path, number: int) -> Path:
    """Return the file that the guardian of a namespace keeps locked, by the namespace's inode."""
    return run_directory / f"{number}.lock"


class RuntimeCopy:
    """The records of one namespace in one boot."""

    def __init__(self, run_directory: Path, netns: int, boot: str, inode: int = 0) -> None:
        """Take the namespace's cookie and its inode, by which others see whether it still exists."""
        self._run_directory = run_directory
        self._directory = run_directory / f"state-{netns}-{inode}"
        self._boot = boot
        self._lock = threading.Lock()  # the journal's thread drops the records of rules that are over

    @property
    def directory(self) -> Path:
        """Where the records are."""
        return self._directory

    def put(self, name: str, record: dict[str, Any], blob: bytes | mmap | None = None) -> bool:
        """Keep a record, with bytes beside it, in one step each; False (and a log line) if it can't be."""
        try:
            with self._lock:
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                if blob is not None:
                    self._write(name + _LIST, blob)
                self._write(name + _RECORD, json.dumps({**record, "boot": self._boot}).encode())
        except OSError as error:
            syslog.syslog(syslog.LOG_ERR, safe_text(f"no copy of {name} in {self._directory}: {error}"))
            return False
        return True

    def drop(self, name: str) -> None:
        """Forget a record; what is not there is no error."""
        with contextlib.suppress(OSError), self._lock:
            for suffix in (_RECORD, _LIST):
                (self._directory / (name + suffix)).unlink(missing_ok=True)
            self._directory.rmdir()  # only an empty one goes

    def records(self, kind: str) -> Iterator[tuple[str, dict[str, Any], bytes | None]]:
        """Yield name, record and bytes of what was kept as `kind-…`; what is unreadable is skipped."""
        with contextlib.suppress(OSError):
            for path in sorted(self._directory.glob(f"{kind}-*{_RECORD}")):
                name = path.name.removesuffix(_RECORD)
                with contextlib.suppress(OSError, ValueError):
                    record = json.loads(path.read_bytes())
                    if not isinstance(record, dict) or record.pop("boot", None) != self._boot:
                        self.drop(name)
                        continue
                    yield name, record, self._bytes(name)

    def record(self, name: str) -> dict[str, Any]:
        """Return the record kept as `name`, without its bytes; empty if there is none that can be read."""
        with contextlib.suppress(OSError, ValueError):
            record = json.loads((self._directory / (name + _RECORD)).read_bytes())
            if isinstance(record, dict) and record.pop("boot", None) == self._boot:
                return record
        return {}

    def settings(self) -> list[Changed]:
        """Return the sysctls that rules changed; what makes no sense is skipped."""
        found = []
        for _, record, _ in self.records("setting"):
            with contextlib.suppress(TypeError, ValueError):
                found.append(Changed.of(**record))
        return found

    def mark_given_back(self, rule_id: str, name: str) -> None:
        """Note that a sysctl has its old value again though its guardian did not see to it."""
        self.put(_given_back(rule_id, name), {})

    def is_given_back(self, rule_id: str, name: str) -> bool:
        """Return whether that was noted."""
        return (self._directory / (_given_back(rule_id, name) + _RECORD)).exists()

    def drop_setting(self, rule_id: str, name: str) -> None:
        """Forget a sysctl that a rule changed, and whether it was given back."""
        self.drop(_setting(rule_id, name))
        self.drop(_given_back(rule_id, name))

    def put_setting(self, changed: Changed) -> bool:
        """Keep a sysctl that a rule changed, whatever was noted of it before; False if it can't be."""
        kept = self.put(_setting(changed.rule_id, changed.name), asdict(changed))
        self.drop(_given_back(changed.rule_id, changed.name))
        return kept

    def numbers(self) -> set[int]:
        """Return the numbers of all rules that any namespace has a record of."""
        names = [path.stem.partition("-")[2] for path in self._run_directory.glob(f"state-*/rule-*{_RECORD}")]
        return {int(name) for name in names if name.isascii() and name.isdigit()}

    def take_number(self, above: int = 0) -> int:
        """Return a number for a new rule that no namespace has given away, above `above`; raises OSError."""
        return self._count(lambda last: max(last, above, *self.numbers()) + 1)

    def note_number(self, taken: int) -> None:
        """Have later numbers be above one that is taken; raises OSError."""
        self._count(lambda last: max(last, taken))

    def _count(self, following: Callable[[int], int]) -> int:
        self._run_directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(self._run_directory / _LAST_NUMBER, flags, 0o600), "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # held for a moment: guardians of all namespaces share the file
            text = file.read(20)
            number = following(int(text) if text.isascii() and text.isdigit() else 0)
            file.seek(0)
            file.write(str(number))
            file.truncate()
        return number

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

    def _bytes(self, name: str) -> bytes | None:
        with contextlib.suppress(OSError):
            return (self._directory / (name + _LIST)).read_bytes()
        return None

    def _write(self, name: str, data: bytes | mmap) -> None:
        """Replace a file in one step; a crash leaves the old one or the new one."""
        new = self._directory / (name + _NEW)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        new.rename(self._directory / name)


def _setting(rule_id: str, name: str) -> str:
    return f"setting-{rule_id}-{name}"


def _given_back(rule_id: str, name: str) -> str:
    return f"given-back-{rule_id}-{name}"


def _expires(path: Path) -> float:
    """Return when the rule of a record expires, CLOCK_MONOTONIC seconds; 0 for a damaged record."""
    try:
        return float(json.loads(path.read_bytes())["expires"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0
