"""Sessions on a real disk: written, read meanwhile, killed, full, thinned and dropped."""

from __future__ import annotations

import dataclasses
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from stored_samples import POISON, START, poisoned, rule, session_ticks, snapshot, status

from fwtop.model.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.session import EventKind
from fwtop.model.snapshot import Origin, Snapshot
from fwtop.store import (
    BaselineStore,
    SessionWriter,
    find_session,
    list_sessions,
    load_session,
    replay,
    session_info,
)
from fwtop.store.directory import drop_old, is_running, session_id, size_bytes

HERE = Path(__file__).resolve().parent
CHILD_ENVIRONMENT = {"PYTHONPATH": f"{HERE.parents[1]}:{HERE}"}


def as_read(ticks: list[Snapshot], path: Path) -> list[Snapshot]:
    """What a reader gets: the same, but from a session."""
    origins = [Origin("session", tick.origin.interfaces, tick.origin.netns, path.stem) for tick in ticks]
    return [dataclasses.replace(tick, origin=origin) for tick, origin in zip(ticks, origins, strict=True)]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def writer(state: Path, *interfaces: str, **options: object) -> SessionWriter:
    given = {"host": "web-1", "interfaces": interfaces or ("eth0",), **options}
    return SessionWriter(state / "sessions", **given)  # type: ignore[arg-type]


def path_of(session: SessionWriter) -> Path:
    assert session.path is not None
    return session.path


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """The sample session, ended cleanly."""
    session = writer(tmp_path)
    for tick in session_ticks():
        session.write(tick)
    session.close()
    assert session.problem == ""
    return path_of(session)


def test_what_was_written_is_read_back(recorded: Path) -> None:
    ticks = session_ticks()
    assert list(replay(recorded)) == as_read(ticks, recorded)
    record = load_session(recorded)
    assert record.info.id == "2026-11-21T03-12-39Z-eth0"
    assert (record.info.host, record.info.interfaces, record.info.state) == ("web-1", ("eth0",), "clean")
    assert record.info.seconds == pytest.approx(124)  # the first snapshot covers the 5 s before it
    assert record.info.peak_pps == 200_000
    assert record.info.attacks == ("dns_amplification",)
    assert record.rules == (rule(),)
    assert len(record.ticks) == 120
    assert [tick.pps for tick in record.ticks] == [tick.tables.totals.pps for tick in ticks]
    assert {point.kind for point in record.attacks} == {"dns_amplification"}
    assert EventKind.RULE_CONFIRMED in [event.kind for event in record.events]
    assert not is_running(recorded)
    leftovers = sorted(path.name for path in recorded.parent.iterdir())
    assert leftovers == [f"{recorded.stem}.db", f"{recorded.stem}.lock"]
    assert recorded.stat().st_mode & 0o777 == 0o600


def test_few_snapshots_are_picked_evenly_and_the_marked_ones_always(recorded: Path) -> None:
    picked = list(load_session(recorded).snapshots(10))
    assert 10 <= len(picked) <= 20
    times = [item.started for item in picked]
    assert times == sorted(times)
    assert max(item.tables.totals.pps for item in picked) == 200_000


def test_a_reader_works_while_it_is_written(tmp_path: Path) -> None:
    session = writer(tmp_path)
    ticks = session_ticks()
    for tick in ticks[:50]:
        session.write(tick)
    follow = replay(path_of(session))
    assert next(follow) == as_read(ticks[:1], path_of(session))[0]
    for tick in ticks[50:]:
        session.write(tick)
    assert session.problem == ""
    assert len(list(follow)) == 119
    assert session_info(path_of(session)).state == "running"
    session.close()
    assert session_info(path_of(session)).state == "clean"


KILLED = """
import sys
from pathlib import Path
from fwtop.store import SessionWriter
from stored_samples import session_ticks
session = SessionWriter(Path(sys.argv[1]), host="web-1", interfaces=("eth0",))
for tick in session_ticks():
    session.write(tick)
    print("written", flush=True)
sys.stdin.read()
"""


def test_a_killed_writer_leaves_all_that_was_written(tmp_path: Path) -> None:
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
            subprocess.run(["umount", str(media)], check=True, timeout=10)


def mount_read_only(directory: Path) -> None:
    for words in (["--bind", str(directory), str(directory)], ["-o", "remount,bind,ro", str(directory)]):
        subprocess.run(["mount", *words], check=True, timeout=10)


