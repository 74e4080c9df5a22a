"""Recordings: the player's position and commands, stored sessions by time, and windows of a capture."""

from __future__ import annotations

import io
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from capture_files import pcap
from frames import ethernet, ipv4, tcp
from stored_samples import START, session_ticks, snapshot
from stored_sessions import Clock, path_of, sample_session, writer

from fwtop.console.controls import ReadOnlyControls
from fwtop.console.playback.capture import CaptureReel, observe_capture
from fwtop.console.playback.player import Frame, Playhead, Recording, Reel, StoredFeed
from fwtop.console.playback.replay import session_recording
from fwtop.model.errors import FwtopError
from fwtop.model.traffic.packets import NoOrigin
from fwtop.model.traffic.session import EventKind
from fwtop.model.traffic.snapshot import Snapshot

Until = Callable[..., Any]


def controls() -> ReadOnlyControls:
    return ReadOnlyControls("a test", preview=None, export=str, export_formats=("json",))


class Screen:
    """Takes what a feed delivers."""

    def __init__(self, recording: Recording, until: Until) -> None:
        self.clock = Clock()
        self.feed = StoredFeed(recording, controls(), clock=self.clock)
        self.shown: list[Snapshot] = []
        self.failures: list[Exception] = []
        self._until = until

    def __enter__(self) -> Screen:
        self.feed.start(self.shown.append, self.failures.append)
        self._until(lambda: self.shown or self.failures)
        return self

    def __exit__(self, *_: object) -> None:
        self.feed.stop()

    def shows(self, second: float) -> None:
        """Wait until the snapshot of that second of the session is shown."""
        self._until(lambda: bool(self.shown) and self.at == second)

    @property
    def at(self) -> float:
        return round(self.shown[-1].started + self.shown[-1].seconds - START, 3)


@pytest.fixture
def screen(tmp_path: Path, poll_until: Until) -> Iterator[Screen]:
    """The sample session, paused at its beginning."""
    made = Screen(session_recording(sample_session(tmp_path)), poll_until)
    with made:
        made.feed.player.play(False)
        yield made


def test_the_position_runs_by_the_wall_clock_while_playing() -> None:
    head = Playhead(100.0, 200.0, 2.0, playing=False)
    head.seek(110.0, 1.0)
    assert head.position(50.0) == 110.0
    head.play(playing=True, wall=50.0)
    assert head.position(55.0) == 120.0
    head.set_speed(0.5, 55.0)
    assert head.position(75.0) == 130.0
    head.play(playing=False, wall=75.0)
    assert head.position(1000.0) == 130.0
    head.play(playing=True, wall=1000.0)
    assert head.position(5000.0) == 200.0  # the end: it doesn't begin again
    head.seek(1.0, 5000.0)
    assert head.position(5000.0) == 100.0


def test_steps_seeks_and_events(screen: Screen) -> None:
    player = screen.feed.player
    player.step(1)
    screen.shows(1)
    player.step(2)
    screen.shows(3)
    player.step(-1)
    screen.shows(2)
    player.seek(START + 50.4)
    screen.shows(50)
    player.step(-100)
    screen.shows(0)
    player.skip(1)
    screen.shows(20)  # the attack
    player.skip(2)
    screen.shows(40)  # past the rule at 30: its confirmation
    player.skip(-1)
    screen.shows(30)
    player.seek(START + 5_000)
    screen.shows(119)
    state = player.state
    assert state is not None
    assert (state.begins, state.ends, state.position) == (START, START + 119, START + 119)
    assert (state.playing, state.whole) == (False, False)
    assert EventKind.ATTACK_BEGAN in {mark.event.kind for mark in state.marks}


