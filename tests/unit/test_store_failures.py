"""Sessions with a killed writer or a full or read-only disk, and files that are no sessions."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from stored_samples import session_ticks
from stored_sessions import Clock, as_read, path_of, sample_session, writer

from fwtop.model.errors import FwtopError
from fwtop.model.traffic.session import EventKind
from fwtop.store.directory import find_session
from fwtop.store.reader import list_sessions, load_session, replay, session_info

HERE = Path(__file__).resolve().parent
CHILD_ENVIRONMENT = {"PYTHONPATH": f"{HERE.parents[1]}:{HERE}"}


KILLED = """
import sys
from pathlib import Path
from fwtop.store.writer import SessionWriter
from stored_samples import session_ticks
session = SessionWriter(Path(sys.argv[1]), host="web-1", interfaces=("eth0",))
for tick in session_ticks():
    session.write(tick)
    print("written", flush=True)
sys.stdin.read()
"""


def test_a_killed_writer_loses_nothing_committed(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "sessions")],
        env=CHILD_ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        for _ in range(60):
            assert child.stdout.readline() == "written\n"
        path = find_session(None, tmp_path / "sessions")
        assert session_info(path).state == "running"
        child.send_signal(signal.SIGKILL)
    info = session_info(path)
    assert info.state == "crashed"
    stored = list(replay(path))
    assert len(stored) >= 60
    assert stored == as_read(session_ticks()[: len(stored)], path)
    assert len(load_session(path).ticks) == len(stored)


def test_a_crashed_session_on_read_only_media_is_read_from_a_copy(tmp_path: Path) -> None:
    session = writer(tmp_path)
    session.write(session_ticks()[0])
    media = tmp_path / "media"
    media.mkdir()
    for suffix in ("", "-wal"):  # as a backup would have caught it, without its -shm
        data = Path(f"{path_of(session)}{suffix}").read_bytes()
        Path(f"{media / path_of(session).name}{suffix}").write_bytes(data)
    session.close()
    if os.geteuid() == 0:
        mount_read_only(media)
    else:
        media.chmod(0o500)
    try:
        assert list(replay(media / path_of(session).name)) == as_read(session_ticks()[:1], path_of(session))
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", str(media)], check=True, timeout=60)


def mount_read_only(directory: Path) -> None:
    for words in (["--bind", str(directory), str(directory)], ["-o", "remount,bind,ro", str(directory)]):
        subprocess.run(["mount", *words], check=True, timeout=60)


FULL = """
import resource, signal, sys
from pathlib import Path
from fwtop.store.writer import SessionWriter
from stored_samples import session_ticks
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
now = [0.0]
session = SessionWriter(Path(sys.argv[1]), host="web-1", interfaces=("eth0",), clock=lambda: now[0])
ticks = session_ticks()
for tick in ticks[:100]:
    session.write(tick)
print(session.problem)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
now[0] += 31
for tick in ticks[100:]:
    session.write(tick)
print(repr(session.problem))
session.close()
"""


def test_a_full_disk_only_stops_the_recording(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "sessions")],
        env=CHILD_ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    while_full, after = done.stdout.splitlines()
    assert re.fullmatch(
        r"not stored since 03:1\d:\d\d: a limit on the size of files was reached; .+", while_full
    )
    assert after == "''"
    record = load_session(find_session(None, tmp_path / "sessions"))
    assert record.info.state == "clean"
    assert 5 < len(record.ticks) < 100
    assert record.events[-1].kind is EventKind.RULE_UNDONE
    stopped, resumed = (
        [event for event in record.events if event.kind is kind]
        for kind in (EventKind.STORING_STOPPED, EventKind.STORING_RESUMED)
    )
    assert [len(stopped), len(resumed)] == [1, 1]
    assert stopped[0].text == "a limit on the size of files was reached"
    assert stopped[0].at in {tick.at for tick in record.ticks}
    # What happened while nothing could be stored is told with the first that could be again.
    assert {event.kind for event in record.events} >= {EventKind.RULE_CONFIRMED, EventKind.ATTACK_ENDED}


@pytest.mark.parametrize("make", ["file", "nowhere"])
def test_an_unusable_directory_is_one_line(tmp_path: Path, make: str) -> None:
    place = tmp_path / "state" if make == "file" else Path("/proc/fwtop")
    if make == "file":
        place.write_text("not a directory")
    session = writer(place)
    for tick in session_ticks()[:3]:
        session.write(tick)
    why = "is a file" if make == "file" else "is missing and can't be made"
    assert re.match(f"not stored since 03:12:39: its directory {why}; .*{place}", session.problem)
    assert "\n" not in session.problem
    session.close()
    assert session.path is None


def test_writing_resumes_once_the_directory_is_usable(tmp_path: Path) -> None:
    place, clock = tmp_path / "state", Clock()
    place.write_text("in the way")
    session = writer(place, clock=clock)
    ticks = session_ticks()
    session.write(ticks[0])
    place.unlink()
    session.write(ticks[1])
    assert session.problem, "it is tried again only after a while"
    clock.now += 31
    session.write(ticks[2])
    assert session.problem == ""
    session.close()
    assert list(replay(path_of(session))) == as_read([ticks[2]], path_of(session))


def damage(path: Path, how: str) -> None:
    if how == "cut":
        os.truncate(path, path.stat().st_size // 2)
    elif how == "noise":
        path.write_bytes(os.urandom(20_000))
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "foreign":
        path.unlink()
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE meta(name TEXT, value TEXT)")
        database.close()
    else:
        with sqlite3.connect(path) as database:
            database.execute("PRAGMA user_version=99")
        database.close()


def read_all(path: Path) -> None:
    list(load_session(path).snapshots(10))
    list(replay(path))


@pytest.mark.parametrize("how", ["cut", "noise", "empty", "foreign", "newer"])
def test_a_damaged_or_foreign_file_is_one_line(tmp_path: Path, how: str) -> None:
    recorded = sample_session(tmp_path)
    damage(recorded, how)
    with pytest.raises(FwtopError, match="damaged or no session") as caught:
        read_all(recorded)
    assert "\n" not in str(caught.value)
    assert [info.id for info in list_sessions(recorded.parent)] == [recorded.stem]


def test_a_damaged_snapshot_is_skipped(tmp_path: Path) -> None:
    recorded = sample_session(tmp_path)
    with sqlite3.connect(recorded) as database:
        database.execute("UPDATE snapshot SET data = x'00' WHERE n = 7")
        database.execute("UPDATE snapshot SET data = 'text' WHERE n = 8")
    database.close()
    assert len(list(replay(recorded))) == 118


@pytest.fixture
def tiny_disk(tmp_path: Path, root_required: None) -> Iterator[Path]:
    place = tmp_path / "tiny"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=192k", "tmpfs", str(place)], check=True, timeout=60)
    yield place
    subprocess.run(["umount", str(place)], check=True, timeout=60)


def test_a_full_disk_stops_recording_until_there_is_room(tiny_disk: Path) -> None:
    clock = Clock()
    session = writer(tiny_disk, clock=clock)
    for tick in session_ticks():
        session.write(tick)
    assert "full" in session.problem
    before = len(list(replay(path_of(session))))
    assert before > 0
    subprocess.run(["mount", "-o", "remount,size=8m", str(tiny_disk)], check=True, timeout=60)
    clock.now += 31
    session.write(session_ticks()[-1])
    assert session.problem == ""
    # The last one, and of those that were missed the one in which the attack was strongest.
    assert len(list(replay(path_of(session)))) == before + 2
    session.close()
