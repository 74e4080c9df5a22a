"""bpf/flood.c in the kernel: compiled with bcc, its tables filled, run on live frames (BPF_PROG_TEST_RUN)."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fwtop.collect.kallsyms import hide_kernel_symbols
from fwtop.lab.plan import PACKET, SOURCE, STATE, Phase, Plan
from fwtop.lab.template import FRAME_BYTES
from fwtop.model import paths
from fwtop.model.errors import FwtopError

_BPF_CALL = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "s390x": 351, "ppc64le": 361}
_LOOKUP, _UPDATE, _TEST_RUN, _LINK_CREATE = 1, 2, 10, 28
_ATTACH_XDP, _NATIVE = 37, 1 << 2
_LIVE_FRAMES = 1 << 1
_BATCH = 256  # frames that the kernel prepares at once, at most
_libc = ctypes.CDLL(None, use_errno=True)


class _TestRun(ctypes.Structure):
    """`test` of union bpf_attr, include/uapi/linux/bpf.h."""

    _fields_ = [
        ("prog_fd", ctypes.c_uint32),
        ("retval", ctypes.c_uint32),
        ("data_size_in", ctypes.c_uint32),
        ("data_size_out", ctypes.c_uint32),
        ("data_in", ctypes.c_uint64),
        ("data_out", ctypes.c_uint64),
        ("repeat", ctypes.c_uint32),
        ("duration", ctypes.c_uint32),
        ("ctx_size_in", ctypes.c_uint32),
        ("ctx_size_out", ctypes.c_uint32),
        ("ctx_in", ctypes.c_uint64),
        ("ctx_out", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("cpu", ctypes.c_uint32),
        ("batch_size", ctypes.c_uint32),
        ("padding", ctypes.c_uint32),
    ]


class _Link(ctypes.Structure):
    """`link_create` of union bpf_attr."""

    _fields_ = [
        ("prog_fd", ctypes.c_uint32),
        ("target_ifindex", ctypes.c_uint32),
        ("attach_type", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("rest", ctypes.c_uint64 * 4),
    ]


class _Element(ctypes.Structure):
    """The map element commands' part of union bpf_attr."""

    _fields_ = [
        ("map_fd", ctypes.c_uint32),
        ("padding", ctypes.c_uint32),
        ("key", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
    ]


def _bpf(command: int, attributes: ctypes.Structure) -> int:
    number = _BPF_CALL.get(platform.machine())
    if number is None:
        raise FwtopError(f"the lab doesn't know the bpf system call of a {platform.machine()} machine", 3)
    result = int(_libc.syscall(number, command, ctypes.byref(attributes), ctypes.sizeof(attributes)))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


class Flood:
    """The loaded program with one plan's tables.

    The program is also attached to `parked`, an interface that carries nothing. Each test run with a repeat
    enters the program into the kernel's XDP dispatcher and takes it out again, waiting for a grace period of
    RCU both times (bpf_prog_test_run_xdp, net/bpf/test_run.c): 16 to 40 ms a call. An attached program is in
    the dispatcher already, and a call takes what its frames take.
    """

    def __init__(self, plan: Plan, ifindex: int, parked: int) -> None:
        self._plan = plan
        self._bcc, self._program = _compile(plan)
        link = _Link(prog_fd=self._program, target_ifindex=parked, attach_type=_ATTACH_XDP, flags=_NATIVE)
        self._link = _bpf(_LINK_CREATE, link)
        self._maps = {
            name: self._bcc[name].map_fd for name in ("states", "budget", "schedule", "packets", "sources")
        }
        self._write("packets", plan.packets.view(np.uint8).reshape(len(plan.packets), PACKET.itemsize))
        self._write("sources", plan.sources.view(np.uint8).reshape(len(plan.sources), SOURCE.itemsize))
        self._write("schedule", plan.schedule.view(np.uint8).reshape(len(plan.schedule), 4))
        self._state = np.frombuffer(plan.state(), np.uint8).reshape(1, STATE.itemsize).copy()
        self._budget = np.zeros(1, np.uint32)
        self.use(plan.phases[0], fresh=True)
        # Frames start with the greatest length, so that copies are only ever cut.
        length = max((len(item.data) for item in plan.templates), default=60)
        self._frame = ctypes.create_string_buffer(length)
        self._context = (ctypes.c_uint32 * 6)(0, length, 0, ifindex, 0, 0)
        self._run = _TestRun(
            prog_fd=self._program,
            data_size_in=length,
            data_in=ctypes.addressof(self._frame),
            ctx_size_in=ctypes.sizeof(self._context),
            ctx_in=ctypes.addressof(self._context),
            flags=_LIVE_FRAMES,
        )

    def use(self, phase: Phase, *, fresh: bool = False) -> None:
        """Send from this slice of the schedule from now on."""
        state = self._state if fresh else self._read("states", 1, STATE.itemsize)
        view = state.view(STATE).reshape(1)
        view["schedule_first"], view["schedule_count"], view["position"] = phase.first, phase.count, 0
        self._write("states", state)

    def send(self, count: int) -> None:
        """Send so many frames; returns when they are with the victim's interface (or lost before it).

        One frame more is made and dropped: between the two batches the kernel lets a waiting receiver run, so
        that the sent pages are back when the call's page pool is taken down. Pages that are not would be held
        for a second (page_pool_release_retry), a gigabyte of them at 300,000 a second.
        """
        self._budget[0] = count
        self._write("budget", self._budget.view(np.uint8).reshape(1, 4))
        self._run.repeat = count + 1
        self._run.batch_size = min(count, _BATCH)
        try:
            _bpf(_TEST_RUN, self._run)
        except InterruptedError:
            return
        except OSError as error:
            raise FwtopError(
                f"the lab's packet source failed: {error.strerror}; the flood has stopped"
            ) from None

    def counts(self) -> tuple[NDArray[np.void], NDArray[np.void]]:
        """Return the packet and source tables with what was counted up to now."""
        packets = self._read("packets", len(self._plan.templates), PACKET.itemsize)
        sources = self._read("sources", len(self._plan.slots), SOURCE.itemsize)
        return packets.view(PACKET).reshape(-1), sources.view(SOURCE).reshape(-1)

    def _write(self, name: str, rows: NDArray[np.uint8]) -> None:
        for number, element, row in self._elements(name, rows):
            number.value = row
            element.value = rows.ctypes.data + row * rows.strides[0]
            _bpf(_UPDATE, element)

    def _read(self, name: str, count: int, size: int) -> NDArray[np.uint8]:
        rows = np.zeros((count, size), np.uint8)
        for number, element, row in self._elements(name, rows):
            number.value = row
            element.value = rows.ctypes.data + row * rows.strides[0]
            _bpf(_LOOKUP, element)
        return rows

    def _elements(
        self, name: str, rows: NDArray[np.uint8]
    ) -> Iterator[tuple[ctypes.c_uint32, _Element, int]]:
        number = ctypes.c_uint32()
        element = _Element(map_fd=self._maps[name], key=ctypes.addressof(number))
        for row in range(len(rows)):
            yield number, element, row


def _compile(plan: Plan):  # type: ignore[no-untyped-def]  # noqa: ANN202 - bcc has no types
    """Compile and load; returns bcc's object, which must be kept, and the program's descriptor."""
    os.environ["BCC_KERNEL_SOURCE"] = str(paths.BPF_DIRECTORY)
    os.environ["BCC_LINUX_VERSION_CODE"] = str(6 << 16)
    try:
        from bcc import BPF
    except ImportError:
        raise FwtopError("the lab needs bcc: apt install python3-bpfcc (see 'fwtop doctor')", 3) from None
    hide_kernel_symbols()
    sizes = {
        "FRAME_BYTES": FRAME_BYTES,
        "TEMPLATES": len(plan.packets),
        "SOURCES": len(plan.sources),
        "SLOTS": len(plan.schedule),
    }
    flags = ["-D__LINUX_BPF_H__", "-w", f"-I{paths.BPF_DIRECTORY}"]
    flags += [f"-D{key}={value}" for key, value in sizes.items()]
    with _quiet() as said:
        try:
            module = BPF(src_file=str(paths.BPF_DIRECTORY / "flood.c"), cflags=flags)
            return module, module.load_func("flood", BPF.XDP).fd
        except Exception as error:  # bcc raises plain Exception
            said.append(str(error))
    raise FwtopError(f"bpf/flood.c can't be loaded: {said[0] if said else errno.EINVAL}"[:400], 3)


@contextlib.contextmanager
def _quiet() -> Iterator[list[str]]:
    """Keep what libbcc writes to standard error off the terminal; its last lines go into the list."""
    kept = os.dup(2)
    scratch = os.memfd_create("bcc", os.MFD_CLOEXEC)
    os.dup2(scratch, 2)
    said: list[str] = []
    try:
        yield said
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        if said:
            os.lseek(scratch, 0, os.SEEK_SET)
            said[0] += ": " + " | ".join(
                os.read(scratch, 1 << 20).decode("utf-8", "replace").splitlines()[-4:]
            )
        os.close(scratch)
