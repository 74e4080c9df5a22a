"""Descriptors that clients send, and those that the guardian has left: neither keeps a rule from ending."""

from __future__ import annotations

import itertools
import os
import resource
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from guardian_bench import Bench, apply, kill, rules_of

from fwtop.client.discovery import GuardianClient
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.paths import ROOT
from fwtop.model.protocol import Connect, Keep, ListChange, ListShow, Rules, Survey, Symbols, Undo, Watch, Why
from fwtop.model.rule import Kind, Match, Rule, Setting
from tests.kernel.fuse_server import FuseFile, fuse_file

pytestmark = pytest.mark.kernel
UDP = "net.netfilter.nf_conntrack_udp_timeout"
SENT = 40  # more than there are threads for what sticks
SENDER = """
import contextlib, os, socket, sys
root, address, path, count = sys.argv[1:]
sys.path.insert(0, root)
from fwtop.model.messages import encode_request
from fwtop.model.protocol import Apply, Hello, Status
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


def address_of(bench: Bench) -> str:
    return str(bench.directory / f"{os.stat(f'/run/netns/{bench.netns}').st_ino}.sock")


@contextmanager
def descriptors_sent(bench: Bench, file: FuseFile) -> Iterator[None]:
    """Send descriptors of a file that can't be closed until its server ends; nobody here has one."""
    argv = [sys.executable, "-c", SENDER, str(ROOT), address_of(bench), str(file.path), str(SENT)]
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
            assert bench.path(4).passes(wait_s=30)
            kept = apply(guardian, bench.block_rule(4))
            kill(int(guardian.about["pid"]))
            with bench.connect() as successor:
                assert list(rules_of(successor)) == [kept]
                successor.demand(Undo(all=True))
            assert bench.path(4).passes(wait_s=30)


@contextmanager
def starved(pid: int) -> Iterator[None]:
    """Leave a process no descriptor that it has not open already."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    taken = {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()}
    first = next(number for number in itertools.count() if number not in taken)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (first, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def answers(guardian: GuardianClient, rule_id: str) -> bool:
    """Return whether there is a descriptor left for a status, which other work may have for a moment."""
    try:
        return list(rules_of(guardian)) == [rule_id]
    except FwtopError as error:
        if "Too many open files" not in str(error):
            raise
        return False


def busy_share(pid: int) -> float:
    """Return which share of a second a process spends on a processor."""
    before = cpu_seconds(pid)
    select.select([], [], [], 1.0)
    return cpu_seconds(pid) - before


def cpu_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def test_rules_are_kept_undone_and_end_without_any_descriptor_left(bench: Bench, poll_until) -> None:
    with bench.connect() as guardian, ExitStack() as held:
        undone = apply(guardian, bench.block_rule(4))
        kept = apply(guardian, bench.block_rule(6), 300)
        over = apply(guardian, Rule("", Kind.SYSCTL, Match(), "set", 4, settings=(Setting(UDP, 10),)))
        pid = int(guardian.about["pid"])
        with starved(pid):
            with bench.connect() as other:  # it needs one itself
                other.demand(Undo((undone,)))
            assert bench.path(4).passes(wait_s=30)
            guardian.demand(Keep(kept, 600))
            poll_until(lambda: over not in rules_of(guardian))
            assert bench.pair.victim.run("sysctl", "-n", UDP).stdout == "30\n"
            for _ in range(20):  # more than there is anything left for
                client = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                client.connect(address_of(bench))
            poll_until(lambda: busy_share(pid) < 0.2)  # it does not spin
            for request in (Survey(), Symbols(), Rules(), Connect(), Why(kept), Watch(("v0",)), ListShow()):
                guardian.request(request)  # whatever comes of it
            poll_until(lambda: answers(guardian, kept))
            guardian.demand(Undo((kept,)))
        held.close()
        with bench.connect() as other:
            assert rules_of(other) == {}
            assert Path(f"/proc/{pid}").exists()
