"""The guardian's journal: which rules were intended, what the kernel got of them, how they ended.

It is written before the kernel is changed and again after, so that the next guardian knows what a crash left.
One database serves the guardians of all namespaces; each row carries its boot and namespace. What ending a
rule needs is first kept on a tmpfs (runtime.py): a full, read-only or damaged journal keeps no rule from
ending, and is rewritten from there. Only a new rule waits for its row, and no longer than writer.py says.
"""

from __future__ import annotations

import contextlib
import syslog
import threading
import time
from functools import partial
from mmap import mmap
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fwtop.guardian.records.database import Database
from fwtop.guardian.records.entry import (
    COLUMNS,
    KEPT_SOURCES,
    Entry,
    entry_of_record,
    entry_of_row,
    is_long,
    own_sources,
    record_of,
    row_of,
    rule_text,
)
from fwtop.guardian.records.former import FormerState
from fwtop.guardian.records.runtime import RuntimeCopy
from fwtop.guardian.records.writer import NoAnswerError
from fwtop.guardian.serving.ownership import single_threaded
from fwtop.model.addresses.prefix_list import pack_prefixes
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule, State
from fwtop.model.text import safe_text

_KEPT_ROWS = 1000  # of finished rules
_PRUNE_EVERY = 50  # rules that ended
_STALLED = "the journal's disk does not answer: rules are recorded in /run only until it does"
_ENDED_STATES = ("expired", "reverted")
_OPEN = "state IN ('intent', 'provisional', 'confirmed')"
_WITH_SOURCES = COLUMNS.replace(
    "sources", "COALESCE((SELECT sources FROM lists WHERE lists.rule = rules.id), sources)"
)