FULL = """
import resource, signal, sys
from pathlib import Path
from fwtop.store import SessionWriter
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


def test_a_full_disk_costs_the_record_and_nothing_else(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "sessions")],
        env=CHILD_ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    while_full, after = done.stdout.splitlines()
    assert while_full.startswith("the session is not being stored (")
    assert "watching goes on" in while_full
    assert after == "''"
    record = load_session(find_session(None, tmp_path / "sessions"))
    assert record.info.state == "clean"
    assert 5 < len(record.ticks) < 100
    assert record.events[-1].kind is EventKind.RULE_UNDONE
    resumed = [event for event in record.events if event.kind is EventKind.STORING_RESUMED]
    assert len(resumed) == 1
    # What happened while nothing could be stored is told with the first that could be again.
    assert {event.kind for event in record.events} >= {EventKind.RULE_CONFIRMED, EventKind.ATTACK_ENDED}


@pytest.mark.parametrize("make", ["file", "nowhere"])
def test_a_directory_that_can_t_be_used_is_one_line(tmp_path: Path, make: str) -> None:
    place = tmp_path / "state" if make == "file" else Path("/proc/fwtop")
    if make == "file":
        place.write_text("not a directory")
    session = writer(place)
    for tick in session_ticks()[:3]:
        session.write(tick)
    assert session.problem.startswith("the session is not being stored (")
    assert "\n" not in session.problem
    session.close()
    assert session.path is None


def test_writing_goes_on_after_the_place_is_mended(tmp_path: Path) -> None:
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


def long_session(directory: Path, seconds: int, step: float, **options: object) -> Path:
    """A session whose clock runs as fast as its ticks say."""
    clock = Clock()
    session = writer(directory, clock=clock, **options)
    for place in range(int(seconds / step)):
        clock.now = place * step
        session.write(snapshot(START + clock.now, 9_000.0 + place % 7, busy=False))
    session.close()
    assert session.problem == ""
    return path_of(session)


def test_older_ticks_are_thinned_out(tmp_path: Path) -> None:
    path = long_session(tmp_path, 3_600, 1.0)
    ends = [item.started + item.seconds - START for item in replay(path)]
    lately = [at for at in ends if at >= 3_000]
    earlier = [at for at in ends if at < 2_960]
    assert len(lately) == 600
    assert 290 <= len(earlier) <= 320
    assert max(b - a for a, b in pairwise(ends)) <= 11
    assert len(load_session(path).ticks) == 3_600


def test_a_fast_tick_stores_one_snapshot_a_second_and_every_figure(tmp_path: Path) -> None:
    path = long_session(tmp_path, 60, 0.25)
    assert 58 <= len(list(replay(path))) <= 70
    assert len(load_session(path).ticks) == 240


def test_a_session_stays_within_its_bound(tmp_path: Path) -> None:
    clock, limit = Clock(), 1_200_000
    session = writer(tmp_path, clock=clock, max_bytes=limit)
    for place in range(1_500):
        clock.now = place * 2.0
        session.write(snapshot(START + clock.now, 9_000.0, busy=place % 2 == 0))
    session.close()
    assert session.problem == ""
    assert size_bytes(path_of(session)) <= limit // 2
    stored = list(replay(path_of(session)))
    assert len(stored) > 20
    assert stored[-1].started == START + 1_499 * 2.0 - 5


def test_old_sessions_are_dropped_and_the_running_one_never(tmp_path: Path) -> None:
    running = writer(tmp_path, "a0")
    running.write(session_ticks()[0])
    paths = []
    for number in range(4):
        session = writer(tmp_path, f"eth{number}")
        for tick in session_ticks(40):
            session.write(dataclasses.replace(tick, started=tick.started + 1_000 * (number + 1)))
        session.close()
        paths.append(path_of(session))
    one = size_bytes(paths[0])
    dropped = drop_old(tmp_path / "sessions", one * 2 + size_bytes(path_of(running)) + 1)
    assert dropped == paths[:2]
    assert [info.path for info in list_sessions(tmp_path / "sessions")] == [path_of(running), *paths[2:]]
    drop_old(tmp_path / "sessions", 0)
    assert [info.path for info in list_sessions(tmp_path / "sessions")] == [path_of(running)]
    running.write(session_ticks()[1])
    assert running.problem == ""
    running.close()


def test_two_sessions_of_one_second_have_two_names(tmp_path: Path) -> None:
    both = [writer(tmp_path), writer(tmp_path)]
    for session in both:
        session.write(session_ticks()[0])
        session.close()
    names = [info.id for info in list_sessions(tmp_path / "sessions")]
    assert names == ["2026-11-21T03-12-39Z-eth0", "2026-11-21T03-12-39Z-eth0-2"]


def test_names_are_harmless() -> None:
    assert session_id(START, ("../../etc/passwd", "\x1b[2J")) == "2026-11-21T03-12-44Z-.._.._etc_passwd+__2J"
    assert session_id(START, ()) == "2026-11-21T03-12-44Z-all"
    assert len(session_id(START, ("x" * 500,))) < 70


def test_finding_a_session(recorded: Path) -> None:
    directory = recorded.parent
    assert find_session(None, directory) == recorded
    assert find_session("2026-11-21T03", directory) == recorded
    assert find_session(recorded.stem, directory) == recorded
    assert find_session(str(recorded), Path("/nonexistent")) == recorded
    for name in ("2027", "./none.db"):
        with pytest.raises(FwtopError, match="fwtop sessions"):
            find_session(name, directory)
    with pytest.raises(FwtopError, match="no session is stored"):
        find_session(None, directory / "none")
    other = writer(directory.parent)
    other.write(session_ticks()[0])
    other.close()
    with pytest.raises(FwtopError, match="2 sessions begin with") as caught:
        find_session("2026", directory)
    assert caught.value.code == 2


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
def test_a_damaged_or_foreign_file_is_one_line(recorded: Path, how: str) -> None:
    damage(recorded, how)
    with pytest.raises(FwtopError, match="damaged or no session") as caught:
        read_all(recorded)
    assert "\n" not in str(caught.value)
    assert [info.id for info in list_sessions(recorded.parent)] == [recorded.stem]


def test_one_damaged_snapshot_does_not_withhold_the_others(recorded: Path) -> None:
    with sqlite3.connect(recorded) as database:
        database.execute("UPDATE snapshot SET data = x'00' WHERE n = 7")
        database.execute("UPDATE snapshot SET data = 'text' WHERE n = 8")
    database.close()
    assert len(list(replay(recorded))) == 118


def test_poison_is_stored_and_comes_back_exactly(tmp_path: Path) -> None:
    session = writer(tmp_path, POISON, host=POISON, netns=POISON, version=POISON)
    session.write(poisoned(START))
    session.close()
    assert list(replay(path_of(session))) == as_read([poisoned(START)], path_of(session))
    info = session_info(path_of(session))
    for shown in (info.host, info.netns or "", info.version, *info.interfaces):
        assert "\x1b" not in shown
        assert "\u202e" not in shown


def test_a_huge_rule_is_stored_once(tmp_path: Path) -> None:
    many = tuple(Prefix(4, (10 << 24) + place * 256, 24) for place in range(20_000))
    huge = dataclasses.replace(rule(), match=dataclasses.replace(rule().match, sources=many))
    session = writer(tmp_path)
    for second in range(30):
        at = START + second
        entries = {str(prefix): place for place, prefix in enumerate(many)}
        held = dataclasses.replace(status(huge, at), entries=entries)
        session.write(snapshot(at, busy=False, mitigations=(held,)))
    session.close()
    assert size_bytes(path_of(session)) < 400_000
    assert load_session(path_of(session)).rules == (huge,)
    shown = next(replay(path_of(session))).mitigations[0]
    assert shown.rule.match.sources == many[:256]
    assert max(shown.entries.values()) == 19_999


def test_baselines_are_kept_by_host_and_namespace(tmp_path: Path) -> None:
    store = BaselineStore(tmp_path / "state")
    assert store.get("web-1") is None
    assert store.put("web-1", b"\x00one") == ""
    assert store.put("web-1", b"two", "lab") == ""
    assert store.put("web-1", b"three") == ""
    assert BaselineStore(tmp_path / "state").get("web-1") == b"three"
    assert store.get("web-1", "lab") == b"two"
    for number in range(70):
        store.put(f"host-{number}", b"x")
    assert store.get("web-1") is None
    assert store.get("host-69") == b"x"
    (tmp_path / "state/baselines.db").write_bytes(b"noise" * 900)
    assert store.get("host-69") is None
    assert store.put("web-1", b"again") == ""
    assert store.get("web-1") == b"again"
    nowhere = BaselineStore(Path("/proc/fwtop"))
    assert nowhere.get("web-1") is None
    assert nowhere.put("web-1", b"x").startswith("the baseline is not stored (")


@pytest.fixture
def tiny_disk(tmp_path: Path, root_required: None) -> Iterator[Path]:
    place = tmp_path / "tiny"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=192k", "tmpfs", str(place)], check=True, timeout=10)
    yield place
    subprocess.run(["umount", str(place)], check=True, timeout=10)


def test_a_disk_without_room(tiny_disk: Path) -> None:
    clock = Clock()
    session = writer(tiny_disk, clock=clock)
    for tick in session_ticks():
        session.write(tick)
    assert "full" in session.problem
    before = len(list(replay(path_of(session))))
    assert before > 0
    subprocess.run(["mount", "-o", "remount,size=8m", str(tiny_disk)], check=True, timeout=10)
    clock.now += 31
    session.write(session_ticks()[-1])
    assert session.problem == ""
    assert len(list(replay(path_of(session)))) == before + 1
    session.close()
