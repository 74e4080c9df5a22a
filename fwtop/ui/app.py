"""The application: starts the feed, shows its snapshots, and leaves the terminal as it was."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console
from textual.app import App
from textual.message import Message

from fwtop.model.errors import FwtopError
from fwtop.model.paths import STATE_DIRECTORY
from fwtop.model.snapshot import Snapshot
from fwtop.model.text import safe_text
from fwtop.ui.feed import Feed
from fwtop.ui.main_screen import MainScreen
from fwtop.ui.palette import PICTURE_THEME, THEME
from fwtop.ui.picture import SVG_FORMAT
from fwtop.ui.terminal import GONE_STATUS, SturdyDriver

FRAME_SECONDS = 0.25
SLOW_FRAME_SECONDS = 1.0


class FwtopApp(App[None]):
    """Renders snapshots of a feed and sends keys on.

    `clock` gives Unix seconds; a test gives a fixed one. `slow` is for bad links: one frame a second,
    no bars and no history line.
    """

    ENABLE_COMMAND_PALETTE = False
    TITLE = "fwtop"
    BINDINGS: ClassVar[list[Any]] = []
    CSS = "Screen { background: ansi_default; overflow: hidden; } ModalScreen { background: transparent; }"

    class Fresh(Message):
        """A snapshot waits; a newer notice replaces an older one."""

        def can_replace(self, message: Message) -> bool:
            """Only the newest counts."""
            return isinstance(message, FwtopApp.Fresh)

    class Broken(Message):
        """The feed failed."""

        def __init__(self, error: Exception) -> None:
            super().__init__()
            self.error = error

    def __init__(self, feed: Feed, *, clock: Callable[[], float] = time.time, slow: bool = False) -> None:
        # ansi_color at once: Textual chooses its NO_COLOR filter while it is being made
        super().__init__(driver_class=SturdyDriver, ansi_color=True)
        self.register_theme(THEME)
        self.theme = THEME.name
        self.feed = feed
        self.main = MainScreen(feed, clock=clock, slow=slow)
        self._frame_seconds = SLOW_FRAME_SECONDS if slow else FRAME_SECONDS
        self._latest: Snapshot | None = None
        self._last_frame = 0.0
        self._waiting = False
        self._failure: BaseException | None = None

    # -- from the feed

    def on_mount(self) -> None:
        """Show the screen first, then start the feed."""
        self._catch_signals()
        self.set_interval(1.0, self._leave_if_hung_up)
        self.push_screen(self.main)
        self.feed.start(self._deliver, self._break)

    def _deliver(self, snapshot: Snapshot) -> None:
        self._latest = snapshot
        self.post_message(self.Fresh())

    def _break(self, error: Exception) -> None:
        self.post_message(self.Broken(error))

    def on_fwtop_app_fresh(self, _: Fresh) -> None:
        """Draw at most one frame an interval; what comes sooner waits and is replaced."""
        if self._waiting:
            return
        wait = self._last_frame + self._frame_seconds - time.monotonic()
        if wait > 0 or self._stalled():
            self._waiting = True
            self.set_timer(max(wait, self._frame_seconds / 2), self._draw)
            return
        self._draw()

    def _draw(self) -> None:
        self._waiting = False
        if self._stalled():
            self.post_message(self.Fresh())
            return
        self._last_frame = time.monotonic()
        if self._latest is not None:
            self.main.take(self._latest)

    def _stalled(self) -> bool:
        return isinstance(self._driver, SturdyDriver) and self._driver.stalled

    def on_fwtop_app_broken(self, message: Broken) -> None:
        """Close with the feed's error."""
        self._failure = message.error
        self.exit(return_code=message.error.code if isinstance(message.error, FwtopError) else 1)

    # -- ways out

    def _catch_signals(self) -> None:
        if self.is_headless:
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            loop.add_signal_handler(number, self._leave, number)

    def _leave_if_hung_up(self) -> None:
        if isinstance(self._driver, SturdyDriver) and self._driver.hung_up:
            self.exit(return_code=GONE_STATUS)

    def _leave(self, number: int) -> None:
        self.exit(return_code=128 + number)

    def _handle_exception(self, error: Exception) -> None:
        """Close at once; Textual would print a screenful of traceback with local values."""
        self._return_code = 1
        if self._exception is None:
            self._exception = error
            self._exception_event.set()
        self._close_messages_no_wait()

    def run_to_exit(self) -> int:
        """Run until the end and return the exit status; failures become one line on standard error."""
        if not (sys.__stdin__ and sys.__stdin__.isatty() and sys.__stderr__ and sys.__stderr__.isatty()):
            print("fwtop: the screen needs a terminal; 'fwtop snapshot' works without one", file=sys.stderr)
            return 2
        try:
            self.run()
        except Exception as error:
            self._failure = error
        finally:
            self.feed.stop()
        failure = self._failure or self._exception
        if failure is None:
            return self.return_code or 0
        line, status = _in_one_line(failure)
        print(f"fwtop: {line}", file=sys.stderr)
        return status

    # -- pictures

    def picture(self, title: str = "fwtop") -> str:
        """Return the present screen as SVG, which needs no fonts or files from elsewhere."""
        width, height = self.size
        console = Console(
            width=width,
            height=height,
            file=io.StringIO(),
            force_terminal=True,
            color_system="truecolor",
            record=True,
            legacy_windows=False,
            safe_box=False,
        )
        update = self.screen._compositor.render_update(full=True, screen_stack=self._background_screens)
        console.print(update)
        return console.export_svg(
            title=title,
            theme=PICTURE_THEME,
            code_format=SVG_FORMAT,
            unique_id="fwtop",
            font_aspect_ratio=0.602,
        )


def _in_one_line(failure: BaseException) -> tuple[str, int]:
    if isinstance(failure, FwtopError):
        return safe_text(failure, limit=1000), failure.code
    path = _write_log(failure)
    where = f"; details in {path}" if path else ""
    return f"the screen failed ({type(failure).__name__}: {safe_text(failure, limit=120)}){where}", 1


def _write_log(failure: BaseException) -> str:
    """Keep the traceback in a file of mode 0600; what it quotes is made harmless first."""
    text = "".join(traceback.format_exception(failure))
    safe = "\n".join(safe_text(line, limit=2000) for line in text.splitlines())
    for directory in (STATE_DIRECTORY, Path(tempfile.gettempdir())):
        try:
            handle, path = tempfile.mkstemp(".log", time.strftime("crash-%Y%m%d-%H%M%S-"), directory)
        except OSError:
            continue
        with os.fdopen(handle, "w", encoding="utf-8") as log:
            log.write(safe + "\n")
        return path
    return ""