def test_playing_shows_what_is_due_and_ends_at_the_end(screen: Screen, poll_until: Until) -> None:
    player = screen.feed.player
    player.set_speed(64.0)
    player.play(playing=True)
    screen.clock.now = 1.0
    player.set_speed(64.0)  # wakes the thread, as its timer would
    screen.shows(64)
    player.play(playing=True)
    screen.clock.now = 10.0
    player.play(playing=True)
    screen.shows(119)
    poll_until(lambda: player.state is not None and not player.state.playing)


class Torn:
    """A recording of which one place can't be shown."""

    def __init__(self, whole: Reel, at: float) -> None:
        self._whole = whole
        self._at = at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    def frame(self, at: float) -> Frame | None:
        if at == self._at:
            raise KeyError(at)
        return self._whole.frame(at)


def test_a_place_that_cannot_be_shown_is_told_and_left(tmp_path: Path, poll_until: Until) -> None:
    @contextmanager
    def torn() -> Iterator[Reel]:
        with session_recording(sample_session(tmp_path))() as reel:
            yield Torn(reel, START + 50)  # type: ignore[misc]

    with Screen(torn, poll_until) as screen:
        screen.feed.player.play(False)
        screen.feed.player.seek(START + 50)
        poll_until(lambda: bool(screen.failures))
        assert [type(failure) for failure in screen.failures] == [KeyError]
        assert screen.at == 0
        screen.feed.player.step(1)
        screen.shows(51)


def test_a_seek_brings_the_past_with_it(screen: Screen) -> None:
    screen.feed.player.seek(START + 60)
    screen.shows(60)
    past = screen.feed.player.past()
    assert [moment.at - START for moment in past] == list(range(61))
    assert [moment.point.attack for moment in past] == [second >= 20 for second in range(61)]
    last = past[-1].point.flow
    assert (last.arrives, last.mine) == (200_000.0, 178_000.0)


def test_a_held_key_does_not_queue_up(screen: Screen) -> None:
    player = screen.feed.player
    for _ in range(500):
        player.step(1)
    for second in range(100):
        player.seek(START + second)
    screen.shows(99)
    assert len(screen.shown) < 110


def test_memory_holds_one_snapshot(tmp_path: Path, poll_until: Until) -> None:
    session = writer(tmp_path, clock=Clock())
    for second in range(40):
        session.write(snapshot(START + second, 9_000.0 + second, busy=False))
    session.close()
    with session_recording(path_of(session))() as reel:
        sizes = {type(value).__name__ for value in vars(reel).values()}
        assert sizes == {"Playback", "method", "tuple"}


def test_a_session_is_opened_and_closed_in_the_player_s_thread(tmp_path: Path, poll_until: Until) -> None:
    threads: list[int] = []
    recording = session_recording(sample_session(tmp_path))

    @contextmanager
    def noted() -> Iterator[Reel]:
        threads.append(threading.get_ident())
        with recording() as reel:
            yield reel
        threads.append(threading.get_ident())

    with Screen(noted, poll_until) as screen:
        pass
    assert not screen.failures
    assert len(threads) == 2
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


def test_a_session_that_is_being_recorded_grows(tmp_path: Path, poll_until: Until) -> None:
    session = writer(tmp_path, clock=Clock())
    ticks = session_ticks(10)
    for tick in ticks[:5]:
        session.write(tick)
    with Screen(session_recording(path_of(session)), poll_until) as screen:
        player = screen.feed.player
        player.seek(START + 100)
        screen.shows(4)
        for tick in ticks[5:]:
            session.write(tick)
        player.seek(START + 100)
        screen.shows(9)
    session.close()


