"""The journal's database while it is open: a damaged file is replaced, an unwritable one read into memory.

A thread of its own uses the file (writer.py): a disk that does not answer stops nobody.
"""

from __future__ import annotations

import contextlib
import sqlite3
import syslog
from collections.abc import Callable, Iterable
from mmap import mmap
from pathlib import Path
from typing import Any, TypeVar

from fwtop.guardian.records import journal_file
from fwtop.guardian.records.writer import NoAnswerError, Writer
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_T = TypeVar("_T")
_PIECE = 1 << 20  # bytes


class Database:
    """One connection, used by the thread of `Writer` alone."""

    def __init__(
        self, path: Path | None, ours: str, warn: Callable[[str], None], reopened: Callable[[], None]
    ) -> None:
        """Take the file (0600); None: a database in memory.

        `ours` is the condition on the rows that are copied when the file becomes writable. `warn` tells the
        operator something; `reopened` is called when a file was opened that may lack what is known.
        """
        self._path = path
        self._ours = ours
        self._warn = warn
        self._reopened = reopened
        self._unwritable = ""
        self._inode = 0
        self._reopening = False
        self._complaint = ""  # the last one logged
        self.lost = False  # the kernel may have rules of this boot that no row knows
        self._db: sqlite3.Connection
        self._writer = Writer()

    def open(self) -> None:
        """Open or create the file; where the disk does not answer, that is done later."""
        try:
            self.ask(self._begin)
        except NoAnswerError:
            self.lost = True

    @property
    def stalled(self) -> bool:
        """Whether the disk does not answer at present."""
        return self._writer.stalled

    def close(self) -> None:
        """Close the connection once all is written, unless the disk does not answer."""
        self._writer.finish(self._close)

    def ask(self, work: Callable[[], _T]) -> _T:
        """Have the writer do something and return its result.

        Raises what it raises, and NoAnswerError when that takes too long; it is done later then.
        """
        return self._writer.ask(work)

    def post(self, work: Callable[[], object]) -> None:
        """Have the writer do something later, in the order of the calls; an error is logged."""

        def logged() -> None:
            try:
                work()
            except FwtopError as error:
                if (line := safe_text(error)) != self._complaint:
                    syslog.syslog(syslog.LOG_ERR, line)
                self._complaint = line
            else:
                self._complaint = ""

        self._writer.post(logged)

    def trouble(self) -> str:
        """Return why nothing can be written, "" if all is well. Tries again: the disk may have room now.

        Raises NoAnswerError.
        """
        return self.ask(self._trouble)

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        """Run a statement that writes; raises FwtopError, for example on a full disk."""
        return self.ask(lambda: self._mending(lambda: self._db.execute(statement, values)))

    def put_list(self, number: int, encoded: bytes | mmap) -> None:
        """Write a rule's long list piece by piece, which takes no memory of its size; raises FwtopError."""

        def work() -> None:
            self._db.execute("BEGIN")
            try:
                self._db.execute(
                    "INSERT OR REPLACE INTO lists VALUES (?, zeroblob(?))", (number, len(encoded))
                )
                with self._db.blobopen("lists", "sources", number) as blob, memoryview(encoded) as view:
                    for start in range(0, len(view), _PIECE):
                        blob.write(view[start : start + _PIECE])
                self._db.execute("COMMIT")
            except BaseException:
                self._db.rollback()
                raise

        self.ask(lambda: self._mending(work))

    def query(self, statement: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Return all rows of an answer; raises FwtopError."""
        return self.ask(lambda: self._mending(lambda: self._db.execute(statement, values).fetchall()))

    def tidy(self, statement: str, values: tuple[Any, ...]) -> None:
        """Run a statement that only deletes, later: the rows do no harm if they stay."""
        self.post(lambda: self.execute(statement, values))

    def number_from(self, taken: Iterable[int]) -> None:
        """Number new rules above those taken; raises sqlite3.Error. In the writer's thread only."""
        journal_file.number_from(self._db, taken)

    def _begin(self) -> None:
        self._db = self._open()
        self._reopened()

    def _close(self) -> None:
        self._db.close()

    def _trouble(self) -> str:
        if self._path is not None and (self._unwritable or self._was_replaced()):
            self._reopen()
        return self._unwritable

    def _mending(self, work: Callable[[], _T]) -> _T:
        """Use the database; if the file turns out to be damaged, replace it and try once more."""
        try:
            return work()
        except sqlite3.Error as error:
            if self._reopening or self._path is None or not journal_file.is_damage(error):
                raise FwtopError(f"the journal can't be kept ({error}): make room for it") from None
        self._reopening = True
        try:
            self._reopen()
        finally:
            self._reopening = False
        try:
            return work()
        except sqlite3.Error as error:
            raise FwtopError(f"the journal can't be kept ({error})") from None

    def _open(self) -> sqlite3.Connection:
        if self._path is None:
            return journal_file.connect(None)
        db = self._connect(self._path)
        if db is None:
            syslog.syslog(syslog.LOG_ERR, safe_text(self._unwritable))
            self.lost = True
            db = journal_file.readable_copy(self._path)
        return db

    def _connect(self, path: Path) -> sqlite3.Connection | None:
        """Open the file, or replace a damaged one; None if it can't be written (`_unwritable` says why)."""
        self.lost = not path.exists() or not path.stat().st_size  # a crash leaves an empty file easily
        aside: Path | None = None
        try:
            found = path.stat().st_ino if path.exists() else 0
            try:
                db = journal_file.connect(path)
            except sqlite3.Error as error:
                if not journal_file.is_damage(error):
                    raise
                if path.stat().st_ino == found:  # otherwise another namespace's guardian has replaced it
                    aside = journal_file.set_aside(path)
                    self._warn(f"the journal {path} was damaged ({error}): it was moved to {aside}")
                self.lost = True
                db = journal_file.connect(path)
            self._unwritable, self._inode = "", path.stat().st_ino
        except journal_file.NewerJournalError:
            self._unwritable = f"{path} was written by a newer fwtop; nothing was installed"
            return None
        except (OSError, sqlite3.Error) as error:
            self._unwritable = (
                f"cannot keep the journal {path} ({error}); nothing was installed: make it writable"
            )
            return None
        if aside is not None:
            journal_file.salvage(aside, db)
        return db

    def _was_replaced(self) -> bool:
        """Return whether another guardian set the file aside, or somebody removed it."""
        try:
            return self._path is not None and self._path.stat().st_ino != self._inode
        except OSError:
            return True

    def _reopen(self) -> None:
        """Open the file again, with the rows of this namespace that are known in memory."""
        known, was_in_memory = self._db, bool(self._unwritable)
        db = self._connect(self._path) if self._path is not None else None
        if db is None and was_in_memory:
            return
        self._db = db if db is not None else journal_file.connect(None)
        if was_in_memory:
            for table in ("before", "settings"):
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute(f"DELETE FROM {table} WHERE {self._ours}")  # noqa: S608 - the kernel's values
            journal_file.copy_rows(known, self._db, self._ours)
        known.close()
        self._reopened()
