"""Watch questions and answers for some seconds: root opens two packet sockets, a confined child reads them.

The child is a user without rights, behind the sandbox of the dissector.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time

from msgspec import Struct

from fwtop.kernel import packet_sockets
from fwtop.kernel.packet_sockets import IF_EQUAL, LOAD_BYTE, LOAD_HALF, LOAD_HALF_X, LOAD_WORD, RETURN
from fwtop.model.errors import FwtopError
from fwtop.model.traffic.protocols import TCP, UDP
from fwtop.resolver.servers import PORT
from fwtop.resolver.view import DnsCounters, View, view_of
from fwtop.sandbox.child import ask, unprivileged
from fwtop.sandbox.confine import Profile

_ETH_P_ALL = 0x0003
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_RECEIVE_BYTES = 8 << 20
_PROBE_SECONDS = 0.2
_SAMPLED_PPS = 8_000  # that one process parses beside the server under attack
_PATIENCE_SECONDS = 10.0  # for its start and its answer
_BATCH = 256
_CAPTURED_BYTES = 600  # headers, and the longest question
_IPV4, _IPV6 = 0x0800, 0x86DD
_FRAGMENT_OFFSET = 0x1FFF


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
    _attach_filter(sock, incoming=incoming, one_in=one_in)
    with contextlib.suppress(BlockingIOError):  # what came before the filter
        while True:
            sock.recv(1, socket.MSG_DONTWAIT)
    _statistics(sock)
    sock.setblocking(False)
    return sock


def _attach_filter(sock: socket.socket, *, incoming: bool, one_in: int) -> None:
    """Let a socket receive only questions (`incoming`) or answers, one in N of them; raises OSError."""
    port = 2 if incoming else 0  # of the destination, of the source
    direction = ("drop", "") if incoming else ("", "drop")
    packet_sockets.attach(
        sock,
        [
            (LOAD_WORD, packet_sockets.PACKET_TYPE),
            (IF_EQUAL, socket.PACKET_OUTGOING, *direction),
            (LOAD_WORD, packet_sockets.RANDOM),
            (packet_sockets.IF_GREATER, 0xFFFFFFFF // max(one_in, 1), "drop", ""),
            (LOAD_WORD, packet_sockets.PROTOCOL),
            (IF_EQUAL, _IPV6, "six", ""),
            (IF_EQUAL, _IPV4, "", "drop"),
            (LOAD_HALF, 6),
            (packet_sockets.IF_BITS, _FRAGMENT_OFFSET, "drop", ""),
            (packet_sockets.X_IPV4_HEADER, 0),
            (LOAD_BYTE, 9),
            (IF_EQUAL, UDP, "ports", ""),
            (IF_EQUAL, TCP, "ports", "drop"),
            "six",
            (packet_sockets.X_NUMBER, 40),
            (LOAD_BYTE, 6),
            (IF_EQUAL, UDP, "ports", ""),
            (IF_EQUAL, TCP, "ports", "drop"),
            "ports",
            (LOAD_HALF_X, port),
            (IF_EQUAL, PORT, "pass", "drop"),
            "pass",
            (RETURN, _CAPTURED_BYTES),
            "drop",
            (RETURN, 0),
        ],
    )


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
        return _read_by_child(sockets, seconds, one_in)
    finally:
        sockets.close()


def _read_by_child(sockets: _Sockets, seconds: float, one_in: int) -> View:
    """Read both sockets for so long in a confined child; raises FwtopError."""

    def enter() -> None:
        os.chdir("/")
        unprivileged(Profile.DISSECTOR)

    return ask(
        lambda: view_of(_counted(sockets, seconds), seconds, one_in),
        View,
        who="the reader of questions and answers",
        enter=enter,
        keep=(sockets.questions.fileno(), sockets.answers.fileno()),
        seconds=seconds + _PATIENCE_SECONDS,
    )


def _counted(sockets: _Sockets, seconds: float) -> DnsCounters:
    counters = DnsCounters()
    poller = select.poll()
    incoming = sockets.questions.fileno()
    for sock in (sockets.questions, sockets.answers):
        poller.register(sock, select.POLLIN)
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        for descriptor, _ in poller.poll(left * 1000):
            with contextlib.suppress(BlockingIOError):
                for _ in range(_BATCH):
                    data = os.read(descriptor, _CAPTURED_BYTES)
                    counters.packet(data, incoming=descriptor == incoming)
    return counters