@single_threaded
class Journal:
    """The rows of one namespace in the present boot."""

    def __init__(self, path: Path | None, netns: int, runtime: RuntimeCopy | None = None) -> None:
        """Open or create the database; without a path it is kept in memory.

        A damaged file is replaced, and rewritten from the runtime copy. One that can't be written is read
        into memory; `trouble` then says why no rule may be installed.
        """
        self._netns = netns
        self._boot = boot_id()
        self._runtime = runtime
        self._unwritten: dict[str, Entry] = {}  # updates that are not in the database yet
        self._write_queued = False
        self._lock = threading.Lock()  # of these two, which the writer's thread changes as well
        self._ended = 0
        self._warnings: list[str] = []
        ours = f"boot='{self._boot}' AND netns={netns:d}"
        self._db = Database(path, ours, self._warn, self._take_copy)
        self.former = FormerState(self._db, runtime, (self._boot, netns), self._warn_unless_stalled)
        self._db.open()
        self.former.load()

    def close(self) -> None:
        """Write what is left and close the database."""
        self._db.post(self._write_pending)
        self._db.close()

    @property
    def warnings(self) -> list[str]:
        """What the operator should know."""
        return [*self._warnings, *([_STALLED] if self._db.stalled else [])]

    @property
    def lost(self) -> bool:
        """Whether the kernel may have rules of this boot that no row knows."""
        return self._db.lost

    def trouble(self) -> str:
        """Return why no rule can be journalled, and so none installed; "" if all is well.

        A disk that does not answer is no reason: `warnings` tells of it.
        """
        if self._db.stalled:
            return ""
        if self._unwritten:
            self._write_soon()
        try:
            return self._db.trouble()
        except NoAnswerError:
            return ""

    def intend(self, rule: Rule, variant: str, expires: float, confirm_by: float | None) -> Entry:
        """Journal a rule before the kernel gets it; the rule of the returned entry is numbered.

        Raises FwtopError.
        """
        if trouble := self.trouble():
            raise FwtopError(trouble)
        entry = Entry(rule, variant, State.INTENT, expires, confirm_by)
        if self._runtime is None:
            return self._db.ask(lambda: self._insert_numbered(entry))
        try:
            return self._intend(entry, self._runtime)
        except OSError as error:
            raise FwtopError(f"rules can't be recorded in /run ({error}); nothing was installed") from None

    def _intend(self, entry: Entry, runtime: RuntimeCopy) -> Entry:
        """Write a new rule to the tmpfs and the database; the first will do on a disk that hangs."""
        taken = 0
        while True:
            entry = replace(entry, rule=replace(entry.rule, id=str(runtime.take_number(taken))))
            copied = self._copy(entry, with_sources=True)
            try:
                taken = self._db.ask(partial(self._insert_new, entry))
            except NoAnswerError:
                if copied:
                    return entry
                self._abandon(entry)
                raise
            except FwtopError:
                self._abandon(entry)
                raise
            if not taken:
                return entry
            runtime.drop(f"rule-{entry.rule.id}")

    def _abandon(self, entry: Entry) -> None:
        """Forget a rule that can't be recorded."""
        self._db.tidy("DELETE FROM rules WHERE id=?", (int(entry.rule.id),))
        if self._runtime is not None:
            self._runtime.drop(f"rule-{entry.rule.id}")

    def _insert_new(self, entry: Entry) -> int:
        """Insert a rule; returns the highest number that is taken if its own is, else 0."""
        if not self._db.query("SELECT id FROM rules WHERE id=?", (int(entry.rule.id),)):
            self._insert(entry)  # a damaged file was perhaps rewritten meanwhile, with this rule
            return 0
        return int(self._db.query("SELECT MAX(id) FROM rules", ())[0][0])

    def _insert_numbered(self, entry: Entry) -> Entry:
        """Insert a rule with the number that the database gives it."""
        highest = self._db.query("SELECT seq FROM sqlite_sequence WHERE name='rules'", ())
        number = (int(highest[0][0]) if highest else 0) + 1
        entry = replace(entry, rule=replace(entry.rule, id=str(number)))
        self._insert(entry, replace_row=False)
        return entry

    def update(self, entry: Entry) -> None:
        """Keep an entry's state, times, counts and note: at once on the tmpfs, soon in the database.

        A finished rule's long list is cut.
        """
        copied = self._copy(entry)
        with self._lock:
            self._unwritten[entry.rule.id] = entry
        if copied:
            self._write_soon()
        else:
            with contextlib.suppress(FwtopError):  # retried later
                self._db.ask(self._write_pending)
        if entry.ended is not None:
            self._ended += 1
            if self._ended % _PRUNE_EVERY == 0:
                self._prune()

    def record(self, entry: Entry) -> None:
        """Add a rule that was found in the kernel with its number; raises FwtopError if that is taken."""
        try:
            if self._runtime is not None:
                self._runtime.note_number(int(entry.rule.id))
            self._db.ask(lambda: self._insert(entry, replace_row=False))
        except NoAnswerError:
            if not self._copy(entry, with_sources=True):
                raise
        except OSError as error:
            raise FwtopError(f"rules can't be recorded in /run ({error})") from None
        else:
            self._copy(entry, with_sources=True)

    def open_entries(self) -> list[Entry]:
        """Return the rules of this namespace and boot that have not ended, oldest first."""
        found = self._select(f"{_OPEN} ORDER BY id")
        return found if found is not None else self._copied_entries()

    def finished_entries(self, limit: int = 50) -> list[Entry]:
        """Return the rules of this namespace that have ended, latest first."""
        return self._select(f"NOT {_OPEN} ORDER BY id DESC LIMIT {limit:d}") or []

    def find(self, rule_id: str) -> Entry | None:
        """Return a rule of this namespace and boot by its number, active or not."""
        if not (rule_id.isascii() and rule_id.isdigit() and len(rule_id) < 19):  # SQLite's 64 bits
            return None
        found = self._select(f"id = {int(rule_id)}")
        known = found if found is not None else self._copied_entries()
        return next((entry for entry in known if entry.rule.id == str(int(rule_id))), None)

    def close_other_boots(self) -> None:
        """Mark the rules that a restart of the machine ended, and prune."""
        self._db.tidy(
            f"UPDATE rules SET state='expired', ended=?, note=? WHERE boot<>? AND {_OPEN}",  # noqa: S608
            (time.time(), "ended by a restart of the machine", self._boot),
        )
        for table in ("before", "settings"):
            self._db.tidy(f"DELETE FROM {table} WHERE boot<>?", (self._boot,))  # noqa: S608
        self._prune()

    def _prune(self) -> None:
        """Delete all but the latest finished rules, and lists without a rule."""
        self._db.tidy(f"DELETE FROM lists WHERE rule NOT IN (SELECT id FROM rules WHERE {_OPEN})", ())  # noqa: S608
        self._db.tidy(
            f"DELETE FROM rules WHERE NOT {_OPEN} "  # noqa: S608
            "AND id <= (SELECT COALESCE(MAX(id), 0) FROM rules) - ?",
            (_KEPT_ROWS,),
        )

    def _select(self, condition: str) -> list[Entry] | None:
        """Return the rules that meet a condition, without those that make no sense; None: unreadable."""
        if self._db.stalled:
            return None
        try:
            rows = self._db.query(
                f"SELECT {_WITH_SOURCES} FROM rules WHERE boot=? AND netns=? AND {condition}",  # noqa: S608
                (self._boot, self._netns),
            )
        except FwtopError as error:
            self._warn_unless_stalled(error)
            return None
        found = []
        for row in rows:
            try:
                found.append(entry_of_row(row))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                self._warn(f"rule {row[0]} in the journal is not understood ({error!r}) and left out")
        return found

    def _take_copy(self) -> None:
        """Bring the rows of this namespace up to date with the runtime copy."""
        if self._runtime is None:
            return
        try:
            self._db.number_from(self._runtime.numbers())
            for name, record, blob in self._runtime.records("rule"):
                self._take_rule(name, record, blob)
            self.former.take_copy()
        except Exception as error:  # whatever a record holds, the guardian starts
            self._warn(f"the journal could not be brought up to date: {error}")

    def _copied_entries(self) -> list[Entry]:
        """Return the rules on the tmpfs that have not ended, oldest first."""
        found = []
        for name, record, blob in self._runtime.records("rule") if self._runtime is not None else ():
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                found.append(entry_of_record(name.partition("-")[2], record, blob))
        return sorted((entry for entry in found if entry.ended is None), key=lambda entry: int(entry.rule.id))

    def _take_rule(self, name: str, record: dict[str, Any], blob: bytes | None) -> None:
        try:
            entry = entry_of_record(name.partition("-")[2], record, blob)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._warn(f"{name} in the runtime copy is not understood ({error!r}) and left out")
            return
        rows = self._db.query(
            "SELECT boot, netns, state, expires, confirm_by, rule, note, typeof(packets), typeof(bytes) "
            "FROM rules WHERE id=?",
            (int(entry.rule.id),),
        )
        row = rows[0] if rows else None
        times = (entry.expires, entry.confirm_by)
        wanted = (
            *(self._boot, self._netns, entry.state.value, *times, rule_text(entry.rule), entry.note),
            *("integer", "integer"),  # counts may differ, but must be counts
        )
        if row == wanted:
            return
        ours = row is None or row[:2] == wanted[:2]
        if row is None or (ours and row[2] not in _ENDED_STATES):
            self._insert(entry)
            ended = entry.ended is not None
        else:
            ended = ours
        if ended and self._runtime is not None:
            self._runtime.drop(name)  # a crash came before the copy was dropped

    def _insert(self, entry: Entry, *, replace_row: bool = True) -> None:
        """Write a whole row; raises FwtopError if its number is taken and must not be replaced."""
        verb = "INSERT OR REPLACE" if replace_row else "INSERT"
        self._db.execute(
            f"{verb} INTO rules ({COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
            row_of(entry, self._boot, self._netns),
        )
        self._write_list(entry)

    def _write_list(self, entry: Entry) -> None:
        """Write a long list into a row of its own, as SQLite rewrites a whole row with each update."""
        if is_long(entry.rule):
            self._db.put_list(int(entry.rule.id), pack_prefixes(entry.rule.match.sources))

    def _write_soon(self) -> None:
        """Have the updates that are due written, once for many of them."""
        with self._lock:
            if self._write_queued:
                return
            self._write_queued = True
        self._db.post(self._write_pending)

    def _write_pending(self) -> None:
        """Write the updates that are due, oldest first; raises FwtopError. In the writer's thread."""
        with self._lock:
            self._write_queued = False
            due = list(self._unwritten.items())
        for rule_id, entry in due:
            self._write_update(entry)
            if entry.ended is not None and self._runtime is not None:
                self._runtime.drop(f"rule-{rule_id}")
            with self._lock:
                if self._unwritten.get(rule_id) is entry:
                    del self._unwritten[rule_id]

    def _write_update(self, entry: Entry) -> None:
        number, sources = int(entry.rule.id), own_sources(entry.rule)
        cut = max(len(sources) - KEPT_SOURCES, 0) if entry.ended is not None else 0
        times, counts = (entry.expires, entry.confirm_by, entry.ended), (entry.packets, entry.bytes)
        self._db.execute(
            "UPDATE rules SET rule=?, state=?, note=?, expires=?, confirm_by=?, ended=?, packets=?, bytes=? "
            "WHERE id=?",
            (rule_text(entry.rule, cut), entry.state.value, entry.note, *times, *counts, number),
        )
        if cut:
            kept = pack_prefixes(sources[:KEPT_SOURCES])
            self._db.execute("UPDATE rules SET sources=? WHERE id=?", (kept, number))
            self._db.execute("DELETE FROM lists WHERE rule=?", (number,))

    def _copy(self, entry: Entry, *, with_sources: bool = False) -> bool:
        sources = pack_prefixes(own_sources(entry.rule)) if with_sources else None
        return self._put(f"rule-{entry.rule.id}", record_of(entry), sources)

    def _put(self, name: str, record: dict[str, Any], blob: bytes | mmap | None = None) -> bool:
        """Keep a record on the tmpfs; returns whether it is there."""
        return self._runtime is not None and self._runtime.put(name, record, blob)

    def _warn_unless_stalled(self, error: FwtopError) -> None:
        if not isinstance(error, NoAnswerError):
            self._warn(str(error))

    def _warn(self, line: str) -> None:
        text = safe_text(line, limit=400)
        if text not in self._warnings:
            self._warnings.append(text)
            syslog.syslog(syslog.LOG_ERR, text)


def boot_id() -> str:
    """Return the kernel's identifier of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
