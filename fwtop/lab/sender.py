"""The flooding process: `python -I -m fwtop.lab.sender`, in the attacker's namespace only.

It reads a JSON object per line and answers each with one: first the setup (scenario text, MAC addresses),
then `start` (with pps), `stop` and `truth`. It exits at end of input. Before it loads anything it checks that
it is in a lab: see `require_lab_namespace`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import socket
import sys
import time
from pathlib import Path
from typing import Any

from fwtop.kernel.namespaces import NETNS
from fwtop.lab import network as net
from fwtop.lab import scenario
from fwtop.lab.cabling import Link
from fwtop.lab.flood import Flood
from fwtop.lab.namespaces import PACED_PPS, PREFIX
from fwtop.lab.network import Wire
from fwtop.lab.processes import answer, ignore_terminal_signals
from fwtop.lab.traffic import capture
from fwtop.lab.traffic.plan import Plan, build_plan
from fwtop.model.errors import FwtopError

_TICK_SECONDS = 0.0004
_MAX_DEBT_SECONDS = 0.1  # the longest delay that is made up for
_UNPACED = 65_536  # frames per call without a rate limit: some milliseconds
_BATCH = 128  # frames per call with one; the victim's queue holds 256
_CATCH_UP = 3  # times the rate while making up for a delay
_PROBE = 8  # frames to probe a full queue with


def require_lab_namespace(interface: str) -> None:
    """Raise FwtopError unless this is a lab's attacker namespace and the interface is its veth.

    The namespace must carry a lab's name and differ from that of pid 1; the interface must be a veth with
    that name as its alias. A machine's real network meets none of these conditions.
    """
    own = os.stat("/proc/self/ns/net").st_ino
    named = [
        entry.name
        for entry in (NETNS.iterdir() if NETNS.is_dir() else [])
        if entry.name.startswith(PREFIX) and entry.name.endswith("-attacker") and entry.stat().st_ino == own
    ]
    if len(named) != 1 or own == _first_process_namespace():
        raise FwtopError(
            "refused: the lab's sender runs only inside a lab's own namespace; nothing was sent", 2
        )
    link = Link(interface)
    driver = link.driver
    link.close()
    if driver != "veth" or _alias(interface) != named[0]:
        raise FwtopError(f"refused: {interface} is not this lab's veth; nothing was sent", 2)


def _first_process_namespace() -> int:
    try:
        return os.stat("/proc/1/ns/net").st_ino
    except OSError:  # hidden in some containers; name and alias are still checked
        return -1


def _alias(interface: str) -> str:
    try:
        return Path(f"/sys/class/net/{interface}/ifalias").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _set_realtime(ahead: bool) -> None:
    """Use SCHED_FIFO while pacing: an attacker's rate doesn't depend on the victim's load."""
    policy, priority = (os.SCHED_FIFO, 1) if ahead else (os.SCHED_OTHER, 0)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, policy, os.sched_param(priority))


class Sender:
    """Sends a plan's packets at a rate, in small batches between commands."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        interfaces = (net.ATTACKER_INTERFACE, net.PARKED_INTERFACES[0])
        self._flood = Flood(plan, *(socket.if_nametoindex(name) for name in interfaces))
        self._link = Link(net.ATTACKER_INTERFACE)
        self._lost = self._link.lost()
        self._window = _BATCH
        self._pps: float | None = None  # None: stopped
        self._started = self._due = self._next = self._end = 0.0
        self._phase = plan.phases[0]

    def start(self, pps: float, seconds: float | None) -> None:
        """Start sending for `seconds` or until stopped; rate 0 means unlimited."""
        self._started = self._due = self._next = time.monotonic()
        self._end = self._started + seconds if seconds is not None else math.inf
        self._pps = pps
        _set_realtime(0 < pps <= PACED_PPS)

    def stop(self) -> float:
        """Stop sending; return the monotonic time at which it stopped."""
        if self._pps is not None:
            self._end = min(self._end, time.monotonic())
        self._pps = None
        _set_realtime(False)
        return self._end

    def wait_seconds(self) -> float | None:
        """Return the time until the next batch is due; None if stopped."""
        if self._pps is None:
            return None
        return max(0.0, max(self._due, self._next) - time.monotonic()) if self._pps else 0.0

    def step(self) -> None:
        """Send the batch that is due."""
        if self._pps is None:
            return
        now = time.monotonic()
        if now >= self._end:
            self.stop()
            return
        phase = self._plan.phase(now - self._started)
        if phase is not self._phase:
            self._phase = phase
            self._flood.use(phase)
        if self._pps == 0:
            self._flood.send(_UNPACED) if phase.count else time.sleep(0.001)
            return
        self._due = max(self._due, now - _MAX_DEBT_SECONDS)
        if not phase.count:
            self._due = max(self._due, now + _TICK_SECONDS)
        if now < max(self._due, self._next):
            return
        self._due += self._send(int((now - self._due) * self._pps)) / self._pps

    def _send(self, due: int) -> int:
        """Send a small batch; return how many frames reached the victim's queue.

        Frames that find the queue full are lost, as at a network card, and made up for to keep the rate. A
        full queue is probed with few frames until it has room.
        """
        least = max(1, min(_BATCH, round((self._pps or 0) * _TICK_SECONDS)))
        batch = min(self._window, max(least, due))
        self._flood.send(batch)
        lost = self._link.lost()
        missing, self._lost = lost - self._lost, lost
        self._window = _PROBE if missing else min(_BATCH, self._window * 2)
        pause = _TICK_SECONDS if missing else batch / (_CATCH_UP * (self._pps or 1))
        self._next = time.monotonic() + pause
        return max(0, batch - missing)

    def truth(self) -> dict[str, Any]:
        """Return what has been sent so far."""
        packets, sources = self._flood.counts()
        return self._plan.truth(packets, sources)


def _commands(sender: Sender) -> None:
    pending = b""
    while True:
        readable, _, _ = select.select([0], [], [], sender.wait_seconds())
        if not readable:
            sender.step()
            continue
        chunk = os.read(0, 65_536)
        if not chunk:
            return
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            answer(_obey(sender, json.loads(line)))


def _obey(sender: Sender, command: dict[str, Any]) -> dict[str, Any]:
    if command["do"] == "start":
        seconds = command.get("seconds")
        sender.start(float(command["pps"]), None if seconds is None else float(seconds))
    elif command["do"] == "stop":
        return {"time": sender.stop()}
    elif command["do"] == "truth":
        return sender.truth()
    return {"time": time.monotonic()}


def main() -> int:
    """Serve one lab; returns the exit status."""
    ignore_terminal_signals()
    try:
        require_lab_namespace(net.ATTACKER_INTERFACE)
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # the victim receives on the others
        with open(0, "rb", buffering=0, closefd=False) as commands:
            setup = json.loads(commands.readline())
        wire = Wire(bytes.fromhex(setup["victim"]), bytes.fromhex(setup["attacker"]))
        if setup.get("capture"):
            plan = capture.plan_replay(Path(setup["capture"]), wire)
        else:
            plan = build_plan(scenario.parse(setup["text"], setup["name"]), wire)
        sender = Sender(plan)
        answer({"ready": True, "pps": plan.scenario.pps, "templates": len(plan.templates)})
        _commands(sender)
    except FwtopError as error:
        answer({"error": str(error), "code": error.code})
        return error.code
    except BrokenPipeError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
