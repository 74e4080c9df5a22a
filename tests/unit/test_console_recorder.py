"""The console's recorder: what a full disk or a damaged file does to watching, which is nothing."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace
from stored_samples import session_ticks
from stored_sessions import path_of, writer

from fwtop.console import headless, recorder
from fwtop.console.headless import StatusLine
from fwtop.console.recorder import Recorder
from fwtop.model.traffic.session import Event, EventKind
from fwtop.model.traffic.snapshot import Origin
from fwtop.store.reader import list_sessions, load_session, replay

ORIGIN = Origin("live", ("eth0",))


@pytest.fixture
def tiny_disk(tmp_path: Path, root_required: None) -> Iterator[Path]:
    place = tmp_path / "tiny"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=320k", "tmpfs", str(place)], check=True, timeout=60)
    yield place
    subprocess.run(["umount", str(place)], check=True, timeout=60)


def test_a_full_disk_stops_recording_and_every_snapshot_is_still_delivered(tiny_disk: Path) -> None:
    recorder = Recorder("web-1", ORIGIN, tiny_disk)
    recorder.baseline = lambda: os.urandom(400_000)
    ticks = session_ticks()
    delivered = [recorder.write(tick) for tick in ticks]
    recorder.close(clean=True)
    assert [item.tables for item in delivered] == [tick.tables for tick in ticks]
    assert [item.mitigations for item in delivered] == [tick.mitigations for tick in ticks]
    assert delivered[0].notes == ()
    assert re.match(
        r"not stored since 03:12:\d\d: the disk is full; free some space ", delivered[-1].notes[0]
    )
    (info,) = list_sessions(tiny_disk / "sessions")
    assert 0 < len(list(replay(info.path))) < len(ticks)


def test_what_was_set_aside_is_said_once_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = writer(tmp_path, "eth9")
    earlier.write(session_ticks()[0])
    path = path_of(earlier)
    earlier.close()
    path.write_bytes(os.urandom(20_000))
    recorder = Recorder("web-1", ORIGIN, tmp_path)
    recorder.wait()
    status = StatusLine(recorder)
    notes = recorder.write(session_ticks()[0]).notes
    for _ in range(3):
        status.update(())
    recorder.close(clean=True)
    assert len(notes) == 1
    said = capsys.readouterr().err.splitlines()
    assert [line.removeprefix("fwtop: ") for line in said[1:]] == [*notes]
    assert said[0].startswith("fwtop: recording session ")
    assert notes[0].startswith(f"{path.name} is damaged (")
    assert Path(f"{path}.damaged").exists()
    again = Recorder("web-1", ORIGIN, tmp_path)
    again.wait()
    assert again.write(session_ticks()[0]).notes == ()
    again.close(clean=True)


class Storing(Struct):
    """As much of a recorder as its line needs."""

    name: str = "2026-11-23"
    problem: str = ""

    def notes(self) -> list[str]:
        return []


def test_that_storing_goes_on_is_said_though_it_was_said_within_the_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(headless.time, "monotonic", lambda: now[0])
    recorder: Any = Storing()
    status = StatusLine(recorder)
    for second, problem in ((0, ""), (5, "disk full"), (35, ""), (59, ""), (61, ""), (62, ""), (130, "")):
        now[0], recorder.problem = second, problem
        status.update(())
    line = "fwtop: recording session 2026-11-23; stop with Ctrl-C or SIGTERM"
    assert capsys.readouterr().err.splitlines() == [line, "fwtop: disk full", line]


@pytest.mark.parametrize(("clean", "told"), [(False, True), (True, False)])
def test_a_session_tells_since_when_nothing_was_recorded_if_the_one_before_was_killed(
    tmp_path: Path, clean: bool, told: bool
) -> None:
    first = Recorder("web-1", ORIGIN, tmp_path)
    tick = session_ticks()[0]
    first.write(replace(tick, started=time.time() - 60 - tick.seconds))
    assert first.path is not None
    killed = first.path.stem
    first.close(clean=clean)
    for origin, is_told in ((replace(ORIGIN, interfaces=("eth7",)), False), (ORIGIN, told)):
        second = Recorder("web-1", origin, tmp_path)
        second.wait()
        second.write(replace(tick, started=time.time() - tick.seconds))
        second.write(replace(tick, started=time.time() - tick.seconds + 1))
        assert second.path is not None
        events = [event for event in load_session(second.path).events if event.subject == "recording"]
        second.close(clean=True)
        assert len(events) == is_told
    if told:
        assert events[0].kind is EventKind.STORING_RESUMED
        before, _, why = events[0].text.partition(": ")
        assert re.fullmatch(r"nothing was recorded in the 1m(\d\ds)? before this session", before)
        assert why == f"what recorded {killed} was killed, or the machine stopped"


def test_a_session_that_begins_before_those_of_the_past_were_looked_at_tells_it_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine it found its own file, which began with older packets, and looked no further."""
    tick, written, find = session_ticks()[0], threading.Event(), recorder.interruption

    def late(*words: Any) -> Event | None:
        written.wait(20)
        return find(*words)

    first = Recorder("web-1", ORIGIN, tmp_path)
    first.write(replace(tick, started=time.time() - 60 - tick.seconds))
    first.close(clean=False)
    monkeypatch.setattr(recorder, "interruption", late)
    second = Recorder("web-1", ORIGIN, tmp_path)
    second.write(replace(tick, started=time.time() - tick.seconds))
    written.set()
    second.wait()
    second.write(replace(tick, started=time.time() - tick.seconds + 1))
    assert second.path is not None
    assert [event.kind for event in load_session(second.path).events if event.subject == "recording"] == [
        EventKind.STORING_RESUMED
    ]
    second.close(clean=True)


def test_an_unclean_end_leaves_one_file_that_counts_as_crashed(tmp_path: Path) -> None:
    recorder = Recorder("web-1", ORIGIN, tmp_path)
    recorder.write(session_ticks()[0])
    recorder.close(clean=False)
    assert sorted(path.suffix for path in (tmp_path / "sessions").iterdir()) == [".db"]
    assert [info.state for info in list_sessions(tmp_path / "sessions")] == ["crashed"]
