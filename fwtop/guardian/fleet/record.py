"""What a machine remembers of its fleet, on disk: revisions and roll-outs, and a log that nobody can shorten.

Each line of the log holds the digest of the one before, and the record that of the last line: whoever changes
or cuts the log must change all that follows, and what was told to the fleet with each answer. A thread
writes, because a disk that hangs must not hold up the rules' clocks; the log first, then the record, so that
after a crash the log may be ahead by what was written last.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import queue
import syslog
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fwtop.fleet.document import Stage
from fwtop.guardian.fleet.permission import Newest
from fwtop.model.errors import FwtopError
from fwtop.model.files import replacing
from fwtop.model.rule import Mode
from fwtop.model.text import safe_text
from fwtop.model.wire import of_json, to_json

RECORD, LOG = "known.json", "log.jsonl"
OPEN = frozenset({Stage.TRIAL, Stage.KEPT})
_MOST_ROLLOUTS = 128  # that have ended, the newest
_ANSWER_SECONDS = 3.0  # much longer than a healthy disk takes
_LOOKED_AT = 1 << 18  # bytes at the end of a log, for the line that the record names


class Rollout(Struct, frozen=True):
    """A roll-out on this machine."""

    fleet: str
    rollout: str
    revision: int
    document: str  # digest
    stage: Stage
    signers: tuple[str, ...]
    trial_seconds: int
    boot: str  # its rules are of this boot
    size: int  # how many they are
    confirm_key: str = ""
    rules: tuple[str, ...] = ()  # empty: being installed, or ended
    counting: bool = False
    number: int = 0  # of the last confirmation
    until: float = 0.0  # Unix seconds: when what is kept is over; 0: it is not kept yet
    why: str = ""  # it ended
    changed: float = 0.0  # Unix seconds
    name: str = ""  # of its document
    mode: Mode | None = None  # of a switch: what its rules do since
    before: Mapping[str, Mode] = {}  # and what each did


class Known(Struct, frozen=True):
    """The record."""

    newest: Mapping[str, Newest] = {}  # by fleet
    rollouts: Mapping[str, Rollout] = {}  # by name, oldest first
    lines: int = 0  # of the log
    head: str = ""  # digest of its last line

    def with_rollout(self, rollout: Rollout) -> Known:
        """Return the record with a roll-out as it is now, and without the oldest of those that have ended."""
        kept = {**self.rollouts, rollout.rollout: replace(rollout, changed=time.time())}
        over = [name for name, one in kept.items() if one.stage not in OPEN]
        for name in over[:-_MOST_ROLLOUTS]:
            del kept[name]
        return replace(self, rollouts=kept)

    def with_newest(self, fleet: str, newest: Newest) -> Known:
        """Return the record with a fleet's highest revision."""
        return replace(self, newest={**self.newest, fleet: newest})


class Recorder:
    """The record and its log, written by a thread; the rest is of the worker's."""

    def __init__(self, directory: Path) -> None:
        """Take the directory, which is made once there is something to write."""
        self._directory = directory
        self._known: Known | None = None
        self._found: tuple[Known, tuple[str, ...]] | FwtopError | None = None  # what the thread read
        self._reading: threading.Event | None = None
        self._jobs: queue.SimpleQueue[tuple[Callable[[], None], threading.Event]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pending: list[bytes] = []  # lines that the disk did not take yet; of the thread
        self.trouble = ""  # of the last writing
        self.warnings: tuple[str, ...] = ()

    def begin(self) -> None:
        """Begin to read the record; nobody waits for that."""

        def read() -> None:
            try:
                self._found = _read(self._directory)
            except FwtopError as error:
                self._found = error

        self._reading = self._do(read)

    @property
    def is_read(self) -> bool:
        """Whether the record is known by now."""
        is_over = self._reading is not None and self._reading.is_set()
        if self._known is None and is_over and isinstance(self._found, tuple):
            self._known, self.warnings = self._found
        return self._known is not None

    @property
    def known(self) -> Known:
        """The record; raises FwtopError where it can't be read."""
        if not self.is_read:
            if self._reading is None or self._reading.is_set():
                self.begin()
            if self._reading is not None and not self._reading.wait(_ANSWER_SECONDS):
                raise _no_record(self._directory, "the disk does not answer")
            if not self.is_read and isinstance(self._found, FwtopError):
                raise self._found
        assert self._known is not None  # noqa: S101 - for the type checker
        return self._known

    def write(self, known: Known, *events: Mapping[str, object]) -> None:
        """Write events and what is known now, and wait for it; raises FwtopError, and knows nothing new."""
        before = self.known
        if not self._put(known, events).wait(_ANSWER_SECONDS):
            self.trouble = "the disk does not answer"
        if self.trouble:  # the events stay to be written, or all that follows would not follow from them
            self._known = replace(before, lines=self.known.lines, head=self.known.head)
            raise _no_record(self._directory, self.trouble)

    def note(self, known: Known, *events: Mapping[str, object]) -> None:
        """Write likewise, without waiting: what is done is done, whether the disk takes it or not."""
        self._put(known, events)

    def finish(self) -> None:
        """Wait for what is being written, as long as a healthy disk takes at most."""
        if self._thread is not None:
            self._do(lambda: None).wait(_ANSWER_SECONDS)

    def _put(self, known: Known, events: tuple[Mapping[str, object], ...]) -> threading.Event:
        lines = []
        for event in events:
            told = {"seq": known.lines + 1, "at": time.time(), "previous": known.head, **event}
            lines.append(json.dumps(told).encode())
            known = replace(known, lines=known.lines + 1, head=digest_of(lines[-1]))
        self._known = known

        def work() -> None:
            self._pending += lines
            try:
                _append(self._directory, self._pending)
                self._pending.clear()
                with replacing(self._directory / RECORD, "wb", 0o600) as file:
                    file.write(to_json(known))
                self.trouble = ""
            except OSError as error:
                self.trouble = error.strerror or str(error)
                syslog.syslog(syslog.LOG_ERR, str(_no_record(self._directory, self.trouble)))

        return self._do(work)

    def _do(self, work: Callable[[], None]) -> threading.Event:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="fwtop-fleet", daemon=True)
            self._thread.start()
        done = threading.Event()
        self._jobs.put((work, done))
        return done

    def _run(self) -> None:
        while True:
            work, done = self._jobs.get()
            work()
            done.set()


