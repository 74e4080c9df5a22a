"""Descriptors that clients send, and those that the guardian has left: neither keeps a rule from ending."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from guardian_bench import Bench, apply, kill, rules_of

from fwtop.kernel import namespaces
from fwtop.model.addresses.address import Prefix
from fwtop.model.paths import ROOT
from fwtop.model.protocol import ListChange, Undo
from tests.kernel.fuse_server import FuseFile, fuse_file

pytestmark = pytest.mark.kernel
SENT = 40  # more than there are threads for what sticks
SENDER = """
import contextlib, os, socket, sys
root, address, path, count = sys.argv[1:]
sys.path.insert(0, root)
from fwtop.model.protocol import Apply, Hello, Status, encode_request
file = os.open(path, os.O_RDONLY)
held = []
for number in range(int(count)):
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.connect(address)
    with contextlib.suppress(OSError):
        client.send(encode_request(Hello("cli", "clone")))
        client.recv(1 << 20)
        if number % 2:
            held.append(client)  # else it closes, and the message is perhaps never received
            socket.send_fds(client, [encode_request(Apply({}, 0, attached=True))], [file])
            client.recv(1 << 20)
        else:
            client.send(encode_request(Status()))
            socket.send_fds(client, [encode_request(Status())], [file])
            client.close()
print("sent", flush=True)
sys.stdin.read()
"""


@contextmanager
def descriptors_sent(bench: Bench, file: FuseFile) -> Iterator[None]:
    """Send descriptors of a file that can't be closed until its server ends; nobody here has one."""
    descriptor = namespaces.open_netns(bench.netns)
    address = str(bench.directory / f"{namespaces.inode(descriptor)}.sock")
    os.close(descriptor)
    argv = [sys.executable, "-c", SENDER, str(ROOT), address, str(file.path), str(SENT)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as sender:
        try:
            assert sender.stdout is not None
            assert sender.stdout.readline() == "sent\n"
            yield
        finally:
            file.abort()
            sender.kill()


def test_file_that_cannot_be_closed_stalls_nobody_and_keeps_no_guardian_from_following(
    bench: Bench, poll_until
) -> None:
    (bench.directory / "fuse").mkdir()
    with bench.connect() as guardian, fuse_file(bench.directory / "fuse") as file:
        file.stall("flush")
        with descriptors_sent(bench, file):
            rule_id = apply(guardian, bench.block_rule(4))
            many = [Prefix(4, 0xC0000200 + number * 4, 32) for number in range(6000)]
            guardian.change_list(ListChange("many", "create"), many)  # its entries come with a descriptor
            assert len(guardian.read_list("many")[0]) == len(many)
            guardian.demand(Undo((rule_id,)))
            assert bench.path(4).passes()
            kept = apply(guardian, bench.block_rule(4))
            kill(int(guardian.about["pid"]))
            with bench.connect() as successor:
                assert list(rules_of(successor)) == [kept]
                successor.demand(Undo(all=True))
            assert bench.path(4).passes()
