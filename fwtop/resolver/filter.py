"""The packets of a packet socket (SOCK_DGRAM) that are DNS questions or answers, one in N of them."""

from __future__ import annotations

import socket

from fwtop.kernel import classic_bpf
from fwtop.kernel.classic_bpf import IF_EQUAL, LOAD_BYTE, LOAD_HALF, LOAD_HALF_X, LOAD_WORD, RETURN
from fwtop.model.traffic.protocols import TCP, UDP
from fwtop.resolver.servers import PORT

CAPTURED_BYTES = 600  # headers, and the longest question
_IPV4, _IPV6 = 0x0800, 0x86DD
_FRAGMENT_OFFSET = 0x1FFF


def attach(sock: socket.socket, *, incoming: bool, one_in: int) -> None:
    """Let a socket receive only questions (`incoming`) or answers; raises OSError."""
    port = 2 if incoming else 0  # of the destination, of the source
    direction = ("drop", "") if incoming else ("", "drop")
    classic_bpf.attach(
        sock,
        [
            (LOAD_WORD, classic_bpf.PACKET_TYPE),
            (IF_EQUAL, socket.PACKET_OUTGOING, *direction),
            (LOAD_WORD, classic_bpf.RANDOM),
            (classic_bpf.IF_GREATER, 0xFFFFFFFF // max(one_in, 1), "drop", ""),
            (LOAD_WORD, classic_bpf.PROTOCOL),
            (IF_EQUAL, _IPV6, "six", ""),
            (IF_EQUAL, _IPV4, "", "drop"),
            (LOAD_HALF, 6),
            (classic_bpf.IF_BITS, _FRAGMENT_OFFSET, "drop", ""),
            (classic_bpf.X_IPV4_HEADER, 0),
            (LOAD_BYTE, 9),
            (IF_EQUAL, UDP, "ports", ""),
            (IF_EQUAL, TCP, "ports", "drop"),
            "six",
            (classic_bpf.X_NUMBER, 40),
            (LOAD_BYTE, 6),
            (IF_EQUAL, UDP, "ports", ""),
            (IF_EQUAL, TCP, "ports", "drop"),
            "ports",
            (LOAD_HALF_X, port),
            (IF_EQUAL, PORT, "pass", "drop"),
            "pass",
            (RETURN, CAPTURED_BYTES),
            "drop",
            (RETURN, 0),
        ],
    )
