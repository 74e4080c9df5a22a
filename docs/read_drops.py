#!/usr/bin/env python3
"""Print what 'fwtop record --drops' writes, from a file, unix:/PATH or standard input, past damage."""

import itertools
import pathlib
import socket
import struct
import sys
import zlib

name, sock, data = sys.argv[1] if sys.argv[1:] else "/dev/stdin", socket.socket(socket.AF_UNIX), b""
if name.startswith("unix:"):
    sock.connect(name.removeprefix("unix:"))
source = sock.makefile("rb") if name.startswith("unix:") else pathlib.Path(name).open("rb")  # noqa: SIM115
for more in itertools.chain(iter(lambda: source.read1(65536), b""), [b""]):
    data += more
    while len(data := data[at:] if (at := data.find(b"\xf7DRP")) >= 0 else data[-3:]) >= 12:
        length, checksum = struct.unpack_from("<II", data, 4)
        if more and length < 65536 and len(data) < 12 + length:
            break  # the rest is on its way
        if zlib.crc32(body := data[12 : 12 + length]) != checksum:
            data = data[1:]
            continue
        data = data[12 + length :]
        time_ns, stands_for, size, text = struct.unpack_from("<QIIH", body)
        why, packet = body[18:][:text].decode(), body[18 + text :]
        print(f"{time_ns / 1e9:.6f} ×{stands_for} {size} bytes, {why}: {packet.hex()}", flush=True)
