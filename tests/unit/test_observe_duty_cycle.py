"""The duty cycle's thread, with plain descriptors in place of BPF links (real ones: test_observe)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from fwtop.observe import duty_cycle
from fwtop.observe.duty_cycle import LIMIT, SPARE, SPARE_AGAIN, DutyCycle
from fwtop.observe.messages import Attachment, AttachPoint


class Machine:
    """Hands out descriptors as links and records what happens to the switch."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.attached: list[int] = []  # interfaces
        self.fail: int | None = None

    def attach(self, point: AttachPoint, program: int) -> int:
        self.events.append(f"attach {point.kind}")
        if self.fail is not None:
            raise OSError(self.fail, os.strerror(self.fail))
        self.attached.append(point.ifindex)
        return os.open("/dev/null", os.O_RDONLY)

    def enable(self) -> None:
        self.events.append("enable")

    def disable(self) -> None:
        self.events.append("disable")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()

    def attach(point: AttachPoint, program: int) -> int:  # a function, so that it is bound to the point
        return made.attach(point, program)

    monkeypatch.setattr(AttachPoint, "attach", attach)
    monkeypatch.setattr(duty_cycle, "_LONGEST_PAUSE_SECONDS", 0.01)
    return made


def attachments(tcx: int = 0) -> tuple[list[Attachment], dict[str, int]]:
    items = []
    fds = {"program": 0}
    for number, kind in enumerate(("tracepoint", "netfilter", "tcx")):
        fds[f"link{number}"] = os.open("/dev/null", os.O_RDONLY)
        point = AttachPoint(kind, ifindex=tcx if kind == "tcx" else 0)
        items.append(Attachment("program", f"link{number}", point))
    return items, fds


def test_it_never_pauses_while_observing_is_cheap(machine: Machine) -> None:
    items, fds = attachments()
    made = DutyCycle(machine, items, fds)
    made.set_cost(LIMIT, 0.0)
    assert not made.take_paused()
    assert machine.events == ["enable"]
    made.close()
    assert machine.events == ["enable", "disable"]
    for number in range(3):
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(fds[f"link{number}"])


def test_windows_begin_and_end_in_order_until_observing_is_cheap_again(
    machine: Machine, poll_until: Callable[..., object]
) -> None:
    items, fds = attachments()
    made = DutyCycle(machine, items, fds)
    made.set_cost(0.2, 0.0)
    assert made.take_paused()
    poll_until(lambda: machine.events.count("attach tcx") >= 3)
    made.set_cost(0.001, 0.0)
    assert made.take_paused()  # the interval until now had windows
    poll_until(lambda: not made.take_paused())  # the last pause is over
    made.close()
    # The slowest is attached first; counting is enabled once all are attached
    cycle = ["disable", "attach tcx", "attach tracepoint", "attach netfilter", "enable"]
    assert machine.events[1:11] == cycle * 2
    assert machine.events[-1] == "disable"
    assert made.error == ""


def test_hooks_that_cost_nothing_stay_attached(machine: Machine, poll_until: Callable[..., object]) -> None:
    made = DutyCycle(machine, *attachments())
    made.set_cost(0.2, 0.0, frozenset({"tcx", "tracepoint"}))
    poll_until(lambda: machine.events.count("attach tcx") >= 3)
    made.close()
    assert "attach netfilter" not in machine.events
    assert machine.events[1:5] == ["disable", "attach tcx", "attach tracepoint", "enable"]


def test_between_the_two_limits_nothing_changes(machine: Machine) -> None:
    items, fds = attachments()
    made = DutyCycle(machine, items, fds)
    between = (duty_cycle.RELEASE + LIMIT) / 2
    made.set_cost(between, 0.0)
    assert not made.take_paused()
    made.set_cost(0.2, 0.0)
    made.set_cost(between, 0.0)
    made.take_paused()
    assert made.take_paused()
    made.close()


def test_it_does_not_pause_while_the_core_has_time_to_spare(
    machine: Machine, poll_until: Callable[..., object]
) -> None:
    made = DutyCycle(machine, *attachments())
    made.set_cost(0.2, SPARE + 0.01)
    assert not made.take_paused()
    made.set_cost(0.2, SPARE - 0.01)
    assert made.take_paused()
    made.set_cost(0.2, SPARE_AGAIN + 0.19)  # without windows it would idle 0.01 less than required
    made.take_paused()
    assert made.take_paused()
    made.set_cost(0.2, SPARE_AGAIN + 0.21)
    poll_until(lambda: not made.take_paused())
    made.close()


def test_a_late_end_of_a_window_counts_as_a_pause(machine: Machine) -> None:
    """The thread was scheduled out when windows ended; its interval would pass for a complete one."""
    made = DutyCycle(machine, *attachments())
    made._end_window()
    made._begin_window()
    assert made.paused
    assert made.take_paused()
    assert not made.paused
    made.close()


def test_a_recreated_interface_replaces_the_old_one(machine: Machine) -> None:
    items, fds = attachments(tcx=7)
    made = DutyCycle(machine, items, fds)
    made.move(3, 9)  # not ours
    assert machine.events == ["enable"]
    made.move(7, 9)
    assert machine.events == ["enable", "attach tcx"]
    assert machine.attached == [9]
    made.close()


def test_an_interface_that_went_away_does_not_end_the_duty_cycle(
    machine: Machine, poll_until: Callable[..., object]
) -> None:
    items, fds = attachments()
    made = DutyCycle(machine, items, fds)
    machine.fail = errno.ENODEV
    made.set_cost(0.2, 0.0)
    poll_until(lambda: machine.events.count("attach tcx") >= 3)
    assert made.error == ""
    made.close()


def test_a_refused_attachment_is_reported(machine: Machine, poll_until: Callable[..., object]) -> None:
    items, fds = attachments()
    made = DutyCycle(machine, items, fds)
    machine.fail = errno.EPERM
    made.set_cost(0.2, 0.0)
    poll_until(lambda: made.error)
    assert "not permitted" in made.error
    made.close()


def test_without_links_it_never_pauses(machine: Machine) -> None:
    made = DutyCycle(machine, [], {})
    made.set_cost(5.0, 0.0)
    assert not made.take_paused()
    made.close()
