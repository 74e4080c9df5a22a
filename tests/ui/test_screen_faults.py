"""What fails inside the screen is a line with the path of a crash log; drawing that fails twice ends it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from screen_factory import snapshot, trial
from screen_fakes import FakeFeed
from screen_run import LARGE, Run, running
from screen_world import everything_listed
from textual.screen import Screen

import fwtop.ui.actions.row_actions
import fwtop.ui.app
from fwtop.console.feed import LiveFeed
from fwtop.model.errors import FwtopError
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.sandbox.crash_log import CrashLog
from fwtop.ui.actions.dialog import DetailsDialog
from fwtop.ui.actions.rule_dialog import RuleDialog
from fwtop.ui.bars import Footer, StatusBars
from fwtop.ui.layout import Lines
from fwtop.ui.lists.panel import Panel
from fwtop.ui.main_screen import MainScreen
from fwtop.ui.snapshot_view import SnapshotView
from fwtop.ui.terminal import ResilientDriver


class OddError(Exception):
    """What nobody foresaw."""


def odd(*_: object, **__: object) -> Any:
    raise OddError("a [red]bad\x1b[31m value")


async def odd_answer(*_: object, **__: object) -> Any:
    raise OddError


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(fwtop.ui.app, "CRASHES", CrashLog(lambda: (tmp_path,)))
    return tmp_path


def assert_told(run: Run, logs: Path) -> None:
    """Something failed, the line says so, the log tells what, and the keys go on working."""
    assert [type(fault) for fault in run.app.faults] == [OddError] * len(run.app.faults)
    assert run.app.faults
    written = list(logs.iterdir())
    assert 1 <= len(written) <= 3
    for log in written:
        assert "OddError" in log.read_text()
        assert "\x1b" not in log.read_text()
    assert f"failed: OddError; see {logs}"[:60] in run.text()


async def assert_alive(run: Run) -> None:
    for _ in range(2):
        if run.app.screen is not run.app.main:
            await run.press("escape")
    assert run.app.screen is run.app.main
    await run.press("right_square_bracket")
    assert run.app.main.tabs.shown.name == "traffic"
    await run.send(snapshot(host="web2"))
    assert "web2" in run.text()
    assert run.app.is_running
    assert not run.app._exit


Break = Callable[[pytest.MonkeyPatch, FakeFeed], None]
HANDLERS: dict[str, tuple[Break, tuple[str, ...]]] = {
    "a key": (lambda patch, _: patch.setattr(MainScreen, "graph", odd), ("g",)),
    "details": (lambda patch, _: patch.setattr(fwtop.ui.actions.row_actions, "details_of", odd), ("r",)),
    "a command": (
        lambda patch, _: patch.setattr(MainScreen, "theme", odd),
        (":", *"theme light", "enter"),
    ),
    "a worker": (lambda patch, feed: patch.setattr(feed.controls, "why", odd_answer), ("w",)),
    "an export": (lambda patch, feed: patch.setattr(feed.controls, "export", odd_answer), ("e", "enter")),
    "a key on the filter": (
        lambda patch, _: patch.setattr(Panel, "set_filter", odd),
        ("slash", "x", "escape"),
    ),
    "a key in a dialog": (lambda patch, _: patch.setattr(RuleDialog, "action_mark", odd), ("b", "down")),
    "a preview": (lambda patch, feed: patch.setattr(feed.controls, "preview", odd_answer), ("b",)),
    "a plan": (lambda patch, feed: patch.setattr(feed.controls, "plan", odd_answer), ("1", "up")),
    "a set's preview": (lambda patch, feed: patch.setattr(feed.controls, "preview", odd_answer), ("A",)),
    "dissection": (
        lambda patch, feed: patch.setattr(feed.controls, "dissect", odd_answer),
        ("v", "r"),
    ),
    "a dialog's text": (lambda patch, _: patch.setattr(DetailsDialog, "body", odd), ("question_mark",)),
    "a set's text": (lambda patch, _: patch.setattr(RuleDialog, "foot", odd), ("A",)),
    "a dialog's beginning": (lambda patch, _: patch.setattr(RuleDialog, "_ask", odd), ("b",)),
}


@pytest.mark.parametrize("what", HANDLERS)
async def test_what_a_key_leads_to_may_fail(what: str, monkeypatch: pytest.MonkeyPatch, logs: Path) -> None:
    break_it, keys = HANDLERS[what]
    shot, feed = everything_listed()
    break_it(monkeypatch, feed)
    async with running(shot, LARGE, at="sources", feed=feed, faults=True) as run:
        await run.press(*keys)
        assert_told(run, logs)
        monkeypatch.undo()
        monkeypatch.setattr(fwtop.ui.app, "CRASHES", CrashLog(lambda: (logs,)))
        await assert_alive(run)


async def test_a_dialog_whose_numbers_fail_does_not_go_on_counting(logs: Path) -> None:
    feed = FakeFeed()
    feed.controls.preview = odd_answer
    async with running(snapshot(), at="sources", feed=feed, faults=True) as run:
        await run.press("b")
        assert "counting" not in run.text()
        assert "failed: OddError" in run.text()
        await run.press("enter")
        assert run.app.screen is run.app.main
        assert "apply" not in feed.controls.verbs()


async def test_clicks_and_timers_may_fail(monkeypatch: pytest.MonkeyPatch, logs: Path) -> None:
    monkeypatch.setattr(Footer, "on_click", odd)
    async with running(snapshot(), faults=True) as run:
        await run.pilot.click("#footer", offset=(3, 0))
        await run.settle()
        assert len(run.app.faults) == 1
        run.app.main.set_timer(0.001, odd)
        await run.until(lambda: len(run.app.faults) == 2)
        run.app.main.call_after_refresh(odd)
        run.app.main.refresh()
        await run.until(lambda: len(run.app.faults) >= 3)
        assert "failed: OddError" in run.text()
        await assert_alive(run)


@contextmanager
def broken(patch: pytest.MonkeyPatch, where: object, name: str) -> Iterator[None]:
    with patch.context() as inside:
        inside.setattr(where, name, odd)
        yield


async def test_a_panel_that_cannot_be_drawn_is_empty_and_the_others_are_not(
    monkeypatch: pytest.MonkeyPatch, logs: Path
) -> None:
    async with running(snapshot(), LARGE, at="ports", faults=True) as run:
        panel = run.app.main.tabs.panels["ports"]
        with monkeypatch.context() as patch:
            patch.setattr(panel.rows, "row", replace(panel.rows.row, key=odd))
            await run.press("j")
            await run.send(snapshot())
            assert "not drawn: internal error" in run.text()
            assert "203.0.113.1" in run.text()
            assert_told(run, logs)
            assert panel.current() is None, "a key must not refer to a row that isn't seen"
            await run.press("b")
            assert "nothing is selected" in run.text()
            said = len(run.app.faults)
            for _ in range(20):
                await run.send(snapshot())
            assert len(run.app.faults) > said, "it is tried again"
        await run.send(snapshot())
        assert "not drawn" not in run.text()
        assert panel.current() is not None
        assert len(list(logs.iterdir())) <= 3


BARS = ("status_line", "header_lines")


@pytest.mark.parametrize("name", BARS)
async def test_a_bar_that_cannot_be_drawn_is_empty(
    name: str, monkeypatch: pytest.MonkeyPatch, logs: Path
) -> None:
    async with running(snapshot(), LARGE, faults=True) as run:
        with broken(monkeypatch, fwtop.ui.bars, name):
            for _ in range(3):
                await run.send(snapshot(host="web2"))
            assert "not drawn: internal error" in run.text()
            assert "203.0.113.1" in run.text()
        await assert_alive(run)


async def test_what_cannot_be_remembered_stops_no_picture(
    monkeypatch: pytest.MonkeyPatch, logs: Path
) -> None:
    async with running(snapshot(), faults=True) as run:
        with broken(monkeypatch, run.app.main.desk.log, "take"):
            for host in ("web2", "web3"):
                await run.send(snapshot(host=host))
                assert host in run.text()
        assert_told(run, logs)
        await assert_alive(run)
        await run.press("colon", *"tab log", "enter")
        assert "internal error" in run.text()
        assert "×2" in run.text(), "the log counts what came again"


async def test_drawing_that_fails_once_is_survived(monkeypatch: pytest.MonkeyPatch, logs: Path) -> None:
    async with running(snapshot(), faults=True) as run:
        for _ in range(3):
            with broken(monkeypatch, StatusBars, "draw"):
                run.app.main.view.redraw_lines()
            await run.send(snapshot())
        assert len(run.app.faults) == 3
        await assert_alive(run)


WHOLE = {"the lists": (SnapshotView, "_redraw_lists"), "the bars": (StatusBars, "draw")}


@pytest.mark.parametrize("what", WHOLE)
async def test_drawing_that_fails_twice_in_a_row_ends_the_program(
    what: str, monkeypatch: pytest.MonkeyPatch, logs: Path
) -> None:
    with pytest.raises(OddError):  # noqa: PT012 - Pilot raises what ended the application
        async with running(snapshot(), faults=True) as run:
            monkeypatch.setattr(*WHOLE[what], odd)
            run.app.main.view.redraw()
            assert run.app._exception is None
            run.app.main.view.redraw()
            await run.until(lambda: not run.app.is_running)


async def test_a_picture_that_cannot_be_composed_is_sent_again(
    monkeypatch: pytest.MonkeyPatch, logs: Path
) -> None:
    render, failed = Lines.render_line, []

    def fail_once(self: Lines, y: int) -> Any:
        if not failed:
            failed.append(y)
            odd()
        return render(self, y)

    async with running(snapshot(), faults=True) as run:
        with monkeypatch.context() as patch:
            patch.setattr(Lines, "render_line", fail_once)
            run.app.main.tabs.panel.refresh()
            await run.until(lambda: bool(run.app.faults))
            await run.settle()
        assert run.app._exception is None
        assert not run.app._failed
        await assert_alive(run)
    monkeypatch.setattr(Lines, "render_line", odd)
    with pytest.raises(OddError):
        async with running(snapshot(), faults=True) as run:
            await run.until(lambda: not run.app.is_running)


class Watch:
    """A console whose observation fails now and then."""

    earlier = recorder = None
    wants = ()

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.runs = 0
        self.session = self

    def take(self, shown: Snapshot) -> Snapshot:
        return shown

    def run(self, stop: threading.Event, seconds: float, deliver: Callable[[Any], None]) -> None:
        self.runs += 1
        deliver(snapshot())
        error = self.errors.pop(0)
        if error is not None:
            raise error
        stop.set()


def observed(*errors: Exception | None, monkeypatch: pytest.MonkeyPatch) -> tuple[Watch, list[Exception]]:
    monkeypatch.setattr(fwtop.console.feed, "live_controls", lambda *_: None)
    watch, told = Watch(*errors), []
    feed = LiveFeed(watch, None, 0.0)  # type: ignore[arg-type]
    feed.start(lambda _: None, told.append)
    assert feed._thread is not None
    feed._thread.join(60)
    assert not feed._thread.is_alive()
    return watch, told


def test_the_watch_goes_on_after_what_nobody_foresaw(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, told = observed(OddError(), OddError(), None, monkeypatch=monkeypatch)
    assert watch.runs == 3
    assert [type(error) for error in told] == [OddError, OddError]
    watch, told = observed(FwtopError("gone"), None, monkeypatch=monkeypatch)
    assert watch.runs == 1
    assert len(told) == 1


class SlowWatch(Watch):
    """A console that works on when it should stop, as a tick on an overloaded machine does."""

    def __init__(self) -> None:
        super().__init__()
        self.works, self.done, self.closed = threading.Event(), threading.Event(), False

    def run(self, stop: threading.Event, seconds: float, deliver: Callable[[Any], None]) -> None:
        self.works.set()
        stop.wait(60)
        self.done.wait(60)
        self.works.clear()

    def close(self, *, clean: bool) -> None:
        assert not self.works.is_set()
        self.closed = True


@pytest.mark.parametrize("hangs", [False, True])
def test_nothing_is_closed_under_what_is_still_observing(
    hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session's database that was closed while its thread wrote to it ended the console by SIGSEGV."""
    watch, feeds = SlowWatch(), []

    class App:
        def __init__(self, feed: LiveFeed, **_: object) -> None:
            feeds.append(feed)

        def run_to_exit(self) -> int:
            feeds[0].start(lambda _: None, lambda _: None)
            assert watch.works.wait(60)
            if not hangs:
                threading.Timer(1.2, watch.done.set).start()
            feeds[0].stop()
            return 3

    monkeypatch.setattr(fwtop.console.feed, "live_controls", lambda *_: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(fwtop.console.feed, "LiveConsole", lambda *_, **__: watch)
    monkeypatch.setattr(fwtop.console.feed, "FwtopApp", App)
    monkeypatch.setattr(os, "_exit", sys.exit)
    if hangs:
        monkeypatch.setattr(fwtop.console.feed, "_JOIN_SECONDS", 0.1)
    options, handoff = SimpleNamespace(slow=False), SimpleNamespace(settings=())
    with pytest.raises(SystemExit, match="3"):
        sys.exit(fwtop.console.feed.run_screen(options, handoff, []))  # type: ignore[arg-type]
    assert watch.closed is not hangs
    watch.done.set()
    assert feeds[0]._thread is not None
    feeds[0]._thread.join(60)


async def test_a_feed_that_fails_is_told_and_goes_on(logs: Path) -> None:
    async with running(trial(), faults=True) as run:
        run.feed.fail(OddError())
        await run.settle()
        assert_told(run, logs)
        await assert_alive(run)


def test_the_keyboard_outlives_what_cannot_be_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = ResilientDriver.__new__(ResilientDriver)
    driver.exit_event = threading.Event()
    told: list[Any] = []

    class App:
        _handle_exception = None

        def call_later(self, *call: object) -> None:
            told.append(call)

    driver._app = App()  # type: ignore[assignment]

    def read() -> None:
        if len(told) == 2:
            driver.exit_event.set()
            return
        raise OddError

    monkeypatch.setattr(driver, "run_input_thread", read)
    driver._run_input_thread()
    assert len(told) == 2


def test_screens_are_guarded() -> None:
    """Each widget and screen of fwtop's own survives what its handlers raise."""
    from fwtop.ui.layout import Guarded

    def below(cls: type) -> Iterator[type]:
        for found in cls.__subclasses__():
            yield found
            yield from below(found)

    bare = {
        cls
        for cls in {*below(Screen), *below(fwtop.ui.layout.Widget)}
        if cls.__module__.startswith("fwtop.") and not issubclass(cls, Guarded)
    }
    assert {cls.__name__ for cls in bare} <= {"RuleKeysScreen"}, "an abstract base"
