"""Real clients of a real server are known, and attackers that complete handshakes are none."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from slow_bench import PORT, SlowLab, crowd, slow_lab

from fwtop.analysis.proposals.preview import basis, preview
from fwtop.lab import network as net
from fwtop.model.rule import Kind, Match, Rule
from fwtop.model.traffic.packets import Mask, Window
from tests.kernel.wire import inside

pytestmark = pytest.mark.kernel
_SECONDS = 120.0  # until it is named, on a busy machine
_CLIENTS, _BOTS = 3, 50


def fetch(run: SlowLab, client: str) -> None:
    with inside(run.lab.attacker):
        end = socket.socket()
    with end:
        end.settimeout(10.0)
        end.bind((client, 0))
        end.connect((net.VICTIM_4, PORT))
        end.sendall(b"GET / HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n")
        assert end.recv(100).startswith(b"HTTP/1.1")


def test_a_rule_tells_which_known_clients_lose_it(tmp_path: Path, poll_until: Callable[..., Any]) -> None:
    with slow_lab(crowd("idle", 250, _BOTS), tmp_path, "nginx") as run:
        baseline = run.session._advisor.baseline
        run.watch(1.0)
        for client in run.lab.legitimate.clients[:_CLIENTS]:
            fetch(run, client)

        def at_server() -> Mask:
            return np.asarray((baseline.clients.door & 0xFFFF) == PORT)

        def learned() -> Mask:  # as clients in calm
            return at_server() & (baseline.clients.calm >= baseline.clients.first)

        assert poll_until(lambda: run.tick() and learned().sum() == _CLIENTS)
        known = baseline.clients
        assert not known.long_known.any()
        baseline.clients = replace(known, first=known.first - 3_600.0)  # as after an hour
        run.lab.start_flood(0)
        assert run.watch(_SECONDS, until="idle_connections") is not None, run.kinds()

        def attacked() -> Window | None:  # a window that shows it by itself
            run.tick()
            shown = run.session.latest
            return shown.window if shown is not None and basis(shown.window, baseline).held else None

        window, clients = poll_until(attacked), baseline.clients
        real = int((clients.long_known & at_server()).sum())
        assert real == _CLIENTS

        offered = run.proposal("ipset").clients
        assert offered is not None
        assert (offered.known, offered.hit, offered.port) == (real, 0, PORT)
        for match, lost in (
            (Match(protocol=6, dport=PORT), real), (Match(protocol=1), 0),
            (Match(protocol=6, dport=PORT + 1), 0),
        ):  # fmt: skip
            found = preview(Rule("", Kind.XDP, match, "", 600), window, baseline).clients
            assert found is not None
            assert (found.known if match.dport == PORT else real, found.hit_half) == (real, lost)
