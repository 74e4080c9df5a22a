"""When the live loop ticks: at its pace, and at once where something can't wait for that."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

import pytest
from test_not_judged import session_of

from fwtop.console.live import LiveSession
from fwtop.incidents.advisor import Advisor
from fwtop.model.traffic.snapshot import Snapshot

PACE, SOON = 60.0, 5.0  # seconds


def install(session: LiveSession) -> None:
    session.rules_changed()


def due(session: LiveSession) -> None:
    session.tick_by(time.time())


@pytest.mark.parametrize("want", [install, due])
def test_a_tick_that_is_wanted_does_not_wait_for_its_turn(want: Callable[[LiveSession], None]) -> None:
    """The window begins where a rule came into force: half a second later its effect was shown later, too."""
    session, stop = session_of(Advisor()), threading.Event()
    seen: queue.Queue[Snapshot] = queue.Queue()
    loop = threading.Thread(target=session.run, args=(stop, PACE, seen.put))
    loop.start()
    try:
        seen.get(timeout=SOON)
        want(session)
        assert seen.get(timeout=SOON)
        with pytest.raises(queue.Empty):
            seen.get(timeout=0.5)  # once
    finally:
        stop.set()
        loop.join()
