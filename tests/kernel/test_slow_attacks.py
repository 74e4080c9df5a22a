"""Attacks that hold connections, on a real nginx and Apache: named, stopped, and ended; and what is none."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from guardian_bench import apply, rules_of
from slow_bench import PORT, TLS_PORT, crowd, slow_lab

from fwtop.lab import network as net
from fwtop.model.protocol import Undo

pytestmark = pytest.mark.kernel
_SECONDS = 120.0  # until it is named, on a busy machine

# Server, what its attackers do, the name of that, the page they ask for, connections, sources, the rule
CASES = [
    ("apache2", "slow_headers", "slow_headers", "/index.html", 400, 1, "connlimit"),
    ("apache2", "slow_body", "slow_body", "/index.html", 600, 50, "ipset"),
    ("nginx", "slow_read", "slow_read", "/big", 200, 1, "connlimit"),
    ("nginx", "idle", "idle_connections", "/", 250, 50, "ipset"),
]


@pytest.mark.one_each("apache2 slow_headers 1")
@pytest.mark.parametrize("case", CASES, ids=[f"{case[0]} {case[1]} {case[5]}" for case in CASES])
def test_a_server_that_is_held_is_served_again(case: tuple[Any, ...], tmp_path: Path) -> None:
    server, protocol, kind, path, connections, sources, kind_of_rule = case
    with slow_lab(crowd(protocol, connections, sources, path=path), tmp_path, server) as run:
        assert run.served(2) == 2
        run.lab.start_flood(0)
        assert run.watch(_SECONDS, until=kind) is not None, run.kinds()
        attack = run.attack()
        assert (attack.kind, attack.target) == (kind, f"tcp/{PORT}")
        assert attack.sources == f"{sources} source{'s' * (sources > 1)}"
        proposal = run.proposal(kind_of_rule)
        assert proposal.attack_share > 0.6  # of the connections so far: more are being opened
        assert proposal.collateral_share < 0.01
        assert proposal.rule is not None
        rule_id = apply(run.guardian, proposal.rule)
        assert "closed" in rules_of(run.guardian)[rule_id]["note"]
        assert run.served(4) == 4, "the places that it held are free"
        run.guardian.demand(Undo((rule_id,)))


@pytest.mark.matrix  # by another tool what is named above
@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_slowhttptest_is_named(tls: bool, tmp_path: Path) -> None:
    with slow_lab(crowd("idle", 1, 1), tmp_path, "nginx", tls=tls) as run:
        url = f"https://{net.VICTIM_4}:{TLS_PORT}" if tls else f"http://{net.VICTIM_4}:{PORT}"
        tool = [
            "slowhttptest",
            "-H",
            "-c",
            "250",
            "-r",
            "150",
            "-i",
            "5",
            "-l",
            "600",
            "-u",
            f"{url}/index.html",
        ]
        argv = ["ip", "netns", "exec", run.lab.attacker, *tool]
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as attacker:
            try:
                assert run.watch(_SECONDS, until="slow_headers") is not None, run.kinds()
                hint = "the port speaks TLS: a slow body looks the same there"
                assert (hint in run.attack().evidence) == tls
            finally:
                attacker.kill()


@pytest.mark.one_each("idle-idle_connections")
@pytest.mark.parametrize(
    ("protocol", "kind"), [("slow_headers", "slow_headers"), ("idle", "idle_connections")]
)
def test_one_connection_of_each_source_is_named_after_a_calm(
    protocol: str, kind: str, tmp_path: Path
) -> None:
    with slow_lab(crowd(protocol, 250, 250), tmp_path, "nginx") as run:
        run.watch(10.0)
        assert run.kinds() == set()
        run.lab.start_flood(0)
        assert run.watch(_SECONDS, until=kind) is not None, run.kinds()


def test_a_proxys_pool_and_connections_in_reserve_are_no_attack(tmp_path: Path) -> None:
    crowds = crowd("pool", 60, 1, path="/index.html", rate=15) + crowd("idle", 60, 50)
    with slow_lab(crowds, tmp_path, "nginx") as run:
        run.lab.start_flood(0)
        run.watch(6.0)
        assert run.kinds() == set()
