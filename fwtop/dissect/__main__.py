"""The dissecting process: packets in, lines out, with nothing to lose.

It runs as whoever started it (the console, without capabilities) and takes away from itself what it
can: memory, time, files, children, and any way to gain privileges. scapy is GPL-2.0-only, and a process
of its own keeps it apart.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from types import FrameType
from typing import BinaryIO

from fwtop.dissect import wire
from fwtop.dissect.decode import dissect
from fwtop.model.dissection import Dissection

MEMORY_BYTES = 512 << 20  # scapy with these protocols takes 60 MB
CPU_SECONDS = 60  # of the whole process; the client starts another one
PACKET_SECONDS = 1.0
_PR_SET_NO_NEW_PRIVS = 38


class _TookTooLong(Exception):
    """A packet that keeps scapy busy for longer than anybody would wait."""


def main() -> int:
    """Serve until the input ends; returns the exit status."""
    _confine()
    signal.signal(signal.SIGALRM, _on_alarm)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the console's business
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while True:
        header = source.read(wire.HEADER.size)
        if len(header) < wire.HEADER.size:
            return 0
        length, link = wire.HEADER.unpack(header)
        if length > wire.MAX_PACKET:
            return 1
        target.write(wire.answer(_dissected(_exactly(source, length), link)))
        target.flush()


def _exactly(source: BinaryIO, length: int) -> bytes:
    data = source.read(length)
    if len(data) < length:
        raise SystemExit(0)
    return data


def _dissected(data: bytes, link: int) -> Dissection:
    signal.setitimer(signal.ITIMER_REAL, PACKET_SECONDS)
    try:
        return dissect(data, link)
    except _TookTooLong:
        return Dissection((), "taking this packet apart took too long")
    except Exception as error:  # scapy raises anything at all on hostile packets
        return Dissection((), f"this packet can't be taken apart ({type(error).__name__})")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _on_alarm(_number: int, _frame: FrameType | None) -> None:
    raise _TookTooLong


def _confine() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.chdir("/")
    limits = (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 3),  # the pipes that it has
    )
    for limit, value in limits:
        resource.setrlimit(limit, (value, value))


if __name__ == "__main__":
    sys.exit(main())
