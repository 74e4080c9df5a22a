"""One observation without a screen."""

from __future__ import annotations

import json
import os
import sys
import time

from fwtop.console.handoff import Handoff, Options
from fwtop.console.text import render
from fwtop.console.wiring import build
from fwtop.model.observation import observation_json
from fwtop.model.snapshot import Snapshot

_POLL_SECONDS = 0.1  # the ring buffer is emptied this often; nothing is judged before the end
_PRESSED_POLL_SECONDS = 0.5  # where no processor has time to spare, and fewer samples come


def run_snapshot(options: Options, handoff: Handoff, descriptors: list[int]) -> int:
    """Observe for so many seconds, judge everything at once, print it."""
    console = build(options, handoff, descriptors, window_seconds=None)
    try:
        console.session.start()
        _say_ready(options)
        deadline = time.monotonic() + options.seconds
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(_PRESSED_POLL_SECONDS if console.source.pressed else _POLL_SECONDS, left))
            console.session.observe()
        console.session.rules_changed()
        snapshot = console.take(console.session.tick())
    finally:
        console.close()
    show(snapshot, as_json=options.json, top=options.top)
    return 0


def show(snapshot: Snapshot, *, as_json: bool, top: int) -> None:
    """Print an observation, as one JSON document or as text."""
    if as_json:
        json.dump(observation_json(snapshot, top=top), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        sys.stdout.write(render(snapshot, top=top))
    sys.stdout.flush()


def _say_ready(options: Options) -> None:
    if options.ready_fd is not None:
        os.write(options.ready_fd, b"ready\n")
        os.close(options.ready_fd)
