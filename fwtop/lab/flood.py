"""The packet generator: bpf/flood.c, compiled with bcc and run on live frames (BPF_PROG_TEST_RUN)."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwtop.compile.compiler import compile_in_process
from fwtop.kernel import bpf
from fwtop.lab.traffic.frames import FRAME_BYTES
from fwtop.lab.traffic.plan import PACKET, SOURCE, STATE, Phase, Plan
from fwtop.model.errors import FwtopError

_BATCH = 256  # largest batch of a test run (xdp_test_run_batch)


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
            bpf.send_live_frames(self._program, self._ifindex, self._frame, count + 1, min(count, _BATCH))
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
