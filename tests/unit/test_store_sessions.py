"""Sessions on disk: written, read meanwhile, thinned out, found and deleted."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace
from stored_samples import POISON, START, attack, evidence, poisoned, rule, session_ticks, snapshot, status
from stored_sessions import Clock, as_read, path_of, sample_session, writer

from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.traffic.session import EventKind
from fwtop.model.traffic.snapshot import Proposal
from fwtop.report.summary import digest
from fwtop.store.baselines import BaselineStore
from fwtop.store.directory import drop_old, find_session, is_running, session_id, size_bytes
from fwtop.store.reader import list_sessions, load_session, replay, session_info


def test_a_session_is_read_back(tmp_path: Path) -> None:
    recorded = sample_session(tmp_path)
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
    assert leftovers == [f"{recorded.stem}.db"], "its lock is gone with its end"
    assert recorded.stat().st_mode & 0o777 == 0o600


def test_snapshots_are_picked_evenly_and_pinned_ones_always(tmp_path: Path) -> None:
    recorded = sample_session(tmp_path)
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


def test_the_newest_proposals_are_stored_whole_and_older_ones_cut(tmp_path: Path) -> None:
    sources = tuple(Prefix.parse(f"203.0.{n // 256}.{n % 256}") for n in range(1_200))
    listed = replace(rule(), match=replace(rule().match, sources=sources))
    session = writer(tmp_path)
    for place in range(3):
        shot = snapshot(START + place, 200_000.0, busy=True, attacks=(attack(),))
        proposal = Proposal(1, "ipset", "block 1,200 addresses", 0.9, 0.0, rule=listed, fwtop="fwtop apply 1")
        session.write(replace(shot, judgement=replace(shot.judgement, proposals=(proposal,))))
    for _ in range(2):  # while it is written, and afterwards
        stored = [one.judgement.proposals[0].rule for one in replay(path_of(session))]
        assert [len(one.match.sources) for one in stored if one is not None] == [256, 256, 1_200]
        session.close()


def test_older_ticks_are_thinned_out(tmp_path: Path) -> None:
    path = long_session(tmp_path, 3_600, 1.0)
    ends = [item.started + item.seconds - START for item in replay(path)]
    lately = [at for at in ends if at >= 3_000]
    earlier = [at for at in ends if at < 2_960]
    assert len(lately) == 600
    assert 290 <= len(earlier) <= 320
    assert max(b - a for a, b in pairwise(ends)) <= 11
    assert len(load_session(path).ticks) == 3_600


def test_fast_ticks_store_one_snapshot_per_second_and_the_whole_series(tmp_path: Path) -> None:
    path = long_session(tmp_path, 60, 0.25)
    assert 58 <= len(list(replay(path))) <= 70
    assert len(load_session(path).ticks) == 240


def test_a_session_stays_within_its_size_limit_under_an_hour_of_flood(tmp_path: Path) -> None:
    clock, limit = Clock(), 900_000
    session = writer(tmp_path, clock=clock, max_bytes=limit)
    for place in range(600):
        clock.now = place * 6.0
        shot = snapshot(START + clock.now, 200_000.0, busy=place % 2 == 0, attacks=(attack(),))
        session.write(shot, evidence=evidence(shot))
        assert session.problem == ""
    session.close()
    assert size_bytes(path_of(session)) <= limit // 2
    stored = list(replay(path_of(session)))
    assert len(stored) > 20
    assert stored[-1].started == START + 599 * 6.0 - 5
    record = load_session(path_of(session))
    told = digest(record)
    assert told.sums.packets == pytest.approx(3_600 * 200_000, rel=0.02)
    assert told.spans[0].packets == pytest.approx(3_600 * 185_000, rel=0.02)
    assert told.spans[0].detail.tables["address"]
    assert record.packets


def test_reports_count_towards_their_session_and_are_deleted_with_it(tmp_path: Path) -> None:
    directory, paths = tmp_path / "sessions", []
    for number in range(2):
        session = writer(tmp_path, f"eth{number}")
        for tick in session_ticks(40):
            session.write(replace(tick, started=tick.started + 1_000 * (number + 1)))
        session.close()
        paths.append(path_of(session))
    without = size_bytes(paths[0])
    report = paths[0].with_suffix(".html")
    report.write_bytes(bytes(1 << 20))
    assert size_bytes(paths[0]) == without + (1 << 20)
    assert drop_old(directory, without + size_bytes(paths[1]) + 1000) == paths[:1]
    assert not report.exists()
    assert paths[1].exists()
    elsewhere = [directory / "fwtop-2001-01-01T00-00-00.json", directory / "2001-01-01T00-00-00Z-gone.html"]
    for path in elsewhere:
        path.write_bytes(bytes(1 << 20))
    (directory / "notes.txt").write_text("not fwtop's")
    assert set(drop_old(directory, size_bytes(paths[1]) + 1000)) == set(elsewhere)
    assert sorted(path.suffix for path in directory.iterdir()) == [".db", ".txt"]


def test_old_sessions_are_deleted_but_no_running_one(tmp_path: Path) -> None:
    running = writer(tmp_path, "a0")
    running.write(session_ticks()[0])
    paths = []
    for number in range(4):
        session = writer(tmp_path, f"eth{number}")
        for tick in session_ticks(40):
            session.write(replace(tick, started=tick.started + 1_000 * (number + 1)))
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


def test_finding_a_session(tmp_path: Path) -> None:
    recorded = sample_session(tmp_path)
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


def test_hostile_text_is_stored_unchanged(tmp_path: Path) -> None:
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
    huge = replace(rule(), match=replace(rule().match, sources=many))
    entries = {str(prefix): place for place, prefix in enumerate(many)}
    session = writer(tmp_path)
    for second in range(30):
        at = START + second
        held = replace(status(huge, at), entries=entries)
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
        store.put("web-1", b"x", f"lab-{number}")
    assert store.get("web-1") == b"three", "many other namespaces don't displace the machine's own"
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
