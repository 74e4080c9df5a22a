"""A console that was taken over can't keep the operator away, nor outlive its own end."""

from __future__ import annotations

import os
import re
import select
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from guardian_bench import Bench, apply, rules_of

from fwtop.client.connection import Connection
from fwtop.client.discovery import GuardianClient
from fwtop.model.messages import Answer, encode_request
from fwtop.model.protocol import Connect, Request, Rescan, Status, Undo, Watch

pytestmark = pytest.mark.kernel
PAIR = "shared_pair"
OF_CLIENT = 4


def exchange(client: GuardianClient, request: Request, seconds: float = 20) -> tuple[Answer, list[int]]:
    return client._connection.exchange(request, seconds)


def more(client: GuardianClient, number: int) -> list[socket.socket]:
    """Ask for connections beside the first; return those that were given."""
    given = []
    for _ in range(number):
        answer, descriptors = exchange(client, Connect())
        assert answer.ok == (len(descriptors) == 1)
        given += [socket.socket(fileno=item) for item in descriptors]
    return given


def test_a_console_that_asks_for_connections_keeps_nobody_out_and_its_rule_ends_with_it(
    bench: Bench, poll_until: Callable[..., Any]
) -> None:
    with bench.connect(role="console") as console:
        answer, descriptors = console.watch(Watch(("v0",)))
        assert answer.ok, answer.error
        apply(console, bench.block_rule(4, ttl=600), 300)
        others = more(console, 200)
        assert len(others) == OF_CLIENT - 1
        with bench.connect() as cli:
            assert list(rules_of(cli)) == ["1"]
        for other in others:
            assert Connection(other).exchange(Status(), 20)[0].ok, "each of them is served"
            other.close()
        [again] = poll_until(lambda: more(console, 1))
        again.close()
    for item in descriptors:
        os.close(item)
    with bench.connect() as cli:
        poll_until(lambda: not rules_of(cli))
        assert {rule["state"] for rule in rules_of(cli, finished=True).values()} == {"reverted"}


def test_many_screens_and_the_command_line_are_served_at_once(bench: Bench) -> None:
    with ExitStack() as stack:
        screens = [stack.enter_context(bench.connect(role="console")) for _ in range(22)]
        others = [stack.enter_context(item) for screen in screens for item in more(screen, 2)]
        assert len(others) == 44
        cli = stack.enter_context(bench.connect())
        assert cli.request(Undo(all=True)).ok
        assert all(Connection(item).exchange(Status(), 20)[0].ok for item in others)
        assert all(screen.request(Status()).ok for screen in screens)


def test_clients_that_read_nothing_share_the_status_they_wait_for(
    bench: Bench, poll_until: Callable[..., Any]
) -> None:
    """Each of 40 copies of this allow-list would take 2.5 MiB of locked memory."""
    bench.allow = "".join(f"198.{18 + (at >> 16)}.{at >> 8 & 255}.{at & 255}\n" for at in range(25_000))
    with ExitStack() as stack:
        screens = [stack.enter_context(bench.connect(role="console")) for _ in range(10)]
        assert screens[0].request(Status()).ok
        before = locked_mib(screens[0])
        silent = [item for screen in screens for item in more(screen, 3)]
        assert len(silent) == 30
        for item in silent:
            stack.enter_context(item).send(encode_request(Status(), 1, 50))
        peak = max(locked_mib(screens[0]) for _ in range(5) if screens[0].request(Status()).ok)
        assert peak < before + 15
        poll_until(lambda: all(is_dropped(item) for item in silent), 120, every_s=1)


def locked_mib(client: GuardianClient) -> int:
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{client.about['pid']}/status").read_text())[1]) >> 10


def is_dropped(connected: socket.socket) -> bool:
    """Look whether the guardian hung up, without reading what it sent before."""
    poll = select.poll()
    poll.register(connected, select.POLLHUP)
    return bool(poll.poll(0))


def test_a_console_that_keeps_asking_for_a_rescan_starts_one_child_at_a_time(bench: Bench) -> None:
    with bench.connect(role="console") as console:
        answer, descriptors = console.watch(Watch(("v0",)))
        assert answer.ok, answer.error
        pid = int(console.about["pid"])
        started: set[int] = set()
        began = time.monotonic()
        while len(started) < 3:
            assert console.request(Rescan()).ok
            now = set(scanning(pid))
            assert len(now) <= 1
            started |= now
            assert time.monotonic() - began < 60
        assert time.monotonic() - began > 1.0, "one each second"
        for item in descriptors:
            os.close(item)


def scanning(guardian: int) -> list[int]:
    """Return the guardian's children that look for interfaces."""
    children = Path(f"/proc/{guardian}/task/{guardian}/children").read_text().split()
    found = []
    for child in children:
        with suppress(OSError):
            if b"--scope" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
    return found
