"""The screen's feeds, live traffic and stored snapshots, and the functions that open a screen on them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from fwtop.analysis.proposals.preview import preview
from fwtop.console.bootstrap import WINDOW_SECONDS, LiveConsole, build
from fwtop.console.control.controls import ReadOnlyControls
from fwtop.console.handoff import Handoff, Options
from fwtop.console.packets.packet_lists import CapturedPackets
from fwtop.console.packets.samples import SamplePackets
from fwtop.console.playback.capture import CaptureReel, CaptureResult
from fwtop.console.playback.player import StoredFeed
from fwtop.console.playback.replay import session_recording
from fwtop.console.recorder import export_once
from fwtop.console.traffic_parts import TrafficParts
from fwtop.dissect.client import Dissector
from fwtop.model.config_file import ConfigText
from fwtop.model.rule import Preview, Rule
from fwtop.model.traffic.history import Trends
from fwtop.model.traffic.snapshot import Snapshot, Sources
from fwtop.model.traffic.window import OriginLookup
from fwtop.store.history_schema import FILE_NAME
from fwtop.store.reader import session_info
from fwtop.store.trends import read_trends
from fwtop.ui.app import FwtopApp
from fwtop.ui.settings import read_settings

OnSnapshot = Callable[[Snapshot], None]
OnError = Callable[[Exception], None]
_JOIN_SECONDS = 1.0


class LiveFeed:
    """Observes on a thread of its own. Pausing only stops delivery; observing and storing continue."""

    def __init__(self, console: LiveConsole, tick_seconds: float) -> None:
        self.controls = console.controls
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
        self.controls.close()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)


_TICK_SECONDS = 0.5
_SLOW_TICK_SECONDS = 2.0


def run_screen(options: Options, handoff: Handoff, descriptors: list[int]) -> int:
    """Show live traffic until the operator quits; returns the exit status."""
    console = build(options, handoff, descriptors, window_seconds=WINDOW_SECONDS)
    settings = read_settings(ConfigText(*file) for file in handoff.settings)
    slow = options.slow or settings.settings().slow is True
    feed = LiveFeed(console, _SLOW_TICK_SECONDS if slow else _TICK_SECONDS)
    clean = False
    try:
        status = FwtopApp(feed, slow=slow, settings=settings).run_to_exit()
        clean = True
        return status
    finally:
        console.close(clean=clean)


_FORMATS = ("json", "csv")


def show_capture(
    result: CaptureResult,
    lookup: OriginLookup,
    dissector: socket.socket | None = None,
    *,
    files: Iterable[ConfigText] = (),
) -> int:
    """Open the screen on a capture; rules can be previewed, and nothing is installed."""
    reel = CaptureReel(result)

    def replayed(rule: Rule) -> Preview:
        shown = reel.shown
        return preview(rule, shown.window, shown.advisor.baseline, shown.advisor.config)

    def marked(sources: Sources) -> Sources:
        return reel.shown.advisor.standing.mark(sources)

    controls = ReadOnlyControls(
        "this is a capture; the fwtop command lines of the proposals work on a live machine",
        preview=replayed,
        parts=TrafficParts(lambda: reel.shown.advisor.judged, marked, lookup, result.top),
        samples=SamplePackets(lambda: reel.shown.window, lookup, Dissector(dissector) if dissector else None),
        packets=CapturedPackets(lambda: (reel.shown.window, reel.shown.advisor.standing)),
        export=lambda format_name: export_once(reel.shown.snapshot, format_name),
        export_formats=_FORMATS,
    )
    return FwtopApp(StoredFeed(reel.opened, controls), settings=read_settings(files)).run_to_exit()


def trends_beside(path: Path, at: float) -> Trends:
    """Return the trends of what a session watched, from the history beside its directory."""
    info = session_info(path)
    history = path.parent.parent / FILE_NAME
    return read_trends(history, at, interfaces=info.interfaces, netns=info.netns)


def show_session(path: Path, *, speed: float = 1.0, files: Iterable[ConfigText] = ()) -> int:
    """Play a stored session on the screen."""
    controls = ReadOnlyControls(
        "this is a stored session",
        preview=None,
        trends=partial(trends_beside, path),
        export=lambda format_name: export_once(feed.shown(), format_name),
        export_formats=_FORMATS,
    )
    feed = StoredFeed(session_recording(path), controls, speed=speed)
    return FwtopApp(feed, settings=read_settings(files)).run_to_exit()
