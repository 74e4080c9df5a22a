"""Classic BPF that passes DNS questions or answers to a packet socket, one in N of them.

The data begins with the IP header (SOCK_DGRAM). Source: Documentation/networking/filter.rst.
"""

from __future__ import annotations

import ctypes
import socket
import struct

from fwtop.resolver.servers import PORT

CAPTURED_BYTES = 600  # headers, and the longest question
_SO_ATTACH_FILTER = 26
_LD_W, _LD_H, _LD_B, _LDX_IP_HEADER, _LD_H_INDEXED = 0x20, 0x28, 0x30, 0xB1, 0x48
_JEQ, _JGT, _JSET, _RETURN = 0x15, 0x25, 0x45, 0x06
_ANCILLARY = 0xFFFFF000  # SKF_AD_OFF
_PROTOCOL, _PACKET_TYPE, _RANDOM = (_ANCILLARY + offset for offset in (0, 4, 56))
_OUTGOING = 4  # PACKET_OUTGOING
_IPV4, _IPV6, _UDP, _TCP = 0x0800, 0x86DD, 17, 6
_FRAGMENT_OFFSET = 0x1FFF
_INSTRUCTION = struct.Struct("=HBBI")
_DROP, _PASS = "drop", "pass"

_Line = tuple[int, int, str | None, str | None, str]  # code, operand, where if true, if false, own label


def attach(sock: socket.socket, *, incoming: bool, one_in: int) -> None:
    """Let a socket receive only questions (`incoming`) or answers; raises OSError."""
    code = _assembled(_lines(incoming, one_in))
    text = ctypes.create_string_buffer(code)
    program = struct.pack("HP", len(code) // _INSTRUCTION.size, ctypes.addressof(text))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def _lines(incoming: bool, one_in: int) -> list[_Line]:
    port = 2 if incoming else 0  # of the destination, of the source
    direction = (_DROP, None) if incoming else (None, _DROP)
    return [
        (_LD_W, _PACKET_TYPE, None, None, ""),
        (_JEQ, _OUTGOING, *direction, ""),
        (_LD_W, _RANDOM, None, None, ""),
        (_JGT, 0xFFFFFFFF // max(one_in, 1), _DROP, None, ""),
        (_LD_W, _PROTOCOL, None, None, ""),
        (_JEQ, _IPV6, "six", None, ""),
        (_JEQ, _IPV4, None, _DROP, ""),
        (_LD_H, 6, None, None, ""),
        (_JSET, _FRAGMENT_OFFSET, _DROP, None, ""),
        (_LD_B, 9, None, None, ""),
        (_JEQ, _UDP, "ports", None, ""),
        (_JEQ, _TCP, None, _DROP, ""),
        (_LDX_IP_HEADER, 0, None, None, "ports"),
        (_LD_H_INDEXED, port, None, None, ""),
        (_JEQ, PORT, _PASS, _DROP, ""),
        (_LD_B, 6, None, None, "six"),
        (_JEQ, _UDP, "ports6", None, ""),
        (_JEQ, _TCP, None, _DROP, ""),
        (_LD_H, 40 + port, None, None, "ports6"),
        (_JEQ, PORT, _PASS, _DROP, ""),
        (_RETURN, CAPTURED_BYTES, None, None, _PASS),
        (_RETURN, 0, None, None, _DROP),
    ]


def _assembled(lines: list[_Line]) -> bytes:
    places = {label: number for number, (*_, label) in enumerate(lines) if label}
    out = []
    for number, (code, operand, true, false, _) in enumerate(lines):
        jumps = (places[target] - number - 1 if target else 0 for target in (true, false))
        out.append(_INSTRUCTION.pack(code, *jumps, operand & 0xFFFFFFFF))
    return b"".join(out)
