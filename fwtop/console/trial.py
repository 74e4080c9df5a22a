"""Rules tried on live traffic without being installed: the harm that the command line shows first."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict

from fwtop.console.handoff import Handoff, Options
from fwtop.console.wiring import build
from fwtop.model.rule import Rule

_POLL_SECONDS = 0.1


def run_trial(options: Options, handoff: Handoff, descriptors: list[int]) -> int:
    """Observe for some seconds, replay the rules of standard input, print what each would do as JSON."""
    rules = [Rule.from_dict(item) for item in json.load(sys.stdin)]
    console = build(options, handoff, descriptors, window_seconds=None)
    try:
        console.session.start()
        deadline = time.monotonic() + options.seconds
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(_POLL_SECONDS, left))
            console.session.observe()
        console.session.tick()
        previews = [asdict(console.try_rule(rule)) for rule in rules]
    finally:
        console.close()
    json.dump(previews, sys.stdout)
    sys.stdout.flush()
    return 0
