"""Watch questions and answers for some seconds: root opens two packet sockets, a confined child reads them.

`python -I -m fwtop.resolver.observe SECONDS FD` reads the sockets on descriptors 0 and FD, as a user without
rights and behind the sandbox of the dissector, and writes the counts as JSON to standard output.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from typing import Any

from msgspec import Struct

from fwtop.kernel.programs import ENVIRONMENT, module_argv
from fwtop.model.errors import FwtopError
from fwtop.resolver import filter as packet_filter
from fwtop.resolver.view import View, counts_of, view_of

_ETH_P_ALL = 0x0003
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_RECEIVE_BYTES = 8 << 20
_PROBE_SECONDS = 0.2
_SAMPLED_PPS = 8_000  # that one process parses beside the server under attack
_PATIENCE_SECONDS = 10.0  # for its start and its answer
_BATCH = 256


class _Sockets(Struct, frozen=True):
    questions: socket.socket
    answers: socket.socket

    @staticmethod
    def open(one_in: int) -> _Sockets:
        return _Sockets(_open(incoming=True, one_in=one_in), _open(incoming=False, one_in=one_in))

    def counted(self) -> int:
        """Return the packets that passed the filters since the last call, lost ones included."""
        return sum(_statistics(sock) for sock in (self.questions, self.answers))

    def close(self) -> None:
        self.questions.close()
        self.answers.close()


def _open(*, incoming: bool, one_in: int) -> socket.socket:
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_ALL))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
    packet_filter.attach(sock, incoming=incoming, one_in=one_in)
    with contextlib.suppress(BlockingIOError):  # what came before the filter
        while True:
            sock.recv(1, socket.MSG_DONTWAIT)
    _statistics(sock)
    return sock


def _statistics(sock: socket.socket) -> int:
    return int.from_bytes(sock.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)[:4], "little")


def observe(seconds: float) -> View:
    """Watch port 53 of this network namespace; raises FwtopError."""
    try:
        probe = _Sockets.open(1)
        try:
            time.sleep(_PROBE_SECONDS)
            one_in = max(1, round(probe.counted() / _PROBE_SECONDS / _SAMPLED_PPS))
        finally:
            probe.close()
        sockets = _Sockets.open(one_in)
    except OSError as error:
        raise FwtopError(f"packets can't be read here: {error.strerror}; try it as root", 3) from None
    try:
        return view_of(_read_by_child(sockets, seconds), seconds, one_in)
    finally:
        sockets.close()


def _read_by_child(sockets: _Sockets, seconds: float) -> dict[str, Any]:
    answers = sockets.answers.fileno()
    try:
        done = subprocess.run(
            module_argv("fwtop.resolver.observe", f"{seconds:g}", str(answers)),
            stdin=sockets.questions.fileno(),
            pass_fds=[answers],
            capture_output=True,
            env=ENVIRONMENT,
            timeout=seconds + _PATIENCE_SECONDS,
            check=True,
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found
    except (OSError, ValueError, RecursionError, subprocess.SubprocessError):
        raise FwtopError("questions and answers could not be counted; nothing was changed") from None


def main(arguments: list[str]) -> int:
    """Read both sockets for so long and write the counts; returns the exit status."""
    from fwtop.resolver.counters import DnsCounters
    from fwtop.sandbox.confine import confine
    from fwtop.sandbox.privileges import drop_privileges
    from fwtop.sandbox.syscalls import Profile

    seconds, incoming, outgoing = float(arguments[0]), 0, int(arguments[1])
    for descriptor in (incoming, outgoing):
        os.set_blocking(descriptor, False)
    counters = DnsCounters()
    drop_privileges()
    confine(Profile.DISSECTOR)
    poller = select.poll()
    for descriptor in (incoming, outgoing):
        poller.register(descriptor, select.POLLIN)
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        for descriptor, _ in poller.poll(left * 1000):
            with contextlib.suppress(BlockingIOError):
                for _ in range(_BATCH):
                    data = os.read(descriptor, packet_filter.CAPTURED_BYTES)
                    counters.packet(data, incoming=descriptor == incoming)
    os.write(1, json.dumps(counts_of(counters)).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
