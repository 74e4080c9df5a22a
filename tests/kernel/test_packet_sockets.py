"""What slows the way of packets on a real machine: who listens with packet sockets, queues, cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fwtop.kernel.namespaces import inside
from fwtop.kernel.receive_path import PacketSockets
from tests.kernel.conftest import NetnsPair

pytestmark = pytest.mark.kernel
Poll = Callable[..., Any]
_READ = """
import json, sys
from msgspec import to_builtins
from fwtop.kernel.receive_path import PacketSockets, queue_counters
sockets = PacketSockets()
for line in sys.stdin:
    print(json.dumps([to_builtins(sockets.read()), queue_counters(sys.argv[1])]), flush=True)
"""

_FILTERS = """
import ctypes, socket, struct, sys
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
print(flush=True)
sys.stdin.readline()
code = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 96) * 2)  # BPF_RET, twice
packets.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HL", 2, ctypes.addressof(code)))  # SO_ATTACH_FILTER
print(flush=True)
sys.stdin.readline()
"""


@contextmanager
def running(netns: str, *argv: str, **pipes: Any) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(["ip", "netns", "exec", netns, *argv], text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.terminate()


def test_a_forgotten_tcpdump_is_named(netns_pair: NetnsPair, poll_until: Poll) -> None:
    victim = netns_pair.victim.netns
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with running(victim, sys.executable, "-c", _READ, "eth0", **pipes) as reader:

        def told() -> list[dict[str, Any]]:
            assert reader.stdin is not None
            assert reader.stdout is not None
            reader.stdin.write("\n")
            reader.stdin.flush()
            return list(json.loads(reader.stdout.readline())[0])

        assert told() == []
        dump = ("tcpdump", "-i", "any", "-w", "/dev/null")
        with running(victim, *dump, **quiet) as forgotten, running(victim, *dump, "port 80", **quiet) as some:
            wanted = {("tcpdump", forgotten.pid, False), ("tcpdump", some.pid, True)}

            def named() -> list[dict[str, Any]]:
                """Return what is told once it is so: tcpdump opens a socket first, then filters."""
                found = told()
                is_so = {(one["process"], one["pid"], one["filtered"]) for one in found} == wanted
                return found if is_so else []

            found = poll_until(named)
            assert {one["interface"] for one in found} == {""}
        assert poll_until(lambda: told() == [])


def test_a_filter_that_comes_after_the_first_look_is_told(netns_pair: NetnsPair, poll_until: Poll) -> None:
    victim = netns_pair.victim.netns
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with running(victim, sys.executable, "-c", _FILTERS, **pipes) as program, inside(victim):
        sockets = PacketSockets()
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdout.readline()
        # On a busy machine the search for it goes on in the next reading.
        assert poll_until(lambda: [(one.pid, one.filtered) for one in sockets.read()]) == [
            (program.pid, False)
        ]
        program.stdin.write("\n")
        program.stdin.flush()
        program.stdout.readline()
        assert [(one.pid, one.filtered) for one in sockets.read()] == [(program.pid, True)]


def test_a_socket_for_a_small_protocol_or_of_fwtop_slows_nothing(poll_until: Poll) -> None:
    code = (
        "import socket, sys; s = socket.socket(17, 3, int(sys.argv[2])); print(flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    lldp, every = (str(int.from_bytes(one.to_bytes(2, "big"), sys.byteorder)) for one in (0x88CC, 3))
    sockets = PacketSockets()
    with (
        subprocess.Popen([sys.executable, "-c", code, "x", lldp], **pipes) as small,
        subprocess.Popen([sys.executable, "-c", code, "fwtop.guardian", every], **pipes) as own,
        subprocess.Popen([sys.executable, "-c", code, "x", every], **pipes) as other,
    ):
        for one in (small, own, other):
            assert one.stdout is not None
            one.stdout.readline()
        found = poll_until(lambda: [one.pid for one in sockets.read() if one.pid == other.pid])
        pids = [one.pid for one in sockets.read()]
        assert found
        assert not {small.pid, own.pid, os.getpid()} & set(pids)
        for one in (small, own, other):
            one.kill()
