"""Sessions rolled up, of another format, left behind by a crash, or damaged."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest
from stored_samples import START, session_ticks, snapshot
from stored_sessions import Clock, as_read, path_of, sample_session, writer

from fwtop.model.errors import FwtopError
from fwtop.report.summary import digest
from fwtop.store.directory import drop_old, size_bytes
from fwtop.store.reader import list_sessions, load_session, replay, session_info
from fwtop.store.rows import VERSION
from fwtop.store.thinning import roll_up
from fwtop.store.upkeep import put_in_order


def connected(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


def test_rolled_up_rows_average_and_keep_peaks_and_sums(tmp_path: Path) -> None:
    path = sample_session(tmp_path)
    before = digest(load_session(path)).sums
    database = connected(path)
    for age in (700.0, 90_000.0, 900_000.0, 9_000_000.0):
        roll_up(database, START + age)
        assert database.execute("SELECT count(*) FROM attack").fetchone()[0] > 0
    spans = database.execute("SELECT DISTINCT span FROM tick").fetchall()
    rolled, counted = database.execute("SELECT count(*), sum(seconds) FROM tick").fetchone()
    attack = database.execute("SELECT kind, at, span, pps FROM attack").fetchall()
    rules = database.execute("SELECT rule_id, state, packets FROM rule_tick").fetchall()
    ends = database.execute("SELECT at FROM tick").fetchall()
    database.close()
    assert spans == [(86_400,)]
    assert rolled == 1
    assert counted == pytest.approx(120, abs=1)
    ((kind, end, span, pps),) = attack
    assert (kind, end, span) == ("dns_amplification", ends[0][0], 86_400)
    assert pps * counted == pytest.approx(80 * 185_000, rel=0.05), (
        "averaged over all ticks, as the traffic is"
    )
    record = load_session(path)
    assert rules == [("1", "reverted", max(point.packets for point in record.rule_ticks))]
    after = digest(record).sums
    for name in ("packets", "dropped", "accepted"):
        assert getattr(after, name) == pytest.approx(getattr(before, name), rel=0.05)
    assert (after.peak_pps, after.conntrack_peak) == (before.peak_pps, before.conntrack_peak)
    assert session_info(path).peak_pps == 200_000


def test_rolling_up_is_repeatable_and_leaves_unfinished_spans(tmp_path: Path) -> None:
    path = sample_session(tmp_path)
    database = connected(path)
    now = START + 86_400 + 70
    roll_up(database, now)
    once = database.execute("SELECT at, span, pps FROM tick ORDER BY at").fetchall()
    roll_up(database, now)
    assert database.execute("SELECT at, span, pps FROM tick ORDER BY at").fetchall() == once
    database.close()
    limit = (START + 70) // 60 * 60
    assert {span for at, span, _ in once if at <= limit} == {60}
    assert {span for at, span, _ in once if at > limit} == {1}


@pytest.mark.parametrize("spacing", [1.3, 4.1])
def test_no_time_is_lost_between_two_times_of_rolling_up(tmp_path: Path, spacing: float) -> None:
    database = connected(sample_session(tmp_path))
    database.execute("DELETE FROM tick")
    times = [START + number * spacing for number in range(1, int(600 / spacing))]
    for now in range(30, 1_260, 30):
        arrived = ((at, 5_000.0) for at in times if START + now - 30 < at <= START + now)
        database.executemany("INSERT INTO tick(at, pps) VALUES (?, ?)", arrived)
        roll_up(database, START + now)
    spans, seconds, packets = database.execute(
        "SELECT group_concat(DISTINCT span), sum(seconds), sum(seconds * pps) FROM tick"
    ).fetchone()
    database.close()
    assert spans == "1"
    assert seconds == pytest.approx(times[-1] - times[0], abs=1)
    assert packets == pytest.approx(5_000 * seconds)


def test_a_flood_of_ticks_is_rolled_up_earlier_to_stay_within_the_limit(tmp_path: Path) -> None:
    clock, limit = Clock(), 900_000
    session = writer(tmp_path, clock=clock, max_bytes=limit)
    for place in range(6_000):
        clock.now = place * 1.0
        session.write(snapshot(START + clock.now, 9_000.0 + place, busy=False))
        assert session.problem == ""
    session.close()
    record = load_session(path_of(session))
    assert size_bytes(path_of(session)) <= limit // 2
    spans = {tick.seconds for tick in record.ticks}
    assert None in spans, "the newest ticks are whole"
    assert max(seconds for seconds in spans if seconds) > 1, "older ones were averaged"
    assert digest(record).sums.packets == pytest.approx(
        sum(9_000.0 + place for place in range(6_000)), rel=0.02
    )


def test_a_session_of_another_format_is_not_touched_by_readers_and_then_set_aside(tmp_path: Path) -> None:
    path = sample_session(tmp_path)
    with connected(path) as database:
        database.execute(f"PRAGMA user_version={VERSION - 1}")
    database.close()
    other = path.read_bytes()
    with pytest.raises(FwtopError, match=f"format {VERSION - 1}, this fwtop reads {VERSION}.*not changed"):
        load_session(path)
    assert [info.state for info in list_sessions(path.parent)] == ["damaged"]
    assert path.read_bytes() == other
    (line,) = put_in_order(path.parent)
    assert f"written in format {VERSION - 1}" in line
    assert Path(f"{path}.damaged").read_bytes() == other


def crashed_session(state: Path) -> Path:
    """A session as kill -9 leaves it: a WAL that nobody merged, no lock held."""
    session = writer(state, "eth9")
    for tick in session_ticks():
        session.write(tick)
    path = path_of(session)
    left = {name: Path(f"{path}{name}").read_bytes() for name in ("", "-wal", "-shm")}
    session.close()
    for name, data in left.items():
        Path(f"{path}{name}").write_bytes(data)
    return path


def names(directory: Path) -> list[str]:
    return sorted(path.suffix for path in directory.iterdir())


def test_what_a_crash_left_is_merged_by_the_next_session(tmp_path: Path) -> None:
    path = crashed_session(tmp_path)
    assert names(path.parent) == [".db", ".db-shm", ".db-wal"]
    assert put_in_order(path.parent) == []
    assert names(path.parent) == [".db"]
    assert session_info(path).state == "crashed"
    assert list(replay(path)) == as_read(session_ticks(), path)


def test_a_running_session_is_left_alone(tmp_path: Path) -> None:
    session = writer(tmp_path)
    session.write(session_ticks()[0])
    assert put_in_order(path_of(session).parent) == []
    assert Path(f"{path_of(session)}-wal").exists()
    session.write(session_ticks()[1])
    assert session.problem == ""
    session.close()


def test_a_damaged_session_is_set_aside_and_goes_with_its_age(tmp_path: Path) -> None:
    path, sound = crashed_session(tmp_path), sample_session(tmp_path)
    with open(path, "r+b") as file:
        for page in range(2, 12):
            file.seek(page * 4096)
            file.write(os.urandom(4096))
    Path(f"{path}-wal").write_bytes(b"")
    lines = put_in_order(path.parent)
    assert len(lines) == 1
    assert lines[0].startswith(f"{path.name} is damaged (")
    assert lines[0].endswith(f"it was renamed to {path.name}.damaged")
    assert not path.exists()
    assert put_in_order(path.parent) == []
    assert [info.path for info in list_sessions(path.parent)] == [sound]
    aside = {item for item in path.parent.iterdir() if item.suffix == ".damaged"}
    assert {item.suffix for item in aside} == {".damaged"}
    dropped = drop_old(path.parent, 0)
    assert set(dropped) == {*aside, sound}


def test_a_session_that_a_reader_holds_open_is_merged_later(tmp_path: Path) -> None:
    session = writer(tmp_path)
    for tick in session_ticks():
        session.write(tick)
    path = path_of(session)
    reader = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM tick").fetchone()
    session.close()
    assert Path(f"{path}-wal").exists()
    reader.close()
    put_in_order(path.parent)
    assert names(path.parent) == [".db"]
    assert session_info(path).state == "clean"
