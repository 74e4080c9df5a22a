"""A console that installs an unconfirmed rule and then allocates memory until it may not."""

from __future__ import annotations

import resource
import sys

from fwtop.console import __main__ as console
from fwtop.console.live import LiveSession
from fwtop.model.addresses.address import Prefix
from fwtop.model.protocol import Apply
from fwtop.model.rule import Kind, Match, Rule
from fwtop.model.traffic.snapshot import Snapshot

CEILING = 2 << 30  # this test must not take the machine down if the limit is missing
SOURCE = "203.0.113.9"
_tick = LiveSession.tick
_ticks = 0


def _allocating_tick(session: LiveSession) -> Snapshot:
    global _ticks  # noqa: PLW0603
    _ticks += 1
    if _ticks == 3:
        match = Match(sources=(Prefix.parse(SOURCE),))
        rule = Rule("", Kind.IPSET, match, "block one address", 600)
        session._link.demand_for_rule(Apply({}, confirm_seconds=30), rule)
        taken = []
        while sum(map(len, taken)) < CEILING:
            taken.append(bytearray(16 << 20))
        raise AssertionError(f"no limit: {resource.getrlimit(resource.RLIMIT_DATA)}")
    return _tick(session)


if __name__ == "__main__":
    LiveSession.tick = _allocating_tick
    sys.exit(console.main())
