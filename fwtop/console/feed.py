"""The screen's feed of live traffic, and the function that opens a screen on it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

from fwtop.console.bootstrap import WINDOW_SECONDS, LiveConsole
from fwtop.console.frugal import keep_out_of_collections
from fwtop.console.handoff import Handoff, Options
from fwtop.console.live_controls import live_controls
from fwtop.console.packet_ring import PacketRing
from fwtop.console.playback.replay import find_earlier
from fwtop.model.errors import FwtopError
from fwtop.model.files import ConfigText
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.ui.app import FwtopApp
from fwtop.ui.lists.history import Past
from fwtop.ui.settings import read_settings

_STARTED_SNAPSHOTS = 4  # by then widgets, styles and the first window are there
OnSnapshot = Callable[[Snapshot], None]
OnError = Callable[[Exception], None]
_JOIN_SECONDS = 1.0


class LiveFeed:
    """Observes on a thread of its own. Pausing only stops delivery; observing and storing continue."""

    def __init__(self, console: LiveConsole, ring: PacketRing, tick_seconds: float) -> None:
        self.controls = live_controls(console, ring)
        self._console = console
        self._tick_seconds = tick_seconds
        self._stop = threading.Event()
        self._paused = False
        self._thread: threading.Thread | None = None

    @property
    def session(self) -> str:
        """The name of the session's file; "" while none is stored."""
        recorder = self._console.recorder
        return recorder.path.stem if recorder is not None and recorder.path is not None else ""

    @property
    def player(self) -> None:
        """Live traffic isn't played."""
        return

    def past(self) -> tuple[tuple[Past, ...], dict[str, float]]:
        """Return what a recorder saw before the screen was opened."""
        earlier = self._console.earlier
        return ((), {}) if earlier is None else (earlier.past, earlier.rules)

    def start(self, on_snapshot: OnSnapshot, on_error: OnError) -> None:
        """Begin observing."""

        shown = itertools.count(1)

        def deliver(snapshot: Snapshot) -> None:
            if next(shown) == _STARTED_SNAPSHOTS:
                keep_out_of_collections()
            if not self._paused:
                on_snapshot(snapshot)

        def observe() -> None:
            while not self._stop.is_set():
                try:
                    self._console.run(self._stop, self._tick_seconds, deliver)
                except Exception as error:
                    if not self._stop.is_set():
                        on_error(error)
                    if isinstance(error, FwtopError | MemoryError):
                        return
                    self._stop.wait(self._tick_seconds)

        self._thread = threading.Thread(target=observe, name="observe", daemon=True)
        self._thread.start()

    def pause(self, paused: bool) -> None:
        """Stop or resume delivering snapshots."""
        self._paused = paused

    def stop(self) -> None:
        """End observing."""
        self._stop.set()
        self.controls.close()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)


_TICK_SECONDS = 0.5
_SLOW_TICK_SECONDS = 2.0


def run_screen(options: Options, handoff: Handoff, descriptors: list[int]) -> int:
    """Show live traffic until the operator quits; returns the exit status."""
    ring = PacketRing()
    console = LiveConsole(
        options, handoff, descriptors, window_seconds=WINDOW_SECONDS, find_earlier=find_earlier, ring=ring
    )
    settings = read_settings(ConfigText(*file) for file in handoff.settings)
    slow = options.slow or settings.settings().slow is True
    feed = LiveFeed(console, ring, _SLOW_TICK_SECONDS if slow else _TICK_SECONDS)
    clean = False
    try:
        status = FwtopApp(feed, slow=slow, settings=settings).run_to_exit()
        clean = True
        return status
    finally:
        console.close(clean=clean)
