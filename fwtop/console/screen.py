"""The screen on live traffic."""

from __future__ import annotations

from fwtop.console.feed import LiveFeed
from fwtop.console.handoff import Handoff, Options
from fwtop.console.wiring import WINDOW_SECONDS, build
from fwtop.ui.app import FwtopApp

_TICK_SECONDS = 0.5
_SLOW_TICK_SECONDS = 2.0


def run_screen(options: Options, handoff: Handoff, descriptors: list[int]) -> int:
    """Show live traffic until the operator quits; returns the exit status."""
    console = build(options, handoff, descriptors, window_seconds=WINDOW_SECONDS)
    feed = LiveFeed(console, _SLOW_TICK_SECONDS if options.slow else _TICK_SECONDS)
    clean = False
    try:
        status = FwtopApp(feed, slow=options.slow).run_to_exit()
        clean = True
        return status
    finally:
        console.close(clean=clean)
