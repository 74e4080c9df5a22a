"""The process that floods: `python -I -m fwtop.lab.sender`, inside the attacker's namespace only.

It reads one JSON object a line and answers with one. First the setup (scenario file's text, hardware
addresses), then `start` (with pps), `stop`, and `truth`. End of input ends it. Before anything is loaded it
makes sure that it is in a lab: see `refuse_outside`.
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

from fwtop.lab import capture, scenario
from fwtop.lab import network as net
from fwtop.lab.entering import NETNS
from fwtop.lab.flood import Flood
from fwtop.lab.link import Link
from fwtop.lab.namespaces import PACED_PPS, PREFIX
from fwtop.lab.network import Wire
from fwtop.lab.plan import Plan, lay_out
from fwtop.lab.worker import answer, leave_signals_to_the_lab
from fwtop.model.errors import FwtopError

_TICK_SECONDS = 0.0004
_MAX_DEBT_SECONDS = 0.1  # what could not be sent in time is made up for, up to this
_UNPACED = 65_536  # frames a call when there is no limit: some milliseconds
_BATCH = 128  # frames at once; the far end's queue holds 256
_CATCH_UP = 3  # times the rate, after the sender could not run for a while
_PROBE = 8  # frames that try whether a full queue has room again


def refuse_outside(interface: str) -> None:
    """Raise FwtopError unless this is a lab's attacker namespace and the interface is its veth.

    The namespace must be a named one of the lab's, not the first process's, and the interface a veth whose
    alias is that very name: a machine's own network fails every one of these.
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
    except OSError:  # a container may hide it; the name and the alias still tell
        return -1


def _alias(interface: str) -> str:
    try:
        return Path(f"/sys/class/net/{interface}/ifalias").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _run_ahead(ahead: bool) -> None:
    """Run before other processes while pacing: an attacker's rate doesn't depend on the victim's load."""
    policy, priority = (os.SCHED_FIFO, 1) if ahead else (os.SCHED_OTHER, 0)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, policy, os.sched_param(priority))


class Sender:
    """Sends a plan at a rate, in small batches, between looks at its commands."""

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
        """Begin, for so many seconds or until stopped; a rate of 0 is as fast as possible."""
        self._started = self._due = self._next = time.monotonic()
        self._end = self._started + seconds if seconds is not None else math.inf
        self._pps = pps
        _run_ahead(0 < pps <= PACED_PPS)

    def stop(self) -> float:
        """Stop after the batch that is on its way; returns when it stopped."""
        if self._pps is not None:
            self._end = min(self._end, time.monotonic())
        self._pps = None
        _run_ahead(False)
        return self._end

    def wait_seconds(self) -> float | None:
        """Return how long there is nothing to send (None: until the next command)."""
        if self._pps is None:
            return None
        return max(0.0, max(self._due, self._next) - time.monotonic()) if self._pps else 0.0

    def step(self) -> None:
        """Send what is due."""
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
        """Send a small batch and return how many frames reached the far end's queue.

        What finds the queue full is lost and made up for, so that the rate holds; a full queue is tried
        with few frames until it has room. A network card's queue would lose them as well.
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
        """Return what was sent up to now."""
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
    leave_signals_to_the_lab()
    try:
        refuse_outside(net.ATTACKER_INTERFACE)
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # the victim receives on the others
        with open(0, "rb", buffering=0, closefd=False) as commands:
            setup = json.loads(commands.readline())
        wire = Wire(bytes.fromhex(setup["victim"]), bytes.fromhex(setup["attacker"]))
        if setup.get("capture"):
            plan = capture.lay_out(Path(setup["capture"]), wire)
        else:
            plan = lay_out(scenario.parse(setup["text"], setup["name"]), wire)
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
