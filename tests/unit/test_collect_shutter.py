"""The shutter's thread with descriptors of its own in place of BPF links (real ones: test_observe)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from fwtop.collect import shutter
from fwtop.collect.shutter import LIMIT, SPARE, SPARE_AGAIN, Place, Shutter


class Machine:
    """Hands out descriptors as links and notes what happens to the gate."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.attached: list[int] = []  # interfaces
        self.fail: int | None = None

    def attach(self, place: Place, program: int) -> int:
        self.events.append(f"attach {place.kind}")
        if self.fail is not None:
            raise OSError(self.fail, os.strerror(self.fail))
        self.attached.append(place.ifindex)
        return os.open("/dev/null", os.O_RDONLY)

    def arm(self) -> None:
        self.events.append("arm")

    def shut(self) -> None:
        self.events.append("shut")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()

    def attach(place: Place, program: int) -> int:  # a function, so that it is bound to the place
        return made.attach(place, program)

    monkeypatch.setattr(Place, "attach", attach)
    monkeypatch.setattr(shutter, "_LONGEST_PAUSE_SECONDS", 0.01)
    return made


def attachments() -> tuple[list[dict[str, Any]], dict[str, int]]:
    items: list[dict[str, Any]] = []
    fds = {"program": 0}
    for number, kind in enumerate(("tracepoint", "netfilter", "tcx")):
        fds[f"link{number}"] = os.open("/dev/null", os.O_RDONLY)
        zeros = dict.fromkeys(("ifindex", "family", "hook", "priority"), 0)
        items.append({"program": "program", "link": f"link{number}", "kind": kind, **zeros})
    return items, fds


def test_it_is_open_as_long_as_watching_is_cheap(machine: Machine) -> None:
    items, fds = attachments()
    made = Shutter(machine, items, fds)
    made.set_cost(LIMIT, 0.0)
    assert not made.was_shut()
    assert machine.events == ["arm"]
    made.close()
    assert machine.events == ["arm", "shut"]
    for number in range(3):
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(fds[f"link{number}"])


def test_windows_open_and_shut_in_order_until_it_is_cheap_again(
    machine: Machine, poll_until: Callable[..., object]
) -> None:
    items, fds = attachments()
    made = Shutter(machine, items, fds)
    made.set_cost(0.2, 0.0)
    assert made.was_shut()
    poll_until(lambda: machine.events.count("attach tcx") >= 3)
    made.set_cost(0.001, 0.0)
    assert made.was_shut()  # the interval until now had windows
    assert not made.was_shut()
    made.close()
    # What is slow to attach comes first, and the gate opens when all are attached
    cycle = ["shut", "attach tcx", "attach tracepoint", "attach netfilter", "arm"]
    assert machine.events[1:11] == cycle * 2
    assert machine.events[-1] == "shut"
    assert made.error == ""


def test_what_costs_nothing_stays_attached(machine: Machine, poll_until: Callable[..., object]) -> None:
    made = Shutter(machine, *attachments())
    made.set_cost(0.2, 0.0, frozenset({"tcx", "tracepoint"}))
    poll_until(lambda: machine.events.count("attach tcx") >= 3)
    made.close()
    assert "attach netfilter" not in machine.events
    assert machine.events[1:5] == ["shut", "attach tcx", "attach tracepoint", "arm"]


def test_between_the_two_limits_it_stays_as_it_is(machine: Machine) -> None:
    items, fds = attachments()
    made = Shutter(machine, items, fds)
    between = (shutter.RELEASE + LIMIT) / 2
    made.set_cost(between, 0.0)
    assert not made.was_shut()
    made.set_cost(0.2, 0.0)
    made.set_cost(between, 0.0)
    made.was_shut()
    assert made.was_shut()
    made.close()


def test_all_is_watched_while_the_core_has_time_to_spare(
    machine: Machine, poll_until: Callable[..., object]
) -> None:
    made = Shutter(machine, *attachments())
    made.set_cost(0.2, SPARE + 0.01)
    assert not made.was_shut()
    made.set_cost(0.2, SPARE - 0.01)
    assert made.was_shut()
    made.set_cost(0.2, SPARE_AGAIN + 0.19)  # with everything watched it would be 0.01 less than it must be
    made.was_shut()
    assert made.was_shut()
    made.set_cost(0.2, SPARE_AGAIN + 0.21)
    poll_until(lambda: not made.was_shut())
    made.close()


def test_an_interface_made_anew_is_watched_in_the_place_of_the_old(machine: Machine) -> None:
    items, fds = attachments()
    items[2]["ifindex"] = 7
    made = Shutter(machine, items, fds)
    made.move(3, 9)  # not ours
    assert machine.events == ["arm"]
    made.move(7, 9)
    assert machine.events == ["arm", "attach tcx"]
    assert machine.attached == [9]
    made.close()


def test_an_interface_that_went_away_is_no_reason_to_stop(
    machine: Machine, poll_until: Callable[..., object]
) -> None:
    items, fds = attachments()
    made = Shutter(machine, items, fds)
    machine.fail = errno.ENODEV
    made.set_cost(0.2, 0.0)
    poll_until(lambda: machine.events.count("attach tcx") >= 3)
    assert made.error == ""
    made.close()


def test_a_refusal_is_told(machine: Machine, poll_until: Callable[..., object]) -> None:
    items, fds = attachments()
    made = Shutter(machine, items, fds)
    machine.fail = errno.EPERM
    made.set_cost(0.2, 0.0)
    poll_until(lambda: made.error)
    assert "not permitted" in made.error
    made.close()


def test_without_links_it_is_always_open(machine: Machine) -> None:
    made = Shutter(machine, [], {})
    made.set_cost(5.0, 0.0)
    assert not made.was_shut()
    made.close()
