"""The bpf(2) commands that fwtop uses, through ctypes: maps, programs, links, pins and test runs.

bcc only compiles: version 0.26 supports neither TCX nor netfilter links nor mmapable arrays. Every function
raises OSError with the kernel's errno, and FwtopError (code 3) where a privilege is missing.
Source: include/uapi/linux/bpf.h (union bpf_attr) and bpf(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path

from msgspec import Struct

from fwtop.kernel.descriptors import closing
from fwtop.model.errors import FwtopError

_SYSCALL = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "s390x": 351, "ppc64le": 361}
_ATTRIBUTES_BYTES = 144  # the kernel takes any size, and reads what is missing as zeros
# enum bpf_cmd
_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _MAP_DELETE, _MAP_UPDATE_BATCH = 0, 1, 2, 3, 26
_PROG_LOAD, _OBJ_PIN, _OBJ_GET, _PROG_TEST_RUN = 5, 6, 7, 10
_PROG_QUERY = 16
_PROG_GET_FD_BY_ID, _MAP_GET_FD_BY_ID, _OBJ_GET_INFO, _RAW_TRACEPOINT_OPEN = 13, 14, 15, 17
_MAP_FREEZE, _LINK_CREATE, _LINK_UPDATE, _LINK_DETACH = 22, 28, 29, 34

MAP_ARRAY, MAP_LRU_HASH, MAP_LPM_TRIE, MAP_ARRAY_OF_MAPS, MAP_RINGBUF = 2, 9, 11, 12, 27  # enum bpf_map_type
F_NO_PREALLOC = 1
F_MMAPABLE = 1 << 10
_F_RDONLY = 1 << 3
_XDP, _NETFILTER, _TCX_INGRESS, _TCX_EGRESS = 37, 45, 46, 47  # enum bpf_attach_type
_F_BEFORE, _F_AFTER = 1 << 3, 1 << 4
_XDP_GENERIC, _XDP_NATIVE = 1 << 1, 1 << 2  # XDP_FLAGS_SKB_MODE, XDP_FLAGS_DRV_MODE
_TEST_LIVE_FRAMES = 1 << 1  # BPF_F_TEST_XDP_LIVE_FRAMES
_LICENSE = b"GPL\0"
_LOG_BYTES = 1 << 18
_MAX_PRIORITIES = 32  # tried at a netfilter hook
_INFO_BYTES = 256
_PROGRAM_NAME_AT = 64  # struct bpf_prog_info.name
_PROGRAM_RUNS_AT = 200  # struct bpf_prog_info.run_cnt
_MAX_ATTACHED = 64  # at a hook: BPF_MPROG_MAX
_PROGRAM_MAPS_AT = 52  # struct bpf_prog_info.nr_map_ids, .map_ids
_LINK_PROGRAM_AT, _INTERFACE_AT = 8, 16  # struct bpf_link_info.prog_id; .xdp.ifindex, .tcx.ifindex
_MAP_ID_AT, _VALUE_SIZE_AT, _MAP_NAME_AT = 4, 12, 24  # struct bpf_map_info.id, .value_size, .name
_MAX_MAPS = 1024  # of a program

_libc = ctypes.CDLL(None, use_errno=True)


class ProgramType(Struct, frozen=True):
    """How a program is loaded: enum bpf_prog_type and, where it matters, enum bpf_attach_type."""

    kind: int
    attach_type: int = 0
    flags: int = 0  # BPF_F_* of BPF_PROG_LOAD


TC = ProgramType(3)
XDP = ProgramType(6, _XDP)
XDP_FRAGMENTS = ProgramType(6, _XDP, 1 << 5)  # also takes frames of several buffers: a large MTU
TRACEPOINT = ProgramType(26, 23)  # BTF-typed raw tracepoint
NETFILTER = ProgramType(32, _NETFILTER)


def call(command: int, attributes: bytes) -> int:
    """Make the system call with the first members of union bpf_attr and return its result."""
    return _call(command, ctypes.create_string_buffer(attributes, _ATTRIBUTES_BYTES), len(attributes))


def _call(command: int, buffer: ctypes.Array[ctypes.c_char], size: int) -> int:
    number = _SYSCALL.get(os.uname().machine)
    if number is None:
        raise FwtopError(f"fwtop doesn't know the bpf system call of a {os.uname().machine} machine", 3)
    result = int(_libc.syscall(number, command, buffer, size))
    if result < 0:
        code = ctypes.get_errno()
        if code == errno.EPERM:
            raise FwtopError(
                "loading BPF programs needs root (or CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN): sudo fwtop", 3
            )
        raise OSError(code, os.strerror(code))
    return result


# Programs


def load_program(kind: ProgramType, name: str, code: bytes, target: int = 0) -> int:
    """Load byte code and return the program's descriptor; `target` is the BTF id of a tracepoint's type.

    Where the verifier refuses, the error ends with its last lines.
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
    license_text = ctypes.create_string_buffer(_LICENSE)
    log_level, log_size, log_at = (1, _LOG_BYTES, ctypes.addressof(log)) if log is not None else (0, 0, 0)
    attributes = struct.pack(
        "<IIQQIIQII16sIIIIQIIQIII",
        kind.kind,
        len(code) // 8,
        ctypes.addressof(instructions),
        ctypes.addressof(license_text),
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


def open_program(number: int) -> int:
    """Open the loaded program with that id and return its descriptor; OSError if it is gone."""
    return call(_PROG_GET_FD_BY_ID, struct.pack("<I", number))


def program_name(number: int) -> str:
    """Return the name of the loaded program with that id; OSError if it is gone."""
    with closing(open_program(number)) as descriptor:
        name = _info(descriptor)[_PROGRAM_NAME_AT : _PROGRAM_NAME_AT + 16]
    return name.split(b"\0")[0].decode("ascii", "replace")


def program_runs(number: int) -> int | None:
    """Return how often a program ran, None while the kernel doesn't count (kernel.bpf_stats_enabled)."""
    with closing(open_program(number)) as descriptor:
        return int(struct.unpack_from("<Q", _info(descriptor), _PROGRAM_RUNS_AT)[0]) or None


def attached_programs(kind: int, ifindex: int) -> list[int]:
    """Return the ids of the programs at an interface's hook; `kind` is an enum bpf_attach_type."""
    ids = ctypes.create_string_buffer(4 * _MAX_ATTACHED)
    query = struct.pack("<IIIIQIIQQQ", ifindex, kind, 0, 0, ctypes.addressof(ids), _MAX_ATTACHED, 0, 0, 0, 0)
    buffer = ctypes.create_string_buffer(query, _ATTRIBUTES_BYTES)
    _call(_PROG_QUERY, buffer, len(query))
    count = min(struct.unpack_from("<I", buffer, 24)[0], _MAX_ATTACHED)
    return list(struct.unpack_from(f"<{count}I", ids))


def program_maps(program: int) -> list[int]:
    """Return the ids of the maps that a program uses."""
    ids = ctypes.create_string_buffer(4 * _MAX_MAPS)
    info = ctypes.create_string_buffer(_INFO_BYTES)
    struct.pack_into("<IQ", info, _PROGRAM_MAPS_AT, _MAX_MAPS, ctypes.addressof(ids))
    call(_OBJ_GET_INFO, struct.pack("<IIQ", program, _INFO_BYTES, ctypes.addressof(info)))
    count = min(struct.unpack_from("<I", info, _PROGRAM_MAPS_AT)[0], _MAX_MAPS)
    return list(struct.unpack_from(f"<{count}I", ids))


def run_program(program: int, packet: bytes, repeat: int = 1) -> tuple[int, int]:
    """Run a program on one packet and return its verdict and the average nanoseconds of a run."""
    data = _copy(packet)
    # prog_fd, retval, data_size_in, data_size_out, data_in, data_out, repeat, duration
    attributes = struct.pack("<IIIIQQII", program, 0, len(packet), 0, ctypes.addressof(data), 0, repeat, 0)
    buffer = ctypes.create_string_buffer(attributes, _ATTRIBUTES_BYTES)
    _call(_PROG_TEST_RUN, buffer, len(attributes))
    return struct.unpack_from("<I", buffer, 4)[0], struct.unpack_from("<I", buffer, 36)[0]


def send_live_frames(program: int, ifindex: int, frame: bytes, count: int, batch: int) -> None:
    """Run an XDP program on `count` copies of a frame and act on its verdicts (XDP_TX, XDP_REDIRECT).

    The frames arrive on `ifindex`; the kernel prepares `batch` of them at a time (at most 256).
    """
    data = _copy(frame)
    context = _copy(struct.pack("<6I", 0, len(frame), 0, ifindex, 0, 0))  # struct xdp_md
    attributes = struct.pack(
        "<IIIIQQIIIIQQIIII",
        program,
        0,  # retval
        len(frame),
        0,  # data_size_out
        ctypes.addressof(data),
        0,  # data_out
        count,
        0,  # duration
        len(context),
        0,  # ctx_size_out
        ctypes.addressof(context),
        0,  # ctx_out
        _TEST_LIVE_FRAMES,
        0,  # cpu
        batch,
        0,
    )
    call(_PROG_TEST_RUN, attributes)


# Attaching: a program stays attached while the returned descriptor is open


def attach_tracepoint(program: int) -> int:
    """Attach a BTF-typed raw tracepoint program."""
    return call(_RAW_TRACEPOINT_OPEN, struct.pack("<QI", 0, program))


def attach_tcx_ingress(program: int, ifindex: int, *, last: bool = False) -> int:
    """Attach as the first (or last) program at tc ingress."""
    flags = _F_AFTER if last else _F_BEFORE
    return call(_LINK_CREATE, struct.pack("<IIII", program, ifindex, _TCX_INGRESS, flags) + bytes(16))


def attach_tcx_egress(program: int, ifindex: int) -> int:
    """Attach as the last program at tc egress."""
    return call(_LINK_CREATE, struct.pack("<IIII", program, ifindex, _TCX_EGRESS, _F_AFTER) + bytes(16))


def attach_xdp(program: int, ifindex: int, *, native: bool) -> int:
    """Attach to XDP; EBUSY or EEXIST where a program is attached already, which is never replaced."""
    mode = _XDP_NATIVE if native else _XDP_GENERIC
    return call(_LINK_CREATE, struct.pack("<IIII", program, ifindex, _XDP, mode))


def attach_netfilter(program: int, *, family: int, hook: int, priority: int) -> int:
    """Attach at a netfilter hook of the current namespace.

    BPF programs don't share a priority (EBUSY, net/netfilter/core.c): the next lower free one is used then.
    """
    target = struct.pack("<IIII", program, 0, _NETFILTER, 0)
    for candidate in range(priority, priority - _MAX_PRIORITIES, -1):
        try:
            return call(_LINK_CREATE, target + struct.pack("<IIiI", family, hook, candidate, 0))
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
    raise OSError(errno.EBUSY, "every priority at the end of the hook is taken")


def update_link(link: int, program: int) -> None:
    """Replace the program of a link atomically: each packet meets either the old or the new one."""
    call(_LINK_UPDATE, struct.pack("<IIII", link, program, 0, 0))


def detach_link(link: int) -> None:
    """Detach a link even if other processes hold it open."""
    call(_LINK_DETACH, struct.pack("<I", link))


def link_interface(link: int) -> int:
    """Return the interface index of an XDP or TCX link, 0 if the interface is gone."""
    return int(struct.unpack_from("<I", _info(link), _INTERFACE_AT)[0])


def link_program_id(link: int) -> int:
    """Return the id of a link's program."""
    return int(struct.unpack_from("<I", _info(link), _LINK_PROGRAM_AT)[0])


def link_program(link: int) -> int:
    """Open the program of a link and return its descriptor."""
    return call(_PROG_GET_FD_BY_ID, _info(link)[_LINK_PROGRAM_AT : _LINK_PROGRAM_AT + 4])


# Pins


def pin(descriptor: int, path: Path) -> None:
    """Pin a map, program or link in bpffs, where it outlives every process."""
    name = ctypes.create_string_buffer(os.fsencode(path))
    call(_OBJ_PIN, struct.pack("<QII", ctypes.addressof(name), descriptor, 0))


def open_pin(path: Path) -> int:
    """Open a pinned object."""
    name = ctypes.create_string_buffer(os.fsencode(path))
    return call(_OBJ_GET, struct.pack("<QII", ctypes.addressof(name), 0, 0))


# Maps


def create_map(
    kind: int, name: str, *, entries: int, value_size: int = 0, key_size: int = 0, flags: int = 0
) -> int:
    """Create a map and return its descriptor."""
    return _create(name, struct.pack("<IIIIIII", kind, key_size, value_size, entries, flags, 0, 0))


def create_map_of_maps(name: str, entries: int, inner: int) -> int:
    """Create an array whose values are maps with the properties of `inner`."""
    return _create(name, struct.pack("<IIIIIII", MAP_ARRAY_OF_MAPS, 4, 4, entries, 0, inner, 0))


def _create(name: str, attributes: bytes) -> int:
    return call(_MAP_CREATE, attributes + name.encode()[:15].ljust(16, b"\0"))


def set_element(descriptor: int, key: bytes, value: bytes) -> None:
    """Set one element of a map."""
    _element(_MAP_UPDATE, descriptor, key, _copy(value))


def set_elements(descriptor: int, keys: bytes, values: bytes, count: int) -> None:
    """Set many elements of a map, given one after the other."""
    key_buffer, value_buffer = _copy(keys), _copy(values)
    places = ctypes.addressof(key_buffer), ctypes.addressof(value_buffer)
    call(_MAP_UPDATE_BATCH, struct.pack("<QQQQIIQQ", 0, 0, *places, count, descriptor, 0, 0))


def get_element(descriptor: int, key: bytes, value_bytes: int) -> bytes:
    """Read one element of a map; a read-only descriptor is enough."""
    value = ctypes.create_string_buffer(value_bytes)
    _element(_MAP_LOOKUP, descriptor, key, value)
    return value.raw


def delete_element(descriptor: int, key: bytes) -> None:
    """Delete one element of a map; ENOENT if there is none."""
    _element(_MAP_DELETE, descriptor, key, None)


def _element(command: int, descriptor: int, key: bytes, value: ctypes.Array[ctypes.c_char] | None) -> None:
    key_buffer = _copy(key)
    value_at = ctypes.addressof(value) if value is not None else 0
    call(command, struct.pack("<IxxxxQQQ", descriptor, ctypes.addressof(key_buffer), value_at, 0))


def freeze(descriptor: int) -> None:
    """Let no process change a map any more, whoever it is; programs may. Raises OSError."""
    call(_MAP_FREEZE, struct.pack("<I", descriptor))


def value_size(descriptor: int) -> int:
    """Return the size of a map's values in bytes."""
    return int(struct.unpack_from("<I", _info(descriptor), _VALUE_SIZE_AT)[0])


def open_map(number: int) -> int:
    """Open the map with that id; OSError if it is gone."""
    return call(_MAP_GET_FD_BY_ID, struct.pack("<I", number))


def map_name(descriptor: int) -> str:
    """Return the name of a map, of up to 15 bytes."""
    name = _info(descriptor)[_MAP_NAME_AT : _MAP_NAME_AT + 16]
    return name.split(b"\0")[0].decode("ascii", "replace")


def read_only(descriptor: int) -> int:
    """Open a map again with a read-only descriptor, for a process that must not change it."""
    number = struct.unpack_from("<I", _info(descriptor), _MAP_ID_AT)[0]
    return call(_MAP_GET_FD_BY_ID, struct.pack("<III", number, 0, _F_RDONLY))


def _info(descriptor: int) -> bytes:
    buffer = ctypes.create_string_buffer(_INFO_BYTES)
    call(_OBJ_GET_INFO, struct.pack("<IIQ", descriptor, _INFO_BYTES, ctypes.addressof(buffer)))
    return buffer.raw


def _copy(data: bytes) -> ctypes.Array[ctypes.c_char]:
    return (ctypes.c_char * len(data)).from_buffer_copy(data)
