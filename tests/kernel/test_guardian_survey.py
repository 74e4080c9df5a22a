"""The guardian tells who listens in its namespace, and which other firewalls may drop there."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from guardian_bench import Bench, apply

from fwtop.model.protocol import Survey
from tests.kernel.wire import inside

pytestmark = pytest.mark.kernel
Poll = Callable[..., bool]
_SERVER = """
import ctypes, socket, sys
sys.stdin.readline()
ctypes.CDLL(None).prctl(15, b"web\\x1b[2Jserver", 0, 0, 0)
tcp = socket.create_server(("", 8080))
udp = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
udp.bind(("", 8053))
print("ready", flush=True)
sys.stdin.readline()
"""
_CHAINS = """
table inet mine { chain in { type filter hook input priority 0; policy drop; accept; }; }
table ip empty { chain pre { type filter hook prerouting priority 0; policy accept; }; }
table ip full { chain pre { type filter hook prerouting priority 0; udp dport 9 drop; }; }
"""


def test_listeners_are_named_and_those_elsewhere_unknown(bench: Bench, poll_until: Poll) -> None:
    command = ["ip", "netns", "exec", bench.netns, sys.executable, "-c", _SERVER]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with inside(bench.pair.attacker.netns):
        elsewhere = socket.create_server(("", 9090))
    with elsewhere, bench.connect(role="console") as console:
        assert server.stdin is not None
        assert server.stdout is not None

        def listeners() -> list[Any]:
            return list(console.demand(Survey()).data.get("listeners", ()))

        server.stdin.write("\n")
        server.stdin.flush()
        assert server.stdout.readline()
        name = "web·[2Jserver"
        wanted = [["udp", 8053, name], ["tcp", 8080, name]]
        assert poll_until(lambda: listeners() == wanted, every_s=0.1), listeners()
        server.communicate("\n", timeout=120)
        assert poll_until(lambda: listeners() == [], every_s=0.1), listeners()


def test_chains_of_other_firewalls_are_told_and_fwtops_own_are_not(bench: Bench, poll_until: Poll) -> None:
    with bench.connect(role="console") as console:
        apply(console, bench.block_rule(4, 6), 300)

        def chains() -> set[tuple[Any, ...]]:
            return {tuple(chain) for chain in console.demand(Survey()).data.get("chains", ())}

        bench.pair.victim.run("nft", _CHAINS)
        native = {("filter", "inet mine in", True), ("raw", "ip full pre", False)}
        assert poll_until(lambda: chains() == native, every_s=0.1), chains()
        bench.pair.victim.run("iptables-nft", "-A", "INPUT", "-p", "udp", "--dport", "7", "-j", "DROP")
        bench.pair.victim.run("iptables-legacy", "-t", "mangle", "-A", "PREROUTING", "-j", "DROP")
        more = {("filter", "ip filter INPUT", False), ("raw", "iptables mangle", False)}
        more |= {("filter", "iptables mangle", False)}
        assert poll_until(lambda: chains() == native | more, every_s=0.1), chains()
