"""What to do while a database can't be written: say why and since when, and hold what happens meanwhile."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, field

from fwtop.model.errors import FwtopError
from fwtop.model.rule import RuleStatus
from fwtop.model.text import safe_text
from fwtop.model.traffic.session import AttackEvidence, Event, EventKind
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.render.numbers import CLOCK, utc

_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS = 1.0, 30.0  # until it is tried again; doubled each time
_CALM_SECONDS = 60.0  # of storing, after which a new failure counts as the first
_PROBE_BYTES = 64 << 10
_ROOM_BYTES = 4 << 20  # free, which is more than one transaction needs
_HINTS = {
    errno.ENOSPC: ("the disk is full", "free some space on the disk of {place}"),
    errno.EDQUOT: ("the disk quota is used up", "raise that of user fwtop for {place}"),
    errno.EFBIG: ("a limit on the size of files was reached", "raise it (ulimit -f, LimitFSIZE=)"),
    errno.EROFS: ("the file system is read-only", "remount {place} read-write"),
    errno.EIO: ("the disk reports I/O errors", "look at the kernel's messages (dmesg)"),
    errno.EACCES: ("permission denied", "{place} must belong to user fwtop"),
    errno.ENOENT: (
        "its directory is missing and can't be made",
        "make {place} for user fwtop and restart fwtop",
    ),
    errno.ENOTDIR: ("its directory is a file", "move away what is in the place of {place}"),
    errno.EEXIST: ("its directory is a file", "move away {place}"),
    errno.EMFILE: ("no more files can be opened", "raise their limit (ulimit -n)"),
    errno.ENOMEM: ("out of memory", "free some"),
}
_HINTS[errno.EPERM] = _HINTS[errno.EACCES]
_HINTS[errno.ENFILE] = _HINTS[errno.EMFILE]


class Cause(Struct, frozen=True):
    """Why a database can't be written, and what helps; both on one line."""

    why: str
    hint: str = ""


class Trouble:
    """The failures of one database, and when writing is to be tried again."""

    def __init__(self, what: str, clock: Callable[[], float]) -> None:
        """`what` is not happening: "not stored"."""
        self._what = what
        self._clock = clock
        self._delay = 0.0
        self._retry_at = float("-inf")
        self._stored_since = float("-inf")
        self.cause = ""  # "" while all is well
        self.line = ""  # since when, why, and what helps, in one line

    @property
    def waits(self) -> bool:
        """Whether it is too early to try again."""
        return bool(self.line) and self._clock() < self._retry_at

    def failed(self, cause: Cause, since: float) -> None:
        """Note a failure; nothing was stored after `since`, Unix seconds."""
        now = self._clock()
        if not self.line and now - self._stored_since >= _CALM_SECONDS:
            self._delay = 0.0
        self._delay = min(max(2 * self._delay, _FIRST_DELAY_SECONDS), _LONGEST_DELAY_SECONDS)
        self._retry_at = now + self._delay
        self.cause = cause.why
        hint = f"; {cause.hint}" if cause.hint else ""
        self.line = f"{self._what} since {utc(since, CLOCK)}: {cause.why}{hint}"

    def over(self) -> None:
        """Note that writing works."""
        if self.line:
            self._stored_since = self._clock()
        self.cause = self.line = ""

    def retry_now(self) -> None:
        """Try again at once: the last chance before the end."""
        self._retry_at = float("-inf")


def true_cause(error: Exception, path: Path | None, directory: Path) -> Cause:
    """Return why a database can't be written."""
    if isinstance(error, FwtopError) and isinstance(error.__context__, OSError):
        error = error.__context__  # which it was made of, for a reader
    if isinstance(error, OSError) and error.errno:
        return _told(error, directory)
    if isinstance(error, sqlite3.Error):
        return _sqlite_cause(error, path, directory)
    return Cause(safe_text(error, limit=120) or "out of memory")


def is_busy(error: Exception) -> bool:
    """Whether another program was using the database for too long."""
    return _name(error).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def _name(error: Exception) -> str:
    return str(getattr(error, "sqlite_errorname", ""))


def _sqlite_cause(error: sqlite3.Error, path: Path | None, directory: Path) -> Cause:
    """Find out what SQLite does not tell.

    A full quota is a "disk I/O error", and a refused file "unable to open database file". So a file is
    written where it failed, and the kernel says why.
    """
    if is_busy(error):
        which = safe_text(path.name) if path is not None else "the database"
        return Cause(f"another program keeps {which} locked", "fuser names it")
    failed = _probe(directory, _size(path))
    if failed is not None:
        return _told(failed, directory)
    if _name(error).startswith("SQLITE_FULL"):
        if _free_bytes(directory) >= _ROOM_BYTES:
            return Cause("the database has reached its size limit", "what is old is thinned out")
        return _told(OSError(errno.ENOSPC, ""), directory)  # room enough for the probe, but not for more
    code = f" ({_name(error)})" if _name(error) else ""
    return Cause(f"{safe_text(error, limit=80)}{safe_text(code)}", "the disk itself can be written")


def _told(error: OSError, directory: Path) -> Cause:
    place = safe_text(directory)
    number = error.errno or 0
    if number in (errno.EACCES, errno.EPERM) and not os.path.lexists(directory):
        number = errno.ENOENT
    if number in (errno.EACCES, errno.EPERM) and _seems_writable(directory):
        return Cause(
            "its directory was replaced after fwtop had started, and is outside the sandbox", "restart fwtop"
        )
    known = _HINTS.get(number)
    if known is None:
        why = error.strerror or os.strerror(error.errno or errno.EIO)
        return Cause(safe_text(why, limit=80), f"check {place}")
    return Cause(*(words.format(place=place) for words in known))


