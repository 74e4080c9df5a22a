"""The screen on what is stored already: a capture, or a session played back."""

from __future__ import annotations

from collections.abc import Iterable

from fwtop.advise.preview import preview
from fwtop.console.capture import CaptureResult
from fwtop.console.controls import ReadOnlyControls
from fwtop.console.feed import StoredFeed
from fwtop.console.recorder import export_once
from fwtop.model.snapshot import Snapshot
from fwtop.ui.app import FwtopApp

_FORMATS = ("json", "csv")


def show_capture(result: CaptureResult) -> int:
    """Open the screen on a capture; rules can be tried on it, and nothing is installed."""
    controls = ReadOnlyControls(
        "this is a capture; the fwtop command lines of the proposals work on a live machine",
        preview=lambda rule: preview(rule, result.window, result.advisor.baseline, result.advisor.config),
        export=lambda format_name: export_once(result.snapshot, format_name),
        export_formats=_FORMATS,
    )
    return FwtopApp(StoredFeed([result.snapshot], controls)).run_to_exit()


def show_session(snapshots: Iterable[Snapshot], *, speed: float = 1.0) -> int:
    """Play a stored session on the screen."""
    shown: list[Snapshot] = []

    def remember() -> Iterable[Snapshot]:
        for snapshot in snapshots:
            shown[:] = [snapshot]
            yield snapshot

    controls = ReadOnlyControls(
        "this is a stored session",
        preview=None,
        export=lambda format_name: export_once(shown[0], format_name),
        export_formats=_FORMATS,
    )
    return FwtopApp(StoredFeed(remember(), controls, speed=speed)).run_to_exit()
