"""Minimal BPF programs that drop every packet: the upper bound for any real one.

Too short to need a compiler. Attached by BPF links, which go away with their descriptors.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable, Iterator
from functools import partial

from fwtop.kernel import bpf, clsact
from fwtop.kernel.bpf import ProgramType
from fwtop.kernel.namespaces import inside
from fwtop.lab.network import VICTIM_INTERFACE
from fwtop.model.errors import FwtopError

_XDP_DROP, _TC_ACT_SHOT = 1, 2


def _instruction(code: int, to: int = 0, source: int = 0, offset: int = 0, number: int = 0) -> bytes:
    """Return one struct bpf_insn."""
    return struct.pack("<BBhi", code, source << 4 | to, offset, number)


def _return(verdict: int) -> bytes:
    """Return `r0 = verdict; exit`."""
    return _instruction(0xB7, number=verdict) + _instruction(0x95)


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


@contextlib.contextmanager
def _attached(
    netns: str, kind: ProgramType, code: bytes, attach: Callable[[int, int], int]
) -> Iterator[None]:
    """Keep a program attached to the victim's interface; `attach` maps program and ifindex to a link."""
    with contextlib.ExitStack() as descriptors:
        try:
            program = bpf.load_program(kind, "bench", code)
            descriptors.callback(os.close, program)
            with inside(netns):
                link = attach(program, socket.if_nametoindex(VICTIM_INTERFACE))
            descriptors.callback(os.close, link)
        except OSError as error:
            raise FwtopError(f"bpf: {error.strerror}; the lab is taken down", 3) from None
        yield


def xdp_drop(netns: str, *, native: bool = True) -> contextlib.AbstractContextManager[None]:
    """Drop everything in the victim's driver, or in the generic XDP hook."""
    return _attached(netns, bpf.XDP, _return(_XDP_DROP), partial(bpf.attach_xdp, native=native))


def xdp_read_and_drop(netns: str) -> contextlib.AbstractContextManager[None]:
    """Drop everything in the driver after reading the packet, whose bytes another CPU wrote.

    Every program that looks at packets pays for that cache miss.
    """
    return _attached(netns, bpf.XDP, _READ_AND_DROP, partial(bpf.attach_xdp, native=True))


@contextlib.contextmanager
def tc_drop(netns: str) -> Iterator[None]:
    """Drop everything at the victim's tc ingress: by a TCX link, or by a clsact filter before Linux 6.6."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_attached(netns, bpf.TC, _return(_TC_ACT_SHOT), bpf.attach_tcx_ingress))
        except FwtopError:
            stack.enter_context(_filtered(netns))
        yield


@contextlib.contextmanager
def _filtered(netns: str) -> Iterator[None]:
    with inside(netns):
        index = socket.if_nametoindex(VICTIM_INTERFACE)
    program = bpf.load_program(bpf.TC, "bench", _return(_TC_ACT_SHOT))
    try:
        with inside(netns):
            clsact.attach_rules(program, index, "tc")
        yield
    finally:
        with inside(netns):
            clsact.detach_rules(index, "tc")
        os.close(program)
