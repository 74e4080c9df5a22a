"""The smallest BPF programs there are: one verdict for every packet, the floor that real ones stand on.

So few instructions need no compiler. Attached by links (bpf(2)), which end with their descriptors.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import socket
import struct
from collections.abc import Iterator

from fwtop.collect import clsact
from fwtop.lab.entering import inside
from fwtop.lab.network import VICTIM_INTERFACE
from fwtop.model.errors import FwtopError

_CALLS = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "s390x": 351, "ppc64le": 361}
_PROG_LOAD, _LINK_CREATE = 5, 28
_TYPE_CLS, _TYPE_XDP = 3, 6
_ATTACH_XDP, _ATTACH_TCX_INGRESS = 37, 46
_DROP = {_TYPE_CLS: 2, _TYPE_XDP: 1}  # TC_ACT_SHOT, XDP_DROP
_GENERIC, _NATIVE = 1 << 1, 1 << 2
_ATTRIBUTES_BYTES = 128
_libc = ctypes.CDLL(None, use_errno=True)


def _bpf(command: int, attributes: bytes) -> int:
    number = _CALLS.get(platform.machine())
    if number is None:
        raise FwtopError(f"the bpf system call of a {platform.machine()} machine is not known here", 3)
    room = ctypes.create_string_buffer(attributes.ljust(_ATTRIBUTES_BYTES, b"\0"), _ATTRIBUTES_BYTES)
    result = int(_libc.syscall(number, command, room, _ATTRIBUTES_BYTES))
    if result < 0:
        raise FwtopError(f"bpf: {os.strerror(ctypes.get_errno())}; the lab is taken down", 3)
    return result


def _instruction(code: int, to: int = 0, source: int = 0, offset: int = 0, number: int = 0) -> bytes:
    """Return one struct bpf_insn."""
    return struct.pack("<BBhi", code, source << 4 | to, offset, number)


def _drop(kind: int) -> bytes:
    """Return `r0 = verdict; exit`."""
    return _instruction(0xB7, number=_DROP[kind]) + _instruction(0x95)


_READ_AND_DROP = b"".join(
    (
        _instruction(0x61, 2, 1, 0),  # r2 = ctx->data
        _instruction(0x61, 3, 1, 4),  # r3 = ctx->data_end
        _instruction(0xBF, 4, 2),
        _instruction(0x07, 4, number=42),  # r4 = r2 + the headers of UDP over IPv4
        _instruction(0xB7, 0, number=1),  # r0 = XDP_DROP
        _instruction(0x2D, 4, 3, 3),  # if r4 > r3 goto exit
        _instruction(0x69, 5, 2, 12),  # r5 = the EtherType
        _instruction(0x55, 5, 0, 1, 0x1234),  # if r5 != … goto exit
        _instruction(0xB7, 0, number=2),  # r0 = XDP_PASS
        _instruction(0x95),
    )
)


def _load(kind: int, code: bytes) -> int:
    """Load a program and return its descriptor."""
    program, licence = ctypes.create_string_buffer(code), ctypes.create_string_buffer(b"GPL")
    addresses = ctypes.addressof(program), ctypes.addressof(licence)
    return _bpf(_PROG_LOAD, struct.pack("<IIQQ", kind, len(code) // 8, *addresses))


@contextlib.contextmanager
def _attached(netns: str, kind: int, place: int, flags: int, code: bytes = b"") -> Iterator[None]:
    with contextlib.ExitStack() as descriptors:
        program = _load(kind, code or _drop(kind))
        descriptors.callback(os.close, program)
        with inside(netns):
            index = socket.if_nametoindex(VICTIM_INTERFACE)
            link = _bpf(_LINK_CREATE, struct.pack("<IIII", program, index, place, flags))
        descriptors.callback(os.close, link)
        yield


def xdp_drop(netns: str, *, native: bool = True) -> contextlib.AbstractContextManager[None]:
    """Drop everything in the victim's driver, or in the generic hook behind it."""
    return _attached(netns, _TYPE_XDP, _ATTACH_XDP, _NATIVE if native else _GENERIC)


def xdp_read_and_drop(netns: str) -> contextlib.AbstractContextManager[None]:
    """Drop everything in the driver after one look at the packet, whose bytes another core has written.

    What that look costs, every program pays that asks what it drops.
    """
    return _attached(netns, _TYPE_XDP, _ATTACH_XDP, _NATIVE, _READ_AND_DROP)


@contextlib.contextmanager
def tc_drop(netns: str) -> Iterator[None]:
    """Drop everything at the victim's tc ingress: by a link, or before Linux 6.6 by a filter."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_attached(netns, _TYPE_CLS, _ATTACH_TCX_INGRESS, 0))
        except FwtopError:
            stack.enter_context(_filtered(netns))
        yield


@contextlib.contextmanager
def _filtered(netns: str) -> Iterator[None]:
    with inside(netns):
        index = socket.if_nametoindex(VICTIM_INTERFACE)
    program = _load(_TYPE_CLS, _drop(_TYPE_CLS))
    try:
        with inside(netns):
            clsact.put_rules(program, index, "tc")
        yield
    finally:
        with inside(netns):
            clsact.remove_rules(index, "tc")
        os.close(program)