def _seems_writable(directory: Path) -> bool:
    """Ask access(2), which knows nothing of the sandbox."""
    return os.path.isdir(directory) and os.access(directory, os.W_OK | os.X_OK)


def _size(path: Path | None) -> int:
    """Return the length of the longest file of a database."""
    sizes = [0]
    for suffix in ("", "-wal") if path is not None else ():
        with suppress(OSError):
            sizes.append(os.stat(f"{path}{suffix}").st_size)
    return max(sizes)


def _free_bytes(directory: Path) -> int:
    try:
        found = os.statvfs(directory)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def _probe(directory: Path, offset: int) -> OSError | None:
    """Write into a file, as far from its start as the database is long; return why that fails."""
    path = directory / f".probe-{os.getpid()}"
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return error
    try:
        written = os.pwrite(descriptor, bytes(_PROBE_BYTES), offset)
        if written < _PROBE_BYTES:
            os.pwrite(descriptor, b"\0", offset + written)  # a short write has a reason, told by the next
        os.fsync(descriptor)
    except OSError as error:
        return error
    finally:
        os.close(descriptor)
        with suppress(OSError):
            path.unlink()
    return None


_MOST_EVENTS = 1_000
_MOST_ATTACKS = 8  # whose strongest snapshot is held: some hundred KiB each
_MOST_RULES = 256
_MOST_EVIDENCE = 16
_BEGINNINGS = (EventKind.ATTACK_BEGAN, EventKind.RULE_APPLIED)


class Held(Struct, frozen=True):
    """A snapshot of the gap, and the seconds it speaks for."""

    snapshot: Snapshot
    seconds: float


class Gap(Struct):
    """The time since the last snapshot that was stored.

    Of each attack the snapshot is held in which it was strongest, of each rule what was last known of it: so
    those that began and ended meanwhile are in the report, too.
    """

    since: float  # Unix seconds: the end of the last stored snapshot
    until: float = 0.0  # the end of the last one that was not
    missed: int = 0
    cause: str = ""
    events: list[Event] = field(default_factory=list)
    rules: dict[str, tuple[float, RuleStatus]] = field(default_factory=dict)
    evidence: dict[int, AttackEvidence] = field(default_factory=dict)
    last: Held | None = None
    _strongest: dict[int, tuple[float, Held]] = field(default_factory=dict)

    def miss(
        self, snapshot: Snapshot, events: Iterable[Event], evidence: Iterable[AttackEvidence], cause: str
    ) -> None:
        """Add a snapshot that was not stored, and what was new in it."""
        end = snapshot.at
        held = Held(snapshot, max(end - max(self.since, self.until), 1e-3))
        self.until, self.missed, self.cause = end, self.missed + 1, cause
        self.last = held
        self.events = _bounded([*self.events, *events])
        for attack in snapshot.judgement.harmful:
            before = self._strongest.get(attack.id)
            if before is None and len(self._strongest) >= _MOST_ATTACKS:
                continue
            if before is None or attack.pps > before[0]:
                self._strongest[attack.id] = attack.pps, held
        for status in snapshot.mitigations:
            self.rules.pop(status.rule.id, None)
            self.rules[status.rule.id] = end, status
        while len(self.rules) > _MOST_RULES:
            del self.rules[next(iter(self.rules))]
        for item in evidence:
            before_it = self.evidence.get(item.incident)
            if before_it is None and len(self.evidence) >= _MOST_EVIDENCE:
                continue
            if before_it is None or item.pps > before_it.pps:
                self.evidence[item.incident] = item

    def take_last(self) -> Snapshot | None:
        """Return the last snapshot as one that will be stored after all."""
        if self.last is None:
            return None
        held, self.last = self.last, None
        end, self.missed = self.until, self.missed - 1
        self.until -= held.seconds
        self._strongest = {number: best for number, best in self._strongest.items() if best[1] is not held}
        self.rules = {number: known for number, known in self.rules.items() if known[0] < end}
        return held.snapshot

    def held(self) -> list[Held]:
        """Return the snapshots that are to be stored, oldest first."""
        found = {held.snapshot.at: held for _, held in self._strongest.values()}
        return [found[at] for at in sorted(found)]

    def told(self) -> tuple[Event, ...]:
        """Return the events that stand for the gap in the session, around those in it."""
        if not self.missed:
            return tuple(self.events)
        count = f"{self.missed:,} snapshot{'s' if self.missed > 1 else ''}"
        stopped = Event(self.since, EventKind.STORING_STOPPED, "storing", self.cause)
        resumed = f"{count} could not be stored: {self.cause}"
        return stopped, *self.events, Event(self.until, EventKind.STORING_RESUMED, "storing", resumed)


def _about(event: Event) -> str | int:
    return event.incident or event.subject


def _bounded(events: list[Event]) -> list[Event]:
    """Return at most so many: without proposals first, then of each attack and rule its beginning and end."""
    if len(events) > _MOST_EVENTS:
        events = [event for event in events if event.kind is not EventKind.RULE_PROPOSED]
    if len(events) > _MOST_EVENTS:
        first = {_about(event): event for event in reversed(events) if event.kind in _BEGINNINGS}
        last = {_about(event): event for event in events}
        kept = {id(event) for event in (*first.values(), *last.values())}
        events = [event for event in events if id(event) in kept]
    return events[-_MOST_EVENTS:]
