"""Labs with a scenario given inline; labs at rest."""

from __future__ import annotations

import time
from typing import Any

from fwtop.lab import scenario
from fwtop.lab.run import Lab
from tests.conftest import poll_until_true

HEAD = 'title = "t"\nfirewall = "none"\n'


def inline(text: str, name: str = "inline") -> Lab:
    return Lab(scenario.parse(HEAD + text, name), source=HEAD + text)


def flood(lab: Lab, pps: int, packets: int) -> None:
    """Flood until so many packets have arrived."""
    before = lab.arrived()[0]
    lab.start_flood(pps)
    poll_until_true(lambda: lab.arrived()[0] >= before + packets)
    lab.stop()


def mark_at_rest(lab: Lab) -> None:
    """Pause the clients and start the interval of the truth with nothing under way."""
    truth_at_rest(lab)
    lab.mark()


def truth_at_rest(lab: Lab) -> dict[str, Any]:
    """The truth once nothing is sent any more, answers to answers included, and all has arrived."""
    lab.pause_clients()

    def resting() -> dict[str, Any] | None:
        first = lab.truth()
        time.sleep(0.2)
        return first if lab.under_way() == 0 and lab.truth() == first else None

    found = poll_until_true(resting)
    assert isinstance(found, dict)
    return found