def digest_of(line: bytes) -> str:
    """Return what the next line of a log holds of this one."""
    return hashlib.sha256(line).hexdigest()


def log_lines(directory: Path) -> Iterator[bytes]:
    """Yield the lines of a log as far as they are written, without their ends; raises FwtopError."""
    try:
        with open(directory / LOG, "rb") as file:
            yield from (line[:-1] for line in file if line.endswith(b"\n"))
    except FileNotFoundError:
        return
    except OSError as error:
        raise FwtopError(f"cannot read {safe_text(directory / LOG)}: {error.strerror}") from None


def check_log(directory: Path) -> int:
    """Return how many lines a log has; raises FwtopError for the first that does not follow from the others.

    Also where it is shorter than the record says.
    """
    known, _ = _read(directory, repair=False)
    head, count, seen = "", 0, known.head == ""
    for count, line in enumerate(log_lines(directory), 1):
        told = _fields(line)
        if told is None or told.get("seq") != count or told.get("previous") != head:
            raise FwtopError(f"{directory / LOG}:{count}: this line does not follow from the one before it")
        head = digest_of(line)
        seen = seen or head == known.head
    if not seen:
        where = f"{directory / LOG} ends before line {known.lines}, which the record names"
        raise FwtopError(f"{where}: it was cut, or exchanged for an older one")
    return count


def _read(directory: Path, *, repair: bool = True) -> tuple[Known, tuple[str, ...]]:
    """Return the record, and warnings; raises FwtopError."""
    try:
        known = of_json(Known, (directory / RECORD).read_bytes())
    except FileNotFoundError:
        known = Known()
    except OSError as error:
        raise _no_record(directory, error.strerror or str(error)) from None
    except ValueError:
        raise _no_record(directory, f"{RECORD} is damaged: move it away if you trust all signers") from None
    if not repair:
        return known, ()
    try:
        return _caught_up(known, _tail(directory / LOG), directory)
    except OSError as error:
        raise _no_record(directory, error.strerror or str(error)) from None


def _caught_up(known: Known, tail: list[bytes], directory: Path) -> tuple[Known, tuple[str, ...]]:
    """Return a record that ends where the log does, and what is wrong if that does not go on from it."""
    names = [digest_of(line) for line in tail]
    last = _fields(tail[-1]) if tail else {}
    seq = last.get("seq") if last else 0
    follows = known.head in names or known.lines == 0
    if follows and type(seq) is int and (tail or not known.lines):
        return replace(known, lines=seq, head=names[-1] if names else ""), ()
    return known, (
        f"{directory / LOG} does not go on from what this machine recorded: it was cut, changed or exchanged "
        "for an older one; see: fwtop fleet log --verify",
    )


def _tail(path: Path) -> list[bytes]:
    """Return the last lines of a log, and drop what a crash left half written; raises OSError."""
    if not path.exists():
        return []
    with open(path, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        begin = file.seek(max(0, size - _LOOKED_AT))
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(begin + whole)
    lines = content[:whole].splitlines()
    return lines[1:] if begin else lines


def _fields(line: bytes) -> dict[str, Any] | None:
    with contextlib.suppress(ValueError):
        found = json.loads(line)
        return found if isinstance(found, dict) else None
    return None


def _append(directory: Path, lines: list[bytes]) -> None:
    """Add lines to the log, all or none; raises OSError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not lines:
        return
    with open(directory / LOG, "ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        text = b"".join(line + b"\n" for line in lines)
        try:
            if file.write(text) != len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(size)
            raise


def _no_record(directory: Path, why: str) -> FwtopError:
    line = f"what this machine knows of its fleet, in {directory}, can't be kept: {why}; nothing was changed"
    return FwtopError(line, reason="unavailable", retryable=True)
