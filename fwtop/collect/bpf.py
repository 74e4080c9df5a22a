"""The handful of bpf(2) commands that fwtop needs, through ctypes.

bcc compiles; creating maps, loading and attaching are done here, because bcc 0.26 knows neither TCX nor
netfilter links nor mappable arrays. Source: include/uapi/linux/bpf.h and bpf(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from dataclasses import dataclass

from fwtop.model.errors import FwtopError

_NUMBER = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "s390x": 351, "ppc64le": 361}
_MAP_CREATE, _PROG_LOAD, _RAW_TRACEPOINT_OPEN, _LINK_CREATE = 0, 5, 17, 28

MAP_ARRAY, MAP_RINGBUF = 2, 27
F_MMAPABLE = 1 << 10
_NETFILTER, _TCX_INGRESS = 45, 46  # enum bpf_attach_type
_F_BEFORE, _F_AFTER = 1 << 3, 1 << 4
_XDP_GENERIC, _XDP_NATIVE = 1 << 1, 1 << 2  # XDP_FLAGS_SKB_MODE, XDP_FLAGS_DRV_MODE
_LICENSE = b"GPL\0"
_LOG_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class ProgramType:
    """What a program is loaded as: enum bpf_prog_type and, where it matters, enum bpf_attach_type."""

    kind: int
    attach_type: int = 0
    flags: int = 0  # BPF_F_* of BPF_PROG_LOAD


TC = ProgramType(3)
XDP = ProgramType(6, 37)
XDP_FRAGMENTS = ProgramType(6, 37, 1 << 5)  # also takes frames of several buffers: a large MTU
TRACEPOINT = ProgramType(26, 23)  # BTF-typed raw tracepoint
NETFILTER = ProgramType(32, _NETFILTER)

_libc = ctypes.CDLL(None, use_errno=True)


def call(command: int, attributes: bytes) -> int:
    """Make the system call; raises OSError, or FwtopError (code 3) where a privilege is missing."""
    number = _NUMBER.get(platform.machine())
    if number is None:
        raise FwtopError(f"fwtop doesn't know the bpf system call of a {platform.machine()} machine", 3)
    # The kernel takes any size and reads what is missing as zeros; shorter than it knows is fine.
    buffer = ctypes.create_string_buffer(attributes.ljust(144, b"\0"), 144)
    result = int(_libc.syscall(number, command, buffer, len(attributes)))
    if result < 0:
        code = ctypes.get_errno()
        if code == errno.EPERM:
            raise FwtopError(
                "loading BPF programs needs root (or CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN): sudo fwtop", 3
            )
        raise OSError(code, os.strerror(code))
    return result


def create_map(
    kind: int, name: str, *, entries: int, value_size: int = 0, key_size: int = 0, flags: int = 0
) -> int:
    """Create a map and return its descriptor; raises OSError."""
    attributes = struct.pack("<IIIIIII", kind, key_size, value_size, entries, flags, 0, 0)
    return call(_MAP_CREATE, attributes + name.encode()[:15].ljust(16, b"\0"))


def load_program(kind: ProgramType, name: str, code: bytes, target: int = 0) -> int:
    """Load byte code and return the program's descriptor; `target` is the BTF id of a tracepoint's type.

    Raises OSError with the verifier's last lines.
    """
    try:
        return _load(kind, name, code, target)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EACCES):
            raise
    log = ctypes.create_string_buffer(_LOG_BYTES)
    try:
        return _load(kind, name, code, target, log)
    except OSError as error:
        tail = log.value.decode("ascii", "replace").strip().splitlines()[-3:]
        raise OSError(error.errno, f"{name}: {error.strerror}: {' | '.join(tail)}") from None


def _load(
    kind: ProgramType, name: str, code: bytes, target: int, log: ctypes.Array[ctypes.c_char] | None = None
) -> int:
    instructions = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(_LICENSE)
    log_level, log_size, log_at = (1, _LOG_BYTES, ctypes.addressof(log)) if log is not None else (0, 0, 0)
    attributes = struct.pack(
        "<IIQQIIQII16sIIIIQIIQIII",
        kind.kind,
        len(code) // 8,
        ctypes.addressof(instructions),
        ctypes.addressof(licence),
        log_level,
        log_size,
        log_at,
        0,  # kern_version
        kind.flags,
        name.encode()[:15],
        0,  # prog_ifindex
        kind.attach_type,
        0,  # prog_btf_fd
        0,  # func_info_rec_size
        0,  # func_info
        0,  # func_info_cnt
        0,  # line_info_rec_size
        0,  # line_info
        0,  # line_info_cnt
        target,  # attach_btf_id
        0,  # attach_prog_fd
    )
    return call(_PROG_LOAD, attributes)


_PRIORITIES_TRIED = 32


def attach_tracepoint(program: int) -> int:
    """Attach a BTF-typed raw tracepoint program; it stays while the returned descriptor is open."""
    return call(_RAW_TRACEPOINT_OPEN, struct.pack("<QI", 0, program))


def attach_tcx_ingress(program: int, ifindex: int, *, last: bool = False) -> int:
    """Attach first (or last) in the line at tc ingress; it stays while the returned descriptor is open."""
    flags = _F_AFTER if last else _F_BEFORE
    return call(_LINK_CREATE, struct.pack("<IIII", program, ifindex, _TCX_INGRESS, flags) + bytes(16))


def attach_xdp(program: int, ifindex: int, *, native: bool) -> int:
    """Attach as XDP where no program is; it stays while the returned descriptor is open.

    Raises OSError: EBUSY or EEXIST where there is a program already, which is never replaced.
    """
    mode = _XDP_NATIVE if native else _XDP_GENERIC
    return call(_LINK_CREATE, struct.pack("<IIII", program, ifindex, XDP.attach_type, mode))


def attach_netfilter(program: int, *, family: int, hook: int, priority: int) -> int:
    """Attach at a netfilter hook of the own namespace; it stays while the returned descriptor is open.

    A BPF program shares its priority with nobody (EBUSY, net/netfilter/core.c): the next lower free one
    is taken then.
    """
    target = struct.pack("<IIII", program, 0, _NETFILTER, 0)
    for wanted in range(priority, priority - _PRIORITIES_TRIED, -1):
        try:
            return call(_LINK_CREATE, target + struct.pack("<IIiI", family, hook, wanted, 0))
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
    raise OSError(errno.EBUSY, "every priority at the end of the hook is taken")
