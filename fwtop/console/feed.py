"""Feeds of the screen: live traffic, or snapshots that are there already."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from fwtop.console.controls import ReadOnlyControls
from fwtop.console.wiring import LiveConsole
from fwtop.model.snapshot import Snapshot

OnSnapshot = Callable[[Snapshot], None]
OnError = Callable[[Exception], None]
_JOIN_SECONDS = 1.0


class LiveFeed:
    """Observes on a thread of its own; pausing keeps observing and storing, and only shows nothing new."""

    def __init__(self, console: LiveConsole, tick_seconds: float) -> None:
        self.controls = console.controls
        self._console = console
        self._tick_seconds = tick_seconds
        self._stop = threading.Event()
        self._paused = False
        self._thread: threading.Thread | None = None

    def start(self, on_snapshot: OnSnapshot, on_error: OnError) -> None:
        """Begin observing."""

        def deliver(snapshot: Snapshot) -> None:
            if not self._paused:
                on_snapshot(snapshot)

        def observe() -> None:
            try:
                self._console.run(self._stop, self._tick_seconds, deliver)
            except Exception as error:
                if not self._stop.is_set():
                    on_error(error)

        self._thread = threading.Thread(target=observe, name="observe", daemon=True)
        self._thread.start()

    def pause(self, paused: bool) -> None:
        """Stop or resume delivering snapshots."""
        self._paused = paused

    def stop(self) -> None:
        """End observing."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)


class StoredFeed:
    """Plays snapshots back: one for a capture, many with their own times for a session."""

    def __init__(
        self, snapshots: Iterable[Snapshot], controls: ReadOnlyControls, *, speed: float = 1.0
    ) -> None:
        self.controls = controls
        self._snapshots = snapshots
        self._speed = speed
        self._stop = threading.Event()
        self._running = threading.Event()
        self._running.set()
        self._thread: threading.Thread | None = None

    def start(self, on_snapshot: OnSnapshot, on_error: OnError) -> None:
        """Begin playing; after the last snapshot the screen keeps showing it."""

        def play() -> None:
            last: float | None = None
            try:
                for snapshot in self._snapshots:
                    ends = snapshot.started + snapshot.seconds
                    self._wait(0.0 if last is None else min((ends - last) / self._speed, 2.0))
                    last = ends
                    if self._stop.is_set():
                        return
                    on_snapshot(snapshot)
            except Exception as error:
                on_error(error)

        self._thread = threading.Thread(target=play, name="play", daemon=True)
        self._thread.start()

    def pause(self, paused: bool) -> None:
        """Hold the playing, or go on."""
        if paused:
            self._running.clear()
        else:
            self._running.set()

    def stop(self) -> None:
        """End playing."""
        self._stop.set()
        self._running.set()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)

    def _wait(self, seconds: float) -> None:
        due = time.monotonic() + max(seconds, 0.0)
        self._stop.wait(due - time.monotonic())
        self._running.wait()
