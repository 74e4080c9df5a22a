"""Screens on what was recorded: a capture, a stored session. A live console doesn't load this module."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from fwtop.analysis.proposals.preview import preview
from fwtop.console.controls import ReadOnlyControls
from fwtop.console.packet_ring import CapturedPackets
from fwtop.console.playback.capture import CaptureReel, CaptureResult
from fwtop.console.playback.player import StoredFeed
from fwtop.console.playback.replay import session_recording
from fwtop.console.samples import SamplePackets, TrafficParts
from fwtop.dissect.client import Dissector
from fwtop.model.files import ConfigText
from fwtop.model.rule import Preview, Rule
from fwtop.model.traffic.packets import OriginLookup
from fwtop.model.traffic.session import Trends
from fwtop.model.traffic.snapshot import Snapshot, Sources
from fwtop.store.history import FILE_NAME
from fwtop.store.reader import session_info
from fwtop.store.trends import read_trends
from fwtop.ui.app import FwtopApp
from fwtop.ui.settings import read_settings

_FORMATS = ("json", "csv")


def _exported(snapshot: Snapshot, format_name: str) -> str:
    from fwtop.report import export_snapshot  # late: 2 MB that only an export needs

    return export_snapshot(snapshot, format_name)


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
        packets=CapturedPackets(lambda: (reel.shown.window, reel.shown.advisor.standing)).packets,
        export=lambda format_name: _exported(reel.shown.snapshot, format_name),
        export_formats=_FORMATS,
    )
    return FwtopApp(StoredFeed(reel.opened, controls), settings=read_settings(files)).run_to_exit()


def _trends_beside(path: Path, at: float) -> Trends:
    """Return the trends of what a session watched, from the history beside its directory."""
    info = session_info(path)
    history = path.parent.parent / FILE_NAME
    return read_trends(history, at, interfaces=info.interfaces, netns=info.netns)


def show_session(path: Path, *, speed: float = 1.0, files: Iterable[ConfigText] = ()) -> int:
    """Play a stored session on the screen."""
    controls = ReadOnlyControls(
        "this is a stored session",
        preview=None,
        trends=partial(_trends_beside, path),
        export=lambda format_name: _exported(feed.shown(), format_name),
        export_formats=_FORMATS,
    )
    feed = StoredFeed(session_recording(path), controls, speed=speed)
    return FwtopApp(feed, settings=read_settings(files)).run_to_exit()
