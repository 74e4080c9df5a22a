#!/usr/bin/env python3
"""Print what 'fwtop record --drops' writes, from standard input or unix:/PATH; damage is passed over."""

import socket
import struct
import sys
import zlib
from collections.abc import Callable, Iterator

MARK, HEAD, BODY = b"\xf7DRP", struct.Struct("<4sII"), struct.Struct("<QIIH")


def bodies(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Yield the bodies whose checksum is right."""
    data, more = b"", b"-"
    while more:
        more = read(65536)
        data += more
        while (at := data.find(MARK)) >= 0 and len(data) >= at + HEAD.size:
            _, length, checksum = HEAD.unpack_from(data, at)
            begin, end = at + HEAD.size, at + HEAD.size + length
            if length < 65536 and len(data) < end and more:
                break  # the rest is on its way
            whole = len(data) >= end and zlib.crc32(data[begin:end]) == checksum
            if whole:
                yield data[begin:end]
            data = data[end if whole else at + 1 :]
        data = data if MARK in data else data[-3:]


source = open(0, "rb", closefd=False).read1  # noqa: SIM115
if sys.argv[1:]:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(sys.argv[1].removeprefix("unix:"))
    source = sock.recv
for body in bodies(source):
    time_ns, stands_for, length, text = BODY.unpack_from(body)
    why, packet = body[BODY.size :][:text].decode(), body[BODY.size + text :]
    print(f"{time_ns / 1e9:.6f} ×{stands_for} {length} bytes, {why}: {packet.hex()}", flush=True)
