"""The guardian's memory: what was intended, what the kernel got, how it ended.

Written before the kernel is touched and again after, so that the next start knows what a crash left.
One database serves the guardians of all namespaces; rows carry the boot and the namespace they belong to.
"""

from __future__ import annotations

import json
import sqlite3
import syslog
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fwtop.mitigate.sysctls import Changed
from fwtop.model.bulk import ATTACH_ABOVE, pack_prefixes, unpack_prefixes
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule, State
from fwtop.model.text import safe_text

_SCHEMA_VERSION = 2
_SCHEMA = """
CREATE TABLE IF NOT EXISTS rules (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  boot TEXT NOT NULL, netns INTEGER NOT NULL, variant TEXT NOT NULL,
  rule TEXT NOT NULL, sources BLOB NOT NULL, state TEXT NOT NULL,
  expires REAL NOT NULL, confirm_by REAL,
  packets INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0,
  ended REAL, note TEXT NOT NULL DEFAULT '');
CREATE INDEX IF NOT EXISTS rules_of ON rules (boot, netns, state);
CREATE TABLE IF NOT EXISTS lists (rule INTEGER PRIMARY KEY, sources BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS before (
  boot TEXT NOT NULL, netns INTEGER NOT NULL, family INTEGER NOT NULL, chains TEXT,
  PRIMARY KEY (boot, netns, family));
CREATE TABLE IF NOT EXISTS settings (
  boot TEXT NOT NULL, netns INTEGER NOT NULL, rule INTEGER NOT NULL, name TEXT NOT NULL,
  old INTEGER NOT NULL, new INTEGER NOT NULL, done INTEGER NOT NULL,
  PRIMARY KEY (boot, netns, rule, name));
"""
_KEPT_ROWS = 1000  # of finished rules
_KEPT_SOURCES = 200  # of each of them
_OPEN = "state IN ('intent', 'provisional', 'confirmed')"


@dataclass(frozen=True, slots=True)
class Entry:
    """A rule and its life. Times are CLOCK_MONOTONIC seconds, which hold across processes of one boot."""

    rule: Rule
    variant: str
    state: State
    expires: float
    confirm_by: float | None = None
    packets: int = 0
    bytes: int = 0
    ended: float | None = None  # Unix seconds
    note: str = ""


