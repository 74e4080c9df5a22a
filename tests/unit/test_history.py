"""The history: minutes rolled up, several recordings at once, kill -9, full disks, damage, its limit."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from stored_samples import POISON, START, attack, poisoned, snapshot
from stored_sessions import Clock

from benches.history import NOTE
from fwtop.console.history_sampler import Answered, HistorySampler
from fwtop.model.errors import FwtopError
from fwtop.model.traffic.session import ANSWERS, HistoryPart, HistorySample, Trends
from fwtop.model.traffic.snapshot import Judgement
from fwtop.render.trends import averaged, spark, trends_json, trends_text
from fwtop.store.history import DAY, HOUR, MINUTE, HistoryWriter, prune
from fwtop.store.trends import read_trends
from tests.conftest import HISTORY_ENDS

NOON = 1_795_262_400  # 2026-11-21T12:00:00Z
HERE = Path(__file__).resolve().parent


def sample(
    at: float, pps: float = 1_000.0, *, seconds: float = 1.0, key: str = "NL", dropped: float = 0.5
) -> HistorySample:
    packets = pps * seconds
    traffic = (packets, packets * 0.25, packets * 0.125, packets * 0.125, packets * 0.5)
    parts = (
        HistoryPart("country", key, packets, packets * dropped),
        HistoryPart("port", "tcp/80", packets, None, "http"),
    )
    return HistorySample(at, seconds, traffic, packets * 8_000, parts)


def record(directory: Path, begin: float, seconds: int, **options: object) -> HistoryWriter:
    """Record so many seconds that end one after `begin`."""
    writer = HistoryWriter(directory, interfaces=("eth0",))
    for second in range(seconds):
        writer.add(sample(begin + second, **options))
        assert writer.problem == ""
    return writer


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    database = sqlite3.connect(path)
    found = database.execute(query).fetchall()
    database.close()
    return found


def trends(path: Path, at: float) -> Trends:
    return read_trends(path, at)


def test_minutes_become_hours_and_days(tmp_path: Path) -> None:
    record(tmp_path, NOON, 300).close()
    path = tmp_path / "history.db"
    query = "SELECT span, count(*), sum(seconds), sum(arrived), sum(mine) FROM bucket GROUP BY span"
    whole = [300.0, 300_000.0, 75_000.0]
    assert rows(path, query) == [(MINUTE, 5, *whole), (HOUR, 1, *whole), (DAY, 1, *whole)]
    query = (
        "SELECT span, kind, key, label, sum(packets), sum(dropped) FROM part JOIN name ON id = name "
        "GROUP BY span, kind"
    )
    of_span = [("country", "NL", "", 300_000, 150_000), ("port", "tcp/80", "http", 300_000, None)]
    assert rows(path, query) == [(span, *part) for span in (MINUTE, HOUR, DAY) for part in of_span]
    assert path.stat().st_mode & 0o777 == 0o600
    assert [item.name for item in tmp_path.iterdir()] == ["history.db"]


def test_trends_are_averages_of_the_observed_time(tmp_path: Path) -> None:
    for hours, pps in ((0, 1_000.0), (3, 4_000.0), (30, 8_000.0), (200, 2_000.0)):
        record(tmp_path, NOON + (240 - hours) * HOUR, 120, pps=pps).close()
    found = trends(tmp_path / "history.db", NOON + 240 * HOUR + 130)
    arrived = found.group("traffic")[0]
    assert (found.hour_seconds, found.day_seconds, found.days_seconds) == (120, 240, 480)
    assert arrived.hour == pytest.approx(1_000)
    assert arrived.day == pytest.approx(2_500)
    assert [value for value in arrived.hours if value is not None] == [4_000, 1_000]
    assert arrived.hours[-1] == 1_000
    assert arrived.hours[-4] == 4_000
    assert [value for value in arrived.days if value is not None] == [2_000, 8_000, 4_000, 1_000]
    assert arrived.days[-31] == 8_000
    (country,) = found.group("country")
    assert (country.key, country.hour, country.dropped_share) == ("NL", 1_000, 0.5)
    assert [row.hour for row in found.group("traffic")] == [1_000, 250, 125, 125, 500]


def test_two_recordings_of_one_interface_average_and_don_t_add_up(tmp_path: Path) -> None:
    writers = [HistoryWriter(tmp_path, interfaces=("eth0",)) for _ in range(2)]
    other = HistoryWriter(tmp_path, interfaces=("eth0",), netns="lab")
    for second in range(120):
        for writer in (*writers, other):
            writer.add(sample(NOON + second, pps=1_000.0 if writer is not other else 7.0))
            assert writer.problem == ""
    for writer in (*writers, other):
        writer.close()
    found = read_trends(tmp_path / "history.db", NOON + 120, interfaces=("eth0",))
    assert found.group("traffic")[0].hour == pytest.approx(1_000)
    assert found.hour_seconds == 120
    assert trends(tmp_path / "history.db", NOON + 120).netns is None, "the host before its namespaces"
    there = read_trends(tmp_path / "history.db", NOON + 120, netns="lab")
    assert there.group("traffic")[0].hour == pytest.approx(7)
    with pytest.raises(FwtopError, match="holds nothing of eth1"):
        read_trends(tmp_path / "history.db", NOON, interfaces=("eth1",))


TARGETS = (
    HistoryPart("target", "192.0.2.1", 60_000, 60_000),
    HistoryPart("target", "192.0.2.2", 900, 90),
    HistoryPart("port", "tcp/80", 900),
    HistoryPart("port", "tcp/23", 90),
    HistoryPart("port", "udp/40000", 90),
)


def test_dark_is_what_never_answered_whatever_was_dropped(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path, interfaces=("eth0",))
    writer.add(HistorySample(NOON, 60.0, (1.0,) * 5, 0.0, TARGETS, ("192.0.2.1", "tcp/80")))
    writer.close()
    assert HistoryWriter(tmp_path, interfaces=("eth0",)).answered() == ["192.0.2.1", "tcp/80"]
    assert HistoryWriter(tmp_path, interfaces=("eth1",)).answered() == []
    found = trends(tmp_path / "history.db", NOON + 90)
    assert [row.key for row in found.group("service")] == ["192.0.2.1"], "a rule may drop all that it gets"
    assert [row.key for row in found.group("dark")] == ["192.0.2.2"]
    answers = {row.key: row.answers for row in found.group("port")}
    assert answers == {"tcp/80": True, "tcp/23": False, "udp/40000": None}


def test_in_a_history_that_never_noted_answers_nothing_is_dark(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path, interfaces=("eth0",))
    writer.add(HistorySample(NOON, 60.0, (1.0,) * 5, 0.0, TARGETS))
    writer.close()
    path = tmp_path / "history.db"
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE answered")
    database.close()
    found = trends(path, NOON + 90)
    assert (len(found.group("service")), found.group("dark")) == (2, ())
    HistoryWriter(tmp_path, interfaces=("eth0",)).add(
        HistorySample(NOON + 90, 60.0, (1.0,) * 5, 0.0, TARGETS, ("192.0.2.2",))
    )
    assert [row.key for row in trends(path, NOON + 200).group("dark")] == ["192.0.2.1"]


def test_answers_are_stored_again_if_the_history_was_deleted(tmp_path: Path) -> None:
    heard = Answered()
    assert heard.note(NOON, {("tcp", "192.0.2.1", 80), ("", "2001:db8::1", 0)}) == (
        "192.0.2.1",
        "2001:db8::1",
        "tcp/80",
    )
    assert heard.note(NOON + 5, {("tcp", "192.0.2.1", 80)}) == ()
    assert "tcp/80" in heard.note(NOON + HOUR, set())
    assert Answered(["192.0.2.1"]).settled(NOON), "the history tells"
    assert not Answered().settled(NOON)


def test_answers_that_never_end_are_bounded() -> None:
    heard = Answered()
    for number in range(3):
        places = {("tcp", f"10.{number}.{part >> 8}.{part & 255}", part) for part in range(3_000)}
        found = heard.note(NOON + number, places)
    assert len(found) <= ANSWERS


KILLED = """
import sys
from pathlib import Path
from fwtop.store.history import HistoryWriter
from test_history import NOON, sample
writer = HistoryWriter(Path(sys.argv[1]), interfaces=("eth0",))
for second in range(90):
    writer.add(sample(NOON + second))
