"""The dissector process: packets in, sanitised text out, nothing to lose.

It runs as a user of its own, starts when the first packet arrives, and confines itself before it reads that
packet: memory, CPU time, files, child processes, privileges, and every system call that could reach another
process. scapy is GPL-2.0-only; a separate process also keeps the licences apart.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from fwtop.dissect import wire
from fwtop.dissect.decode import dissect
from fwtop.dissect.wire import Dissection
from fwtop.sandbox.confine import Profile, confine, limit

MEMORY_BYTES = 512 << 20  # scapy with these protocols takes 60 MB
CPU_SECONDS = 60  # for the whole process; the supervisor starts another one
PACKET_SECONDS = 1.0
_SOCKET = 0  # standard input


class _TimeoutError(Exception):
    """Decoding a packet took longer than PACKET_SECONDS."""


def main() -> int:
    """Serve requests on standard input until the other end closes it; returns the exit status."""
    _confine()
    signal.signal(signal.SIGALRM, _on_alarm)
    while message := os.read(_SOCKET, wire.MAX_REQUEST):
        number, link, data = wire.parse_request(message)
        os.write(_SOCKET, wire.answer(number, _dissected(data, link)))
    return 0


def _dissected(data: bytes, link: int) -> Dissection:
    signal.setitimer(signal.ITIMER_REAL, PACKET_SECONDS)
    try:
        return dissect(data, link)
    except _TimeoutError:
        return Dissection((), "decoding this packet took too long")
    except Exception as error:  # scapy can raise anything on hostile packets
        return Dissection((), f"this packet could not be decoded ({type(error).__name__})")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _on_alarm(_number: int, _frame: FrameType | None) -> None:
    raise _TimeoutError


def _confine() -> None:
    os.chdir("/")
    confine(Profile.DISSECTOR)
    limit(MEMORY_BYTES, cpu_seconds=CPU_SECONDS, descriptors=3)


if __name__ == "__main__":
    sys.exit(main())