class Journal:
    """The rows of one namespace in the present boot."""

    def __init__(self, path: Path | None, netns: int) -> None:
        """Open or make the database (0600); raises FwtopError with one line when that is not possible.

        Without a path it is kept in memory: enough for a guardian that only watches. Threads may share
        it: sqlite3 serialises their statements.
        """
        self._netns = netns
        self._boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        try:
            if path is not None:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.touch(mode=0o600, exist_ok=True)
            self._db = sqlite3.connect(
                path or ":memory:", timeout=5.0, isolation_level=None, check_same_thread=False
            )
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_SCHEMA)
            version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
            if version > _SCHEMA_VERSION:
                raise FwtopError(f"{path} was written by a newer fwtop; nothing was installed", 1)
            self._db.execute(f"PRAGMA user_version={_SCHEMA_VERSION}")
        except (OSError, sqlite3.Error) as error:
            line = f"cannot keep the journal {path} ({error}); nothing was installed: make it writable"
            raise FwtopError(line, 1) from None

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def intend(self, rule: Rule, variant: str, expires: float, confirm_by: float | None) -> Entry:
        """Write a rule down before the kernel gets it; the entry's rule has its number."""
        short = replace(rule, match=replace(rule.match, sources=()))
        sources = rule.match.sources
        is_long = len(sources) > ATTACH_ABOVE
        inline = pack_prefixes(sources[:_KEPT_SOURCES] if is_long else sources)
        texts = (variant, json.dumps(short.to_dict()), inline)
        cursor = self._execute(
            "INSERT INTO rules (boot, netns, variant, rule, sources, state, expires, confirm_by) "
            "VALUES (?, ?, ?, ?, ?, 'intent', ?, ?)",
            (self._boot, self._netns, *texts, expires, confirm_by),
        )
        if is_long:  # in a row of its own: an update writes a whole row anew
            row = (cursor.lastrowid, pack_prefixes(sources))
            self._execute("INSERT OR REPLACE INTO lists VALUES (?, ?)", row)
        named = replace(rule, id=str(cursor.lastrowid))
        return Entry(named, variant, State.INTENT, expires, confirm_by)

    def update(self, entry: Entry) -> None:
        """Write an entry's state, times, counts and note; of a rule that is over, a long list is cut."""
        times = (entry.expires, entry.confirm_by, entry.ended)
        counts = (entry.packets, entry.bytes)
        self._execute(
            "UPDATE rules SET state=?, note=?, expires=?, confirm_by=?, ended=?, packets=?, bytes=? "
            "WHERE id=?",
            (entry.state.value, entry.note, *times, *counts, int(entry.rule.id)),
        )
        sources = entry.rule.match.sources
        if entry.ended is None or len(sources) <= _KEPT_SOURCES:
            return
        kept = (pack_prefixes(sources[:_KEPT_SOURCES]), int(entry.rule.id))
        self._execute("UPDATE rules SET sources=? WHERE id=?", kept)
        self._execute("DELETE FROM lists WHERE rule=?", (int(entry.rule.id),))

    def open_entries(self) -> list[Entry]:
        """Return the rules of this namespace and boot that are not over, oldest first."""
        return self._select(f"{_OPEN} ORDER BY id")

    def finished_entries(self, limit: int = 50) -> list[Entry]:
        """Return the rules of this namespace that are over, latest first."""
        return self._select(f"NOT {_OPEN} ORDER BY id DESC LIMIT {limit:d}")

    def find(self, rule_id: str) -> Entry | None:
        """Return a rule of this namespace and boot by its number, over or not."""
        if not (rule_id.isascii() and rule_id.isdigit() and len(rule_id) < 19):  # SQLite's 64 bits
            return None
        return next(iter(self._select(f"id = {int(rule_id)}")), None)

    def close_other_boots(self) -> None:
        """Mark what a reboot ended, and forget all but the last finished rules."""
        self._execute(
            f"UPDATE rules SET state='expired', ended=?, note=? WHERE boot<>? AND {_OPEN}",  # noqa: S608
            (time.time(), "ended by a restart of the machine", self._boot),
        )
        self._execute(f"DELETE FROM lists WHERE rule NOT IN (SELECT id FROM rules WHERE {_OPEN})")  # noqa: S608
        for table in ("before", "settings"):
            self._execute(f"DELETE FROM {table} WHERE boot<>?", (self._boot,))  # noqa: S608
        self._execute(
            f"DELETE FROM rules WHERE NOT {_OPEN} "  # noqa: S608
            "AND id <= (SELECT COALESCE(MAX(id), 0) FROM rules) - ?",
            (_KEPT_ROWS,),
        )

    def remember_before(self, family: int, chains: frozenset[str] | None) -> None:
        """Keep what table raw held before the first rule (None: there was no such table)."""
        text = json.dumps(sorted(chains)) if chains is not None else None
        self._execute(
            "INSERT OR REPLACE INTO before VALUES (?,?,?,?)", (self._boot, self._netns, family, text)
        )

    def forget_before(self, family: int) -> None:
        """Forget it: nothing of ours is left, and what others make from now on is theirs."""
        self._tidy(
            "DELETE FROM before WHERE boot=? AND netns=? AND family=?", (self._boot, self._netns, family)
        )

    def before(self, family: int) -> frozenset[str] | None:
        """Return what `remember_before` kept; unknown counts as: everything was there, so it stays."""
        row = self._execute(
            "SELECT chains FROM before WHERE boot=? AND netns=? AND family=?",
            (self._boot, self._netns, family),
        ).fetchone()
        if row is None:
            return frozenset(("PREROUTING", "OUTPUT"))
        return frozenset(json.loads(row[0])) if row[0] is not None else None

    def remember_setting(self, changed: Changed) -> None:
        """Keep a sysctl's old value; called again when the kernel has the new one."""
        self._execute(
            "INSERT OR REPLACE INTO settings VALUES (?,?,?,?,?,?,?)",
            (
                *(self._boot, self._netns, int(changed.rule_id), changed.name),
                *(changed.old, changed.new, changed.done),
            ),
        )

    def settings(self) -> list[Changed]:
        """Return the sysctls that rules of this namespace changed, the latest first."""
        rows = self._execute(
            "SELECT rule, name, old, new, done FROM settings WHERE boot=? AND netns=? ORDER BY rowid DESC",
            (self._boot, self._netns),
        ).fetchall()
        return [Changed(str(rule), name, old, new, bool(done)) for rule, name, old, new, done in rows]

    def forget_setting(self, rule_id: str, name: str) -> None:
        """Forget one that has its old value again."""
        self._tidy(
            "DELETE FROM settings WHERE boot=? AND netns=? AND rule=? AND name=?",
            (self._boot, self._netns, int(rule_id), name),
        )

    def _execute(self, statement: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        """Run a statement; raises FwtopError with one line, as when an attack's logs filled the disk."""
        try:
            return self._db.execute(statement, values)
        except sqlite3.Error as error:
            raise FwtopError(f"the journal can't be kept ({error}): make room for it") from None

    def _tidy(self, statement: str, values: tuple[Any, ...]) -> None:
        """Run a statement that forgets: what stays does no harm, and must keep no rule from ending."""
        try:
            self._execute(statement, values)
        except FwtopError as error:
            syslog.syslog(syslog.LOG_ERR, safe_text(error))

    def _select(self, condition: str) -> list[Entry]:
        rows = self._execute(
            "SELECT id, rule, COALESCE((SELECT sources FROM lists WHERE lists.rule = rules.id), sources), "  # noqa: S608
            "variant, state, expires, confirm_by, packets, bytes, ended, note "
            f"FROM rules WHERE boot=? AND netns=? AND {condition}",
            (self._boot, self._netns),
        ).fetchall()
        return [_entry(row) for row in rows]


def _entry(row: tuple[Any, ...]) -> Entry:
    number, text, sources, variant, state, expires, confirm_by, packets, size, ended, note = row
    rule = Rule.from_dict(json.loads(text))
    match = replace(rule.match, sources=unpack_prefixes(sources))
    return Entry(
        replace(rule, id=str(number), match=match),
        variant,
        State(state),
        expires,
        confirm_by,
        packets,
        size,
        ended,
        note,
    )