print("written", flush=True)
sys.stdin.read()
"""


def test_kill_9_loses_no_tick_that_was_written(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        env={"PYTHONPATH": f"{HERE.parents[1]}:{HERE}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "written\n"
        child.send_signal(signal.SIGKILL)
    record(tmp_path, NOON + HOUR, 70).close()
    arrived = trends(tmp_path / "history.db", NOON + HOUR + 90).group("traffic")[0]
    assert [value for value in arrived.hours if value is not None] == [1_000, 1_000]
    query = f"SELECT sum(seconds), sum(arrived) FROM bucket WHERE span = {HOUR} AND at = {NOON}"  # noqa: S608
    assert rows(tmp_path / "history.db", query) == [(90.0, 90_000.0)]
    assert rows(tmp_path / "history.db", "SELECT count(*) FROM pending") == [(0,)]


def test_a_damaged_copy_of_a_minute_is_dropped(tmp_path: Path) -> None:
    record(tmp_path, NOON, 70).close()
    database = sqlite3.connect(tmp_path / "history.db")
    for number, data in enumerate((b"", b"noise", "text", None)):
        database.execute("INSERT INTO pending VALUES (?, 1, ?, ?)", (f"w{number}", NOON, data))
    database.commit()
    database.close()
    record(tmp_path, NOON + HOUR, 70).close()
    assert rows(tmp_path / "history.db", "SELECT count(*) FROM pending") == [(0,)]


def test_a_damaged_history_is_set_aside_and_a_new_one_begins(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    path.write_bytes(os.urandom(20_000))
    with pytest.raises(FwtopError, match="can't be read"):
        trends(path, NOON)
    writer = record(tmp_path, NOON, 70)
    assert writer.news.startswith("history.db is damaged (")
    writer.close()
    assert (tmp_path / "history.db.damaged").stat().st_size == 20_000
    assert trends(path, NOON + 120).hour_seconds == 70


@pytest.fixture
def tiny_disk(tmp_path: Path, root_required: None) -> Iterator[Path]:
    place = tmp_path / "tiny"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(place)], check=True, timeout=60)
    yield place
    subprocess.run(["umount", str(place)], check=True, timeout=60)


def test_a_full_disk_is_one_line_and_writing_resumes(tiny_disk: Path) -> None:
    clock = Clock()
    (tiny_disk / "others").write_bytes(bytes(124 << 10))
    writer = HistoryWriter(tiny_disk, interfaces=("eth0",), clock=clock)
    for second in range(90):
        writer.add(sample(NOON + second))
    assert writer.problem.startswith("history not stored since 12:00:")
    assert "\n" not in writer.problem
    (tiny_disk / "others").unlink()
    subprocess.run(["mount", "-o", "remount,size=8m", str(tiny_disk)], check=True, timeout=60)
    clock.now += 31
    for second in range(90, 150):
        writer.add(sample(NOON + second))
    assert writer.problem == ""
    writer.close()
    assert trends(tiny_disk / "history.db", NOON + 180).hour_seconds == 150


def test_an_attacker_s_names_don_t_outgrow_the_limit(tmp_path: Path) -> None:
    limit = 4 << 20
    writer = HistoryWriter(tmp_path, interfaces=("eth0",), max_bytes=limit)
    for minute in range(250):
        at = NOON + minute * MINUTE
        parts = tuple(
            HistoryPart(kind, f"{minute}-{place}" * 8, 1_000.0 - place, 1.0, "x" * 80)
            for kind in ("network", "target", "port")
            for place in range(40)
        )
        writer.add(HistorySample(at, 60.0, (1.0,) * 5, 0.0, parts))
        assert writer.problem == "", minute
    writer.close()
    path = tmp_path / "history.db"
    assert path.stat().st_size <= limit
    assert rows(path, "SELECT count(*) < 250 FROM bucket WHERE span = 60") == [(1,)], "the oldest gave way"
    assert trends(path, NOON + 250 * MINUTE).hour_seconds > 3_500, "the newest stays"


def test_old_spans_and_scopes_are_forgotten(tmp_path: Path) -> None:
    record(tmp_path, NOON, 70).close()
    for number in range(17):
        writer = HistoryWriter(tmp_path, interfaces=(f"eth{number + 1}",))
        writer.add(sample(NOON + 27 * HOUR + number))
        writer.close()
    path = tmp_path / "history.db"
    database = sqlite3.connect(path, isolation_level=None)
    prune(database, NOON + 27 * HOUR)
    assert database.execute("SELECT count(*) FROM scope").fetchone() == (16,)
    prune(database, NOON + 500 * DAY)
    assert database.execute("SELECT count(*) FROM bucket").fetchone() == (0,)
    assert database.execute("SELECT count(*) FROM name").fetchone() == (0,)
    database.close()


def test_a_recording_of_which_another_forgets_the_scope_goes_on_in_a_new_one(tmp_path: Path) -> None:
    first = record(tmp_path, NOON, 10)
    for number in range(17):  # which are newer, so that the first one's gives way
        other = HistoryWriter(tmp_path, interfaces=(f"eth{number + 1}",))
        for second in (0, MINUTE):
            other.add(sample(NOON + 2 * HOUR + number + second))
        other.close()
    for second in range(10):
        first.add(sample(NOON + 3 * HOUR + second))
    first.close()
    found = read_trends(tmp_path / "history.db", NOON + 3 * HOUR + 30, interfaces=("eth0",))
    assert found.hour_seconds == 10


def test_the_last_minute_is_stored_although_others_hold_the_file_meanwhile(tmp_path: Path) -> None:
    writer = record(tmp_path, NOON, 10)
    held = threading.Event()

    def hold() -> None:
        with closing(sqlite3.connect(tmp_path / "history.db", isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            held.set()
            pause.wait(1.5)  # longer than a tick waits
            database.execute("COMMIT")

    pause, other = threading.Event(), threading.Thread(target=hold)
    other.start()
    held.wait()
    writer.close()
    other.join()
    assert trends(tmp_path / "history.db", NOON + 30).hour_seconds == 10


@pytest.mark.parametrize("forged", [False, True])
def test_where_forged_packets_seem_to_come_from_is_not_remembered(*, forged: bool) -> None:
    taken = snapshot(START, 10_000.0)
    flood = replace(attack(), spoofed=forged)
    found = HistorySampler().sample(replace(taken, judgement=Judgement((flood,))), None)
    assert found is not None
    kinds = {part.kind for part in found.parts}
    assert ("country" in kinds) is not forged
    assert {"port", "target"} & kinds


def test_samples_of_overlapping_windows_cover_each_second_once(tmp_path: Path) -> None:
    sampler, writer = HistorySampler(), HistoryWriter(tmp_path, interfaces=("eth0",))
    for second in range(0, 120, 2):
        found = sampler.sample(snapshot(START + second, 10_000.0, dropped=4_000.0), None)
        assert found is not None
        assert found.seconds == (2 if second else 5)
        writer.add(found)
    pause = sampler.sample(snapshot(START + 900, 10_000.0), None)
    assert pause is not None
    assert pause.seconds == 5, "what nobody watched isn't made up"
    writer.close()
    found_trends = trends(tmp_path / "history.db", START + 150)
    traffic = {row.key: row.hour for row in found_trends.group("traffic")}
    assert traffic["arrived"] == pytest.approx(10_000)
    assert (traffic["other"], traffic["accepted"]) == (pytest.approx(4_000), pytest.approx(6_000))
    assert found_trends.group("country")[0].hour == pytest.approx(5_000)
    assert {row.key for row in found_trends.group("dark") + found_trends.group("service")} == {"192.0.2.1"}


def test_hostile_names_are_harmless_in_text_and_json(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path, interfaces=(POISON,), netns=POISON, note=POISON)
    taken = HistorySampler().sample(poisoned(START), None)
    assert taken is not None
    writer.add(taken)
    writer.close()
    document = trends_json(trends(tmp_path / "history.db", START + 90))
    for text in (trends_text(document), json.dumps(document, ensure_ascii=False)):
        assert not any(char in text for char in "\x1b\u202e\r")
    assert document["countries"][0]["key"].startswith("</script>"), "it did arrive"


def test_graphs_average_and_mark_what_nobody_observed() -> None:
    assert averaged([1.0, 3.0, None, 5.0], 2) == [2.0, 5.0]
    assert spark([0.0, None, 4.0, 8.0], 4) == " ·▄▇", "rows of a list stay apart"
    assert spark([0.001, 100.0], 2) == "▁▇"
    assert spark([], 4) == ""


def test_synthetic_history_is_marked_and_fills_all_periods(made_history: Path) -> None:
    found = trends(made_history, HISTORY_ENDS)
    assert found.note == NOTE
    assert found.note.startswith("synthetic")
    assert found.hour_seconds == HOUR
    assert found.days_seconds == pytest.approx(15 * DAY, rel=0.01)
    assert all(found.group(kind) for kind in ("country", "network", "city", "port", "service", "dark"))
    arrived, mine, *_ = found.group("traffic")
    assert None not in arrived.days
    assert max(arrived.days) > 20_000
    assert sum(value > 0 for value in mine.days if value is not None) == pytest.approx(8, abs=4)
