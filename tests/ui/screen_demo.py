"""Run the screen in a real terminal on a made-up flood: python tests/ui/screen_demo.py [--slow].

FWTOP_DEMO_SCENE chooses a scene of screen_factory, or "hostile"; with FWTOP_DEMO_FAIL=feed or screen it
breaks on purpose.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable

import screen_factory
from msgspec.structs import replace
from screen_factory import SCENES
from screen_fakes import FakeFeed
from screen_hostile import HostileControls, hostile, hostile_settings
from screen_parts import PPS

from fwtop.model.errors import FwtopError
from fwtop.model.rule import RuleStatus
from fwtop.model.traffic.snapshot import Share, Snapshot, Source
from fwtop.ui.app import FwtopApp

TICK_SECONDS = 0.25


def shaken(share: Share, dice: random.Random) -> Share:
    """Vary an estimate as sampling does."""
    factor = dice.gauss(1, 0.03)
    part = min(share.share * factor, 1.0)
    return replace(share, packets=int(share.packets * factor), pps=share.pps * factor, share=part)


def busy(base: Snapshot, dice: random.Random) -> Snapshot:
    """A snapshot in which every figure differs from the last."""
    tables = base.tables
    moved: list[Source] = [replace(item, share=shaken(item.share, dice)) for item in tables.sources.address]
    moved.sort(key=lambda item: -item.share.packets)
    factor = dice.gauss(1, 0.02)
    totals = replace(tables.totals, pps=PPS * factor, bps=tables.totals.bps * factor)
    payloads = tuple(replace(item, share=shaken(item.share, dice)) for item in tables.payloads)
    tables = replace(
        tables,
        totals=totals,
        sources=replace(tables.sources, address=tuple(moved)),
        ports=tuple(replace(item, share=shaken(item.share, dice)) for item in tables.ports),
        payloads=payloads,
        ledger=tuple(replace(row, pps=row.pps * dice.gauss(1, 0.02)) for row in tables.ledger),
    )
    rules: tuple[RuleStatus, ...] = tuple(
        replace(status, pps=status.pps * dice.gauss(1, 0.02)) for status in base.mitigations
    )
    return replace(
        base, tables=tables, judgement=replace(base.judgement, payloads=payloads), mitigations=rules
    )


SCENE = os.environ.get("FWTOP_DEMO_SCENE", "provisional")


def scene() -> Snapshot:
    """Return the scene that the environment names."""
    return hostile() if SCENE == "hostile" else SCENES[SCENE]()


class DemoFeed(FakeFeed):
    """Sends a busy snapshot four times a second."""

    def __init__(self) -> None:
        super().__init__()
        if SCENE == "hostile":
            self.controls = HostileControls()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._play, daemon=True)

    def start(self, on_snapshot: Callable[[Snapshot], None], on_error: Callable[[Exception], None]) -> None:
        super().start(on_snapshot, on_error)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(1.0)

    def _play(self) -> None:
        dice = random.Random(1)
        base = scene()
        begun = time.monotonic()
        while not self._stop.wait(TICK_SECONDS):
            if os.environ.get("FWTOP_DEMO_FAIL") == "feed" and time.monotonic() - begun > 1:
                self.fail(FwtopError("the observer went away; nothing was changed", 3))
                return
            self.send(busy(base, dice))


def main() -> int:
    begun = time.monotonic()
    app = FwtopApp(
        DemoFeed(),
        clock=lambda: screen_factory.NOW + time.monotonic() - begun,
        slow="--slow" in sys.argv,
        settings=hostile_settings() if SCENE == "hostile" else None,
    )
    if os.environ.get("FWTOP_DEMO_FAIL") == "screen":
        app.main.bars.draw = lambda *_, **__: 1 // 0  # type: ignore[method-assign]
    return app.run_to_exit()


if __name__ == "__main__":
    sys.exit(main())
