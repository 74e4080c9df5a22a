"""Service and dark addresses: what a real service answers is remembered, whatever is dropped later."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest

from fwtop.bench.measured_harm import forget_session
from fwtop.bench.programs import run_fwtop
from fwtop.console.history_sampler import _PARTS_SECONDS, _SETTLE_SECONDS
from fwtop.kernel.programs import module_argv
from fwtop.lab import network as net
from fwtop.lab.run import Lab

pytestmark = pytest.mark.kernel
DARK = "198.18.0.99"
# Refused, which is no answer, and then unheard
_PROBES = """
import socket, sys
for port in range(60000, 60100):
    probe = socket.socket()
    probe.settimeout(0.02)
    probe.connect_ex((sys.argv[1], port))
    probe.close()
"""


def in_netns(netns: str, *argv: str) -> None:
    subprocess.run(["ip", "netns", "exec", netns, *argv], check=True, capture_output=True, timeout=60)


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab("few_sources") as running:
        yield running
        run_fwtop("undo", "--all", "--netns", running.victim)
        forget_session(running)


@contextmanager
def observations(lab: Lab) -> Iterator[Iterator[dict[str, Any]]]:
    """Record until the block ends."""
    process = subprocess.Popen(
        module_argv("fwtop", "record", "--netns", lab.victim, "--no-alarms", "--jsonl", "-"),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield map(json.loads, process.stdout)
    finally:
        process.terminate()
        print(process.communicate(timeout=120)[1])


@pytest.mark.matrix  # a minute; test_stats_destinations and test_history judge the same without packets
@pytest.mark.parametrize("tracked", [True, False])
def test_a_service_that_is_wholly_cut_off_is_no_dark_address(lab: Lab, *, tracked: bool) -> None:
    in_netns(lab.victim, "ip", "address", "add", f"{DARK}/32", "dev", net.VICTIM_INTERFACE)
    if tracked:
        in_netns(lab.victim, "iptables", "-w", "-A", "INPUT", "-m", "conntrack", "--ctstate", "NEW")

    def targets(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
        return {row["key"]: row for row in document["destinations"]}

    with observations(lab) as told:
        next(told)  # from here on it sees what is sent
        in_netns(lab.attacker, sys.executable, "-c", _PROBES, DARK)
        next(one for one in told if {net.VICTIM_4, DARK} <= targets(one).keys())
        began = datetime.fromisoformat(next(told)["started"])
        settled = began + timedelta(seconds=_SETTLE_SECONDS + 6)
        next(one for one in told if datetime.fromisoformat(one["started"]) > settled)
        in_netns(lab.victim, "iptables", "-w", "-t", "raw", "-I", "PREROUTING", "-j", "DROP")
        lab.start_flood(2_000)
        for _ in range(4):  # for longer than from one look at what goes where to the next
            in_netns(lab.attacker, sys.executable, "-c", _PROBES, DARK)
        cut = next(one for one in told if targets(one).get(net.VICTIM_4, {}).get("dropped_share", 0) > 0.99)
        stored = datetime.fromisoformat(cut["started"]) + timedelta(seconds=2 * _PARTS_SECONDS)
        next(one for one in told if datetime.fromisoformat(one["started"]) > stored)
    document = json.loads(run_fwtop("trends", "--json", "--netns", lab.victim))
    service = {row["key"]: row for row in document["service_addresses"]}
    dark = {row["key"]: row for row in document["dark_addresses"]}
    assert (service[net.VICTIM_4]["answers"], dark[DARK]["answers"]) == (True, False)
    assert DARK not in service
    assert net.VICTIM_4 not in dark
    rates = {row["key"]: row["last_day_pps"] for row in document["traffic"]}
    assert min(rates["dark"], rates["service"]) > 0
    assert rates["dark"] + rates["service"] <= 1.001 * rates["arrived"]
    ports = {row["key"]: row["answers"] for row in document["ports"]}
    assert ports["tcp/80"] is True
    assert {row["key"] for row in document["service"]["ports"]} >= {"tcp/80"}
    assert {row["key"] for row in document["dark"]["ports"]} <= {
        f"tcp/{port}" for port in range(60000, 60100)
    }