def test_damaged_snapshots_and_times_are_passed_over(tmp_path: Path, poll_until: Until) -> None:
    path = sample_session(tmp_path)
    database = sqlite3.connect(path)
    database.execute("UPDATE snapshot SET data = x'00' WHERE at BETWEEN ? AND ?", (START + 50, START + 55))
    for bad in ("soon", None, -1, 1e300, b""):
        database.execute("INSERT INTO snapshot(at, pinned, data) VALUES (?, 1, x'00')", (bad,))
        database.execute("INSERT INTO tick(at, pps) VALUES (?, 'many')", (bad,))
        database.execute(
            "INSERT INTO event(at, kind, subject, text) VALUES (?, 'rule_undone', '1', '')", (bad,)
        )
    database.execute("INSERT INTO tick(at, pps) VALUES (?, 'many')", (START + 50,))
    database.commit()
    database.close()
    with Screen(session_recording(path), poll_until) as screen:
        player = screen.feed.player
        player.seek(START + 53)
        screen.shows(49)
        player.seek(START + 60)
        screen.shows(60)
        assert player.state is not None
        assert (player.state.begins, player.state.ends) == (START, START + 119)
    assert not screen.failures


def test_a_session_without_snapshots_is_refused(tmp_path: Path, poll_until: Until) -> None:
    path = sample_session(tmp_path)
    database = sqlite3.connect(path)
    database.execute("DELETE FROM snapshot")
    database.commit()
    database.close()
    with Screen(session_recording(path), poll_until) as screen:
        assert isinstance(screen.failures[0], FwtopError)


def test_long_gaps_are_skipped(tmp_path: Path, poll_until: Until, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fwtop.console.playback.player._GAP_SECONDS", 0.01)
    session = writer(tmp_path, clock=Clock())
    for second in (0, 1, 5_000):
        session.write(snapshot(START + second, busy=False))
    session.close()
    with Screen(session_recording(path_of(session)), poll_until) as screen:
        screen.feed.player.seek(START + 1)
        screen.shows(5_000)  # the test's clock stands still


def captured(seconds: int = 30) -> CaptureReel:
    """A trickle, and from second 10 to 20 a flood of one kind."""
    packets = []
    for second in range(seconds):
        for number in range(400 if 10 <= second < 20 else 4):
            source = f"198.51.{number % 200}.{second}"
            frame = ethernet(ipv4(tcp(1024 + number, 80), 6, source), 0x0800)
            packets.append((round((START + second + number / 1000) * 1e9), frame, len(frame)))
    return CaptureReel(observe_capture(io.BytesIO(pcap(packets)), "x.pcap", top=10, lookup=NoOrigin()))


def test_a_capture_opens_whole_and_steps_through_windows(poll_until: Until) -> None:
    reel = captured()
    with Screen(reel.opened, poll_until) as screen:
        player = screen.feed.player
        assert player.state is not None
        assert player.state.whole
        assert player.state.note == "window 2 s"
        total = screen.shown[-1].tables.totals.packets
        player.seek(START + 5)
        poll_until(lambda: len(screen.shown) == 2)
        quiet = screen.shown[-1]
        assert quiet.tables.totals.packets < 20
        assert quiet.tables.totals.pps == pytest.approx(quiet.tables.totals.packets / quiet.seconds)
        assert not quiet.judgement.attacks
        player.skip(1)
        poll_until(lambda: len(screen.shown) == 3)
        assert screen.shown[-1].judgement.attacks
        assert reel.shown.snapshot is screen.shown[-1]
        player.seek(START)
        player.skip(-1)
        poll_until(lambda: player.state is not None and player.state.whole)
        poll_until(lambda: screen.shown[-1].tables.totals.packets == total)


def test_a_capture_of_one_packet_has_no_windows(poll_until: Until) -> None:
    frame = ethernet(ipv4(tcp(1, 80), 6), 0x0800)
    file = io.BytesIO(pcap([(round(START * 1e9), frame, len(frame))]))
    reel = CaptureReel(observe_capture(file, "x", top=10, lookup=NoOrigin()))
    assert reel.note == "too short for windows"
    with Screen(reel.opened, poll_until) as screen:
        player = screen.feed.player
        player.step(1)
        player.play(playing=True)
        poll_until(lambda: len(screen.shown) > 1)
        assert screen.shown[-1].seconds == 0
    assert not screen.failures
