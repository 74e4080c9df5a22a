"""The application: runs the feed, shows its snapshots and restores the terminal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

from rich.console import RenderableType
from textual import events
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.app import App
from textual.binding import Binding
from textual.message import Message
from textual.screen import Screen
from textual.worker import WorkerFailed

from fwtop.model.errors import CONSOLE_OUT_OF_MEMORY, FwtopError
from fwtop.model.text import safe_text
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.sandbox.crash_log import CRASHES, failure_words
from fwtop.ui.attention import Attention
from fwtop.ui.feed import Feed
from fwtop.ui.keys import ACTIONS, KEY_MAP, remapped
from fwtop.ui.layout import Guarded
from fwtop.ui.main_screen import MainScreen
from fwtop.ui.settings import AUTO, Effective, read_settings
from fwtop.ui.style import PALETTE, THEME, WARN
from fwtop.ui.terminal import GONE_STATUS, ResilientDriver
from fwtop.ui.updates import ExactUpdate, ShownCells

SLOW_FRAME_SECONDS = 1.0
_STALLS = 20  # more frames that found the terminal busy than found it ready: it can't keep up


_SETTLED_SECONDS = 0.5  # after a resize
_IN_A_ROW = 2  # failures of the same drawing that end the program
_FRAME = "frame"  # bringing a finished picture to the terminal
_MOST_FAULTS = 100  # that are remembered


class FwtopApp(Guarded, App[None]):
    """Shows a feed's snapshots on the main screen.

    What fails inside is told in a line and survived, except drawing that fails twice in a row.

    `clock` returns Unix seconds. `slow` is for bad links: one frame a second, no bars, no history line.
    `settings` are the operator's, with what is wrong in them.
    """

    ENABLE_COMMAND_PALETTE = False
    TITLE = "fwtop"
    BINDINGS: ClassVar[list[Any]] = [Binding("ctrl+l", "send_again", priority=True)]
    CSS = "Screen { background: ansi_default; overflow: hidden; } ModalScreen { background: transparent; }"

    class SnapshotReady(Message):
        """A snapshot is ready to be drawn."""

        def can_replace(self, message: Message) -> bool:
            """Coalesce: only the newest snapshot is drawn."""
            return isinstance(message, FwtopApp.SnapshotReady)

    class FeedFailed(Message):
        """The feed failed."""

        def __init__(self, error: Exception) -> None:
            super().__init__()
            self.error = error

    def __init__(
        self,
        feed: Feed,
        *,
        clock: Callable[[], float] = time.time,
        slow: bool = False,
        settings: Effective | None = None,
    ) -> None:
        # ansi_color from the start: the constructor chooses the NO_COLOR filter
        super().__init__(driver_class=ResilientDriver, ansi_color=True)
        self.register_theme(THEME)
        self.theme = THEME.name
        self.feed = feed
        effective = settings or read_settings(())
        self.settings = effective.settings()
        self._wrong = effective.wrong
        PALETTE.use(self.settings.theme)
        PALETTE.no_color = self.no_color
        KEY_MAP.use(remapped(ACTIONS, self.settings.keys))
        slow = slow or self.settings.slow is True
        self.main = MainScreen(feed, clock=clock, slow=slow, settings=self.settings)
        self.main.view.sent = self._sent
        self.main.be_slow = self.be_slow
        self._frame_seconds = self._frame(slow=slow)
        self._shown = ShownCells()
        self._attention = Attention(self.settings.title, self.settings.bell)
        self._stalls = 0
        self._latest: Snapshot | None = None
        self._last_frame = 0.0
        self._waiting = False
        self._failure: BaseException | None = None
        self.faults: deque[BaseException] = deque(maxlen=_MOST_FAULTS)  # survived, the newest last
        self._failed: dict[str, int] = {}  # drawing → how often it failed in a row
        self._opened = False

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        failed = self._failed.get(_FRAME, 0)
        if type(renderable) is ChopsUpdate:
            renderable = ExactUpdate.of(renderable, self._shown)
        elif isinstance(renderable, LayoutUpdate):
            self._shown.note(renderable)
        super()._display(screen, renderable)  # passes what it raises to _handle_exception
        if renderable is not None and self._failed.get(_FRAME, 0) == failed:
            self.drawn(_FRAME)

    # -- from the feed

    def on_mount(self) -> None:
        """Show the screen first, then start the feed."""
        self._catch_signals()
        if isinstance(self._driver, ResilientDriver):
            self._driver.restarted = self._restarted
        self.set_interval(1.0, self._leave_if_hung_up)
        self.push_screen(self.main)
        if self._wrong:
            self.call_after_refresh(self.main.tell_wrong_settings, self._wrong)
        self.feed.start(self._deliver, self._break)
        self._opened = True

    def on_resize(self, _: events.Resize) -> None:
        """Send a whole frame once a resize has settled.

        A terminal that shrinks and grows within a moment has lost cells, although its size is as before.
        """
        self.set_timer(_SETTLED_SECONDS, self.action_send_again)

    def action_send_again(self) -> None:
        """Send a whole frame: another program wrote on the terminal, or cleared it."""
        if not self.main.is_mounted or not self.screen_stack:  # not yet, or not any more
            return
        try:
            self.main.tabs.place()
            update = self.screen._compositor.render_update(full=True, screen_stack=self._background_screens)
            self._display(self.screen, update)
        except Exception as error:
            self.drawing_failed(_FRAME, error)

    def _deliver(self, snapshot: Snapshot) -> None:
        self._latest = snapshot
        self.post_message(self.SnapshotReady())

    def _break(self, error: Exception) -> None:
        self.post_message(self.FeedFailed(error))

    def on_fwtop_app_snapshot_ready(self, _: SnapshotReady) -> None:
        """Draw at most one frame per interval; earlier snapshots wait or are replaced."""
        if self._waiting:
            return
        wait = self._last_frame + self._frame_seconds - time.monotonic()
        if wait > 0 or self._stalled():
            self._waiting = True
            self.set_timer(max(wait, self._frame_seconds / 2), self._draw)
        else:
            self._draw()

    def _draw(self) -> None:
        self._waiting = False
        if self._stalled():
            self._note_stall()
            self.post_message(self.SnapshotReady())
            return
        self._stalls = max(self._stalls - 1, 0)
        self._last_frame = time.monotonic()
        if self._latest is not None:
            self.main.take(self._latest)
            said = self._attention.take(self._latest, self.main.desk.now())
            if said and self._driver is not None:
                self._driver.write(said)

    def _restarted(self) -> None:
        self._shown.forget()
        self._attention.forget()

    def _note_stall(self) -> None:
        """Send less once the terminal can't keep up, unless the operator decided otherwise."""
        self._stalls += 1
        if self._stalls >= _STALLS and self.settings.slow == AUTO and not self.main.desk.slow:
            self.be_slow(True)
            words = "the terminal can't keep up: fewer updates from now on; :slow off ends that"
            self.main.desk.say(words, WARN)

    def be_slow(self, slow: bool) -> None:
        """Send less to the terminal, or as much as usual."""
        self.main.desk.slow = slow
        self._frame_seconds = self._frame(slow=slow)
        self._stalls = 0
        self.main.tabs.place()

    def _frame(self, *, slow: bool) -> float:
        usual = self.settings.rates.frame_seconds
        return max(usual, SLOW_FRAME_SECONDS) if slow else usual

    def _sent(self) -> int:
        return self._driver.sent if isinstance(self._driver, ResilientDriver) else 0

    def _stalled(self) -> bool:
        return isinstance(self._driver, ResilientDriver) and self._driver.stalled

    def on_fwtop_app_feed_failed(self, message: FeedFailed) -> None:
        """Close with the feed's error; one that it did not foresee is survived once there is a picture."""
        error = message.error
        if self._latest is None or isinstance(error, FwtopError | MemoryError):
            self._failure = error
            self.exit(return_code=error.code if isinstance(error, FwtopError) else 1)
        else:
            self.survive(error)

    # -- faults

    def survive(self, error: Exception) -> str:
        """Write a crash log, tell of the error in one line, and return that line."""
        cause = error.error if isinstance(error, WorkerFailed) else error
        if isinstance(cause, MemoryError) or not self._opened:
            self._end_with(error)
            return ""
        self.faults.append(cause)
        line = _fault_line(cause)
        if not self._exit:
            try:
                self.main.tell_fault(line)
            except Exception as second:  # nobody would learn of the first
                self._end_with(second)
        return line

    def drawing_failed(self, what: str, error: Exception) -> None:
        """Survive unless the same drawing fails for the second time in a row."""
        self._failed[what] = self._failed.get(what, 0) + 1
        if self._failed[what] >= _IN_A_ROW:
            self._end_with(error)
        else:
            self.survive(error)

    def drawn(self, what: str) -> None:
        """Note that a drawing succeeded."""
        self._failed.pop(what, None)

    def _handle_exception(self, error: Exception) -> None:
        """Survive what Textual passes on: errors of workers, and of bringing the picture to the terminal."""
        if isinstance(error, WorkerFailed):
            self.survive(error)
            return
        self._shown.forget()
        self.drawing_failed(_FRAME, error)
        if self._exception is None and not self._exit:
            self.call_later(self.action_send_again)

    def _end_with(self, error: Exception) -> None:
        """Close at once, without Textual's screenful of traceback with local values."""
        self._return_code = 1
        if self._exception is None:
            self._exception = error
            self._exception_event.set()
        self._close_messages_no_wait()

    # -- ways out

    def _catch_signals(self) -> None:
        if self.is_headless:
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            loop.add_signal_handler(number, self._leave, number)
        loop.set_exception_handler(self._survive_in_loop)

    def _survive_in_loop(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Survive what a callback of the event loop raised."""
        error = context.get("exception")
        if isinstance(error, Exception):
            self.survive(error)

    def _leave_if_hung_up(self) -> None:
        with self.surviving():
            if isinstance(self._driver, ResilientDriver) and self._driver.hung_up:
                self.exit(return_code=GONE_STATUS)

    def _leave(self, number: int) -> None:
        self.exit(return_code=128 + number)

    def run_to_exit(self) -> int:
        """Run, print the farewell and return the exit status; a failure is one line on standard error."""
        if not (sys.__stdin__ and sys.__stdin__.isatty() and sys.__stderr__ and sys.__stderr__.isatty()):
            print("fwtop: the screen needs a terminal; 'fwtop snapshot' works without one", file=sys.stderr)
            return 2
        for stale in ("COLUMNS", "LINES"):  # exported by a shell; Textual believes them
            os.environ.pop(stale, None)
        try:
            self.run()
        except Exception as error:
            self._failure = error
        finally:
            self.feed.stop()
        failure = self._failure or self._exception
        if failure is None:
            if not self.return_code:  # a signal or a terminal that is gone: nobody reads
                print(*self.main.session.farewell(), sep="\n")
            return self.return_code or 0
        line, status = _one_line(failure)
        print(f"fwtop: {line}", file=sys.stderr)
        return status


def _fault_line(error: BaseException) -> str:
    """Tell of something that failed and was survived; the log's path must fit 80 columns."""
    if isinstance(error, FwtopError):
        return safe_text(error)
    path = CRASHES.path_of(error)
    return f"failed: {type(error).__name__}; see {path}" if path else f"failed: {failure_words(error)}"


def _one_line(failure: BaseException) -> tuple[str, int]:
    if isinstance(failure, FwtopError):
        return safe_text(failure, limit=1000), failure.code
    if isinstance(failure, MemoryError):
        return CONSOLE_OUT_OF_MEMORY, 1
    path = CRASHES.path_of(failure)
    where = f"; details in {path}" if path else ""
    return f"the screen failed ({failure_words(failure)}){where}", 1
