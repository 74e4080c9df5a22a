"""What a session lacks when its disk was full, its file deleted, damaged or locked, and what it has."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from stored_samples import START, attack, evidence, rule, snapshot, status
from stored_sessions import Clock, path_of, writer

import fwtop.store.database
from fwtop.model.rule import State
from fwtop.model.traffic.session import EventKind, SessionRecord
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.report.formats import written
from fwtop.report.summary import Digest, digest
from fwtop.store.directory import lock_session, session_id
from fwtop.store.reader import load_session, playback, replay
from fwtop.store.writer import SessionWriter

HERE = Path(__file__).resolve().parent
STORED, MISSED = 10, 30  # ticks before the gap, and in it
ATTACKS = {
    "ntp_amplification": (12, 20),
    "syn_flood": (30, 60),
}  # seconds from and to; the first is in the gap
RULES = {"7": (14, 19), "8": (32, 60)}


def tick(second: int) -> Snapshot:
    """One attack and its rule begin and end in the gap, others outlast it."""
    at = START + second
    attacks = tuple(
        replace(attack(kind, 50_000.0 + second, since=START + since), title=kind.upper())
        for kind, (since, until) in ATTACKS.items()
        if since <= second < until
    )
    rules = tuple(
        status(
            replace(rule(int(number), created=START + since), summary=f"rule {number}"),
            at,
            state=State.CONFIRMED,
        )
        for number, (since, until) in RULES.items()
        if since <= second < until
    )
    return snapshot(at, 60_000.0 if attacks else 1_000.0, attacks=attacks, mitigations=rules, busy=False)


def write(session: SessionWriter, clock: Clock, seconds: range) -> None:
    for second in seconds:
        clock.now = second
        one = tick(second)
        session.write(one, evidence=evidence(one))


def check_told(record: SessionRecord) -> Digest:
    """Check that all attacks and rules are in the report."""
    told = digest(record)
    assert {span.kind for span in told.spans} == set(ATTACKS)
    for span in told.spans:
        since, until = ATTACKS[span.kind]
        assert span.title == span.kind.upper()
        assert span.began == START + since
        assert span.peak_pps == pytest.approx(50_000 + until, abs=2)
        assert span.detail.tables
    assert {effect.rule.id: effect.rule.summary for effect in told.effects} == {"7": "rule 7", "8": "rule 8"}
    assert all(effect.packets > 0 for effect in told.effects)
    return told


def gap_of(record: SessionRecord) -> tuple[float, float]:
    marks = [event for event in record.events if event.kind.value.startswith("storing_")]
    assert [event.kind for event in marks] == [EventKind.STORING_STOPPED, EventKind.STORING_RESUMED]
    return marks[0].at - START, marks[1].at - START


@pytest.fixture
def small_disk(tmp_path: Path, root_required: None) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)], check=True, timeout=60)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True, timeout=60)


def sandboxed(program: str, place: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, HERE / "store_in_sandbox.py", place, program, *arguments],
        env={**os.environ, "PYTHONPATH": f"{HERE.parents[1]}:{HERE}"},
        stdout=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


def in_sandbox(program: str, place: Path, *arguments: str) -> Any:
    with sandboxed(program, place, *arguments) as process:
        said = process.communicate(timeout=120)[0]
    assert process.returncode == 0
    return json.loads(said)


def test_a_full_disk_leaves_a_marked_gap_and_every_attack_and_rule_in_the_report(small_disk: Path) -> None:
    answer = in_sandbox("full", small_disk)
    assert answer["before"] == []
    since = "not stored since 03:12:53: the disk is full; free some space on the disk of"
    assert answer["meanwhile"] == [f"{since} {small_disk}/sessions"]
    assert answer["after"] == []
    record = load_session(Path(answer["path"]))
    told = check_told(record)
    assert gap_of(record) == (STORED - 1, STORED + MISSED - 1)
    stored = [
        at - START for at in (one.at for one in record.ticks) if not STORED <= at - START < STORED + MISSED
    ]
    assert stored == [*range(STORED), *range(STORED + MISSED, 60)]
    # Of what was not stored, only the strongest moments count: a second each.
    assert told.sums.packets == pytest.approx(1_000 * (STORED + 4) + 60_000 * (20 + 2), rel=0.02)
    text = written(told, "html")
    assert "Nothing was stored from 03:12:53 to 03:13:23 (30 s): the disk is full." in told.notes
    assert text.count('class="unstored"') == 1
    with playback(record.info.path) as played:
        points = [point.at - START for point in played.series(START - 60, START + 60)]
    assert len([at for at in points if STORED <= at < STORED + MISSED]) <= 2
    assert len(list(replay(record.info.path))) == 60 - MISSED + len(ATTACKS)


def test_what_a_session_could_not_store_is_tried_a_last_time_at_its_end(small_disk: Path) -> None:
    answer = in_sandbox("full", small_disk, "to the end")
    record = load_session(Path(answer["path"]))
    check_told(record)
    assert gap_of(record) == (STORED - 1, 58)
    assert record.info.state == "clean"


class Failing(sqlite3.Connection):
    """Fails at one statement, as SQLite does, and notes all."""

    made: list[str]
    at: int

    def _note(self, sql: str) -> None:
        Failing.made.append(sql)
        if len(Failing.made) - 1 == Failing.at:
            raise sqlite3.OperationalError("disk I/O error")

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:  # type: ignore[override]
        self._note(sql)
        return super().execute(sql, *values)

    def executemany(self, sql: str, *values: Any) -> sqlite3.Cursor:  # type: ignore[override]
        self._note(sql)
        return super().executemany(sql, *values)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect

    class Module:
        Connection, Error, DatabaseError = sqlite3.Connection, sqlite3.Error, sqlite3.DatabaseError
        SQLITE_LIMIT_LENGTH = sqlite3.SQLITE_LIMIT_LENGTH

        @staticmethod
        def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
            return connect(*arguments, factory=Failing, **options)

    monkeypatch.setattr(fwtop.store.database, "sqlite3", Module)


def recorded(state: Path, at: int) -> tuple[SessionWriter, set[str]]:
    """Record a session with one failure, of which a tick and its tidying up go wrong."""
    clock = Clock()
    session = writer(state, clock=clock)
    Failing.made, Failing.at = [], -1
    write(session, clock, range(12))
    session._tidy_at = 0.0
    Failing.made, Failing.at = [], at
    write(session, clock, range(12, 13))
    made = set(Failing.made)
    Failing.at = -1
    write(session, clock, range(13, 60))
    assert session.problem == session.warning == ""
    session.close()
    return session, made


def test_a_failure_of_any_statement_loses_at_most_its_tick(failing: None, tmp_path: Path) -> None:
    _, whole = recorded(tmp_path / "whole", -1)
    assert len(whole) > 20
    for at in range(len(whole)):
        session = recorded(tmp_path / str(at), at)[0]
        record = load_session(path_of(session))
        check_told(record)
        assert len(record.ticks) >= 59
        assert len(record.ticks) == 60 or gap_of(record) == (11, 12)


def test_a_deleted_file_is_followed_by_a_session_that_tells_all_again(tmp_path: Path) -> None:
    clock = Clock()
    session = writer(tmp_path, clock=clock)
    write(session, clock, range(40))
    gone = path_of(session)
    gone.unlink()
    write(session, clock, range(40, 60))
    assert session.problem == ""
    assert session.news == f"{gone.name} was deleted while it was recorded; a new session was begun"
    session.close()
    record = load_session(path_of(session))
    assert [span.kind for span in digest(record).spans] == ["syn_flood"]
    assert [effect.rule.id for effect in digest(record).effects] == ["8"]
    assert len(record.ticks) == 20


def test_a_damaged_file_is_set_aside_and_followed_by_a_new_session(tmp_path: Path) -> None:
    clock = Clock()
    session = writer(tmp_path, clock=clock)
    write(session, clock, range(40))
    damaged = path_of(session)
    with closing(sqlite3.connect(damaged)) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with open(damaged, "r+b") as file:
        file.write(os.urandom(200_000))
    write(session, clock, range(40, 60))
    assert session.problem == ""
    assert session.news.startswith(f"{damaged.name} is damaged (")
    session.close()
    assert Path(f"{damaged}.damaged").exists()
    record = load_session(path_of(session))
    assert [span.kind for span in digest(record).spans] == ["syn_flood"]
    assert [effect.rule.id for effect in digest(record).effects] == ["8"]


def test_a_lock_of_another_program_is_named_and_waited_for(tmp_path: Path) -> None:
    clock = Clock()
    session = writer(tmp_path, clock=clock)
    write(session, clock, range(10))
    with closing(sqlite3.connect(path_of(session), isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        write(session, clock, range(10, 12))
        assert f"03:12:53: another program keeps {path_of(session).name} locked; fuser" in session.problem
    write(session, clock, range(12, 60))
    assert session.problem == ""
    session.close()
    check_told(load_session(path_of(session)))


def test_two_recorders_may_begin_in_the_same_second(tmp_path: Path) -> None:
    (tmp_path / "sessions").mkdir()
    first = tick(0)
    held = lock_session(tmp_path / "sessions" / f"{session_id(first.started, ('eth0',))}.db")
    session = writer(tmp_path)
    session.write(first)
    assert session.problem == ""
    assert path_of(session).stem.endswith("-2")
    session.close()
    os.close(held)


def test_a_directory_that_was_replaced_is_outside_the_sandbox_and_told_so(tmp_path: Path) -> None:
    place = tmp_path / "state"
    (place / "sessions").mkdir(parents=True)
    with sandboxed("replaced", place, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        place.rename(tmp_path / "old")
        (place / "sessions").mkdir(parents=True)
        said = process.communicate("\n", timeout=60)[0]
    why = "its directory was replaced after fwtop had started, and is outside the sandbox; restart fwtop"
    assert json.loads(said) == {"problem": f"not stored since 03:12:39: {why}"}


def test_a_read_only_disk_is_named_and_stored_on_once_it_is_writable(
    tmp_path: Path, root_required: None
) -> None:
    place = tmp_path / "state"
    place.mkdir()
    subprocess.run(["mount", "--bind", place, place], check=True, timeout=60)
    subprocess.run(["mount", "-o", "remount,bind,ro", place], check=True, timeout=60)
    clock = Clock()
    session = writer(place, clock=clock)
    try:
        write(session, clock, range(3))
        why = f"the file system is read-only; remount {place}/sessions read-write"
        assert session.problem == f"not stored since 03:12:39: {why}"
    finally:
        subprocess.run(["umount", place], check=True, timeout=60)
    write(session, clock, range(3, 60))
    assert session.problem == ""
    check_told(load_session(path_of(session)))
    session.close()
