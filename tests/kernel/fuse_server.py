"""A file system in user space with one file, whose server stops answering when it is told to.

Arguments: where to mount, and the file's contents. Lines on standard input name the operations that get no
answer from then on; the end of it ends the server, and what waits for it goes on.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec import Struct

NAME = b"file"
# linux/fuse.h; besides these, 14: open, 26: init
OPCODES = {"lookup": 1, "forget": 2, "getattr": 3, "read": 15, "release": 18, "flush": 25}
IN, OUT = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ")
ROOT, FILE = 1, 2


class FuseFile(Struct):
    """A file whose server can be told to stop answering."""

    path: Path
    server: subprocess.Popen[str]

    def stall(self, *operations: str) -> None:
        """Leave these operations without an answer from now on."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(" ".join(operations) + "\n")
        self.server.stdin.flush()
        assert self.server.stdout.readline() == "stalled\n"

    def abort(self) -> None:
        """End the server: whoever waits for it goes on with an error."""
        self.server.kill()
        self.server.wait(60)


@contextmanager
def fuse_file(place: Path, contents: str = "") -> Iterator[FuseFile]:
    """Mount such a file below an empty directory; skips where no file system can live in a process."""
    if not Path("/dev/fuse").exists():
        pytest.skip("this machine has no /dev/fuse")
    argv = [sys.executable, "-I", __file__, str(place), contents]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        made = FuseFile(place / NAME.decode(), server)
        try:
            assert server.stdout.readline() == "ready\n"
            yield made
        finally:
            made.abort()
            subprocess.run(["umount", "-l", str(place)], check=False, capture_output=True, timeout=60)


def attributes(node: int, size: int) -> bytes:
    mode = 0o40755 if node == ROOT else 0o100666
    return struct.pack("<6Q10I", node, size, 1, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(opcode: int, node: int, body: bytes, contents: bytes) -> bytes | int:
    """Return what an operation answers, or an error number."""
    size = 0 if node == ROOT else len(contents)
    match opcode:
        case 1 if body.rstrip(b"\0") == NAME:
            found = struct.pack("<4Q2I", FILE, 0, 0, 0, 0, 0) + attributes(FILE, len(contents))
        case 3:
            found = struct.pack("<QII", 0, 0, 0) + attributes(node, size)
        case 14:
            found = struct.pack("<QII", 1, 0, 0)
        case 15:
            _, offset, wanted = struct.unpack_from("<QQI", body)
            found = contents[offset : offset + wanted]
        case 18 | 25:
            found = b""
        case 26:
            found = struct.pack("<4I2H2I2H8I", 7, 31, 0, 0, 16, 12, 4096, 1, 1, 0, *[0] * 8)
        case _:
            return errno.ENOENT if opcode == 1 else errno.ENOSYS
    return found


def main() -> None:
    place, contents = sys.argv[1], sys.argv[2].encode()
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if ctypes.CDLL(None, use_errno=True).mount(b"fwtop-test", os.fsencode(place), b"fuse", 0, options):
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
    print("ready", flush=True)
    stalled = {OPCODES["forget"]}  # it never has one
    while True:
        readable, _, _ = select.select([0, device], [], [])
        if 0 in readable:
            words = os.read(0, 1000).decode().split()
            if not words:
                return
            stalled |= {OPCODES[word] for word in words}
            print("stalled", flush=True)
            continue
        request = os.read(device, 1 << 17)
        _, opcode, unique, node, *_ = IN.unpack_from(request)
        if opcode in stalled:
            continue
        found = answer(opcode, node, request[IN.size :], contents)
        error, data = (-found, b"") if isinstance(found, int) else (0, found)
        try:
            os.write(device, OUT.pack(OUT.size + len(data), error, unique) + data)
        except FileNotFoundError:  # interrupted meanwhile
            continue


if __name__ == "__main__":
    main()
