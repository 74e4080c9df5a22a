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

import numpy as np
from numpy.typing import NDArray

from fwtop.compile.compiler import compile_in_process
from fwtop.kernel import bpf, namespaces
from fwtop.kernel.links import list_links
from fwtop.lab import network as net
from fwtop.lab import scenario
from fwtop.lab.namespaces import PACED_PPS, PREFIX, Link
from fwtop.lab.network import Wire
from fwtop.lab.processes import answer, ignore_terminal_signals
from fwtop.lab.traffic import capture
from fwtop.lab.traffic.frames import FRAME_BYTES
from fwtop.lab.traffic.plan import PACKET, SOURCE, STATE, Phase, Plan, build_plan
from fwtop.model.errors import FwtopError

_TICK_SECONDS = 0.0004
_SLOW_TICK_SECONDS = 0.002  # of rates so low that a batch would hold few frames: each call has its price
_FEW = 16  # frames
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
    own = namespaces.own()
    named = [
        entry.name
        for entry in (namespaces.NETNS.iterdir() if namespaces.NETNS.is_dir() else [])
        if entry.name.startswith(PREFIX) and entry.name.endswith("-attacker") and entry.stat().st_ino == own
    ]
    if len(named) != 1 or own == _first_process_namespace():
        raise FwtopError(
            "refused: the lab's sender runs only inside a lab's own namespace; nothing was sent", 2
        )
    is_veth = any(link.name == interface and link.kind == "veth" for link in list_links())
    if not is_veth or _alias(interface) != named[0]:
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

    def start(self, pps: float, until: float | None) -> None:
        """Start sending until that monotonic time or until stopped; rate 0 means unlimited."""
        self._started = self._due = self._next = time.monotonic()
        self._end = math.inf if until is None else max(self._started, until)
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
        pps = self._pps or 0
        few = min(_FEW, round(pps * _SLOW_TICK_SECONDS))
        least = max(1, few, min(_BATCH, round(pps * _TICK_SECONDS)))
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
        sender.start(float(command["pps"]), command.get("until"))
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


_TEST_RUN_BATCH = 256  # largest batch of a test run (xdp_test_run_batch)


class Flood:
    """The loaded program with one plan's tables.

    The program is also attached to `parked`, an unused interface. Otherwise each test run would add the
    program to the kernel's XDP dispatcher and remove it again, with an RCU grace period each time
    (bpf_prog_test_run_xdp, net/bpf/test_run.c): 16 to 40 ms a call.
    """

    def __init__(self, plan: Plan, ifindex: int, parked: int) -> None:
        self._plan = plan
        self._ifindex = ifindex
        self._bcc, self._program = _compile(plan)
        self._link = bpf.attach_xdp(self._program, parked, native=True)
        self._maps = {
            name: self._bcc[name].map_fd for name in ("states", "budget", "schedule", "packets", "sources")
        }
        self._write("packets", plan.packets.view(np.uint8).reshape(len(plan.packets), PACKET.itemsize))
        self._write("sources", plan.sources.view(np.uint8).reshape(len(plan.sources), SOURCE.itemsize))
        self._write("schedule", plan.schedule.view(np.uint8).reshape(len(plan.schedule), 4))
        self._state = np.frombuffer(plan.state(), np.uint8).reshape(1, STATE.itemsize).copy()
        self._budget = np.zeros(1, np.uint32)
        self.use(plan.phases[0], fresh=True)
        # Frames start at the maximum length, so that the program only ever shortens them.
        self._frame = bytes(max((len(item.data) for item in plan.templates), default=60))

    def use(self, phase: Phase, *, fresh: bool = False) -> None:
        """Switch to a phase's slice of the schedule; `fresh` also resets the random state."""
        state = self._state if fresh else self._read("states", 1, STATE.itemsize)
        view = state.view(STATE).reshape(1)
        view["schedule_first"], view["schedule_count"], view["position"] = phase.first, phase.count, 0
        self._write("states", state)

    def send(self, count: int) -> None:
        """Send `count` frames; return when they have reached the victim's interface or been lost.

        One extra frame is made and dropped: between the two batches the kernel lets the receiver run, so that
        the sent pages have been returned when the call's page pool is destroyed. Outstanding pages would be
        held for a second (page_pool_release_retry): a gigabyte at 300,000 packets/s.
        """
        self._budget[0] = count
        self._write("budget", self._budget.view(np.uint8).reshape(1, 4))
        try:
            bpf.send_live_frames(
                self._program, self._ifindex, self._frame, count + 1, min(count, _TEST_RUN_BATCH)
            )
        except InterruptedError:
            return
        except OSError as error:
            raise FwtopError(
                f"the lab's packet source failed: {error.strerror}; the flood has stopped"
            ) from None

    def counts(self) -> tuple[NDArray[np.void], NDArray[np.void]]:
        """Return the packet and source tables with their present counts."""
        packets = self._read("packets", len(self._plan.templates), PACKET.itemsize)
        sources = self._read("sources", len(self._plan.slots), SOURCE.itemsize)
        return packets.view(PACKET).reshape(-1), sources.view(SOURCE).reshape(-1)

    def _write(self, name: str, rows: NDArray[np.uint8]) -> None:
        for number, row in enumerate(rows):
            bpf.set_element(self._maps[name], number.to_bytes(4, sys.byteorder), row.tobytes())

    def _read(self, name: str, count: int, size: int) -> NDArray[np.uint8]:
        keys = (number.to_bytes(4, sys.byteorder) for number in range(count))
        data = b"".join([bpf.get_element(self._maps[name], key, size) for key in keys])
        return np.frombuffer(bytearray(data), np.uint8).reshape(count, size)


def _compile(plan: Plan) -> tuple[Any, int]:
    """Compile and load; return bcc's object, which must be kept alive, and the program's descriptor."""
    sizes = {
        "FRAME_BYTES": FRAME_BYTES,
        "TEMPLATES": len(plan.packets),
        "SOURCES": len(plan.sources),
        "SLOTS": len(plan.schedule),
    }
    module = compile_in_process("flood.c", sizes)
    return module, module.load_func("flood", module.XDP).fd


if __name__ == "__main__":
    sys.exit(main())
