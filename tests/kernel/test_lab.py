"""The lab in real namespaces: exact counts, steady rates, working clients, replayed captures."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from lab_bench import flood, inline, mark_at_rest, truth_at_rest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

from fwtop.lab import network as net
from fwtop.lab.run import Lab

pytestmark = pytest.mark.kernel
DEVICE = f"/sys/class/net/{net.ATTACKER_INTERFACE}/statistics"
REPORTS = 20  # multicast listener reports that the attacker's kernel sends, at most
Poll = Callable[..., object]


def in_netns(name: str, *argv: str) -> str:
    done = subprocess.run(
        ["ip", "netns", "exec", name, *argv], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def count_at_victim(lab: Lab, match: str) -> Callable[[], int]:
    rules = "\n".join(
        [
            "table inet counted {",
            "counter hits { }",
            "chain first {",
            "type filter hook prerouting priority -400",
            f"{match} counter name hits",
            "}",
            "}",
            "",
        ]
    )
    subprocess.run(
        ["ip", "netns", "exec", lab.victim, "nft", "-f", "-"], input=rules, text=True, check=True, timeout=20
    )

    def read() -> int:
        listing = json.loads(in_netns(lab.victim, "nft", "-j", "list", "counter", "inet", "counted", "hits"))
        return int(listing["nftables"][1]["counter"]["packets"])

    return read


def assert_all_arrived(truth: dict[str, Any], lab: Lab) -> None:
    """All arrived but clients' packets that a full queue lost, and multicast listener reports besides."""
    lost = int(in_netns(lab.attacker, "cat", f"{DEVICE}/tx_dropped")) - truth["link_full"]
    assert truth["packets"] - lost <= truth["arrived_packets"] <= truth["packets"] + REPORTS


def test_exactly_what_was_sent_arrives(poll_until: Poll) -> None:
    with Lab("udp_flood") as lab:
        hits = count_at_victim(lab, "udp dport 27015")
        mark_at_rest(lab)
        flood(lab, 40_000, 20_000)
        truth = truth_at_rest(lab)
        sent = truth["vectors"][0]["packets"] - truth["link_full"]
        assert sent > 10_000
        poll_until(lambda: hits() == sent)
        assert truth["packets"] == sent + truth["legitimate"]["packets"]
        assert_all_arrived(truth, lab)
        assert sum(row["packets"] for row in truth["source_prefixes"]) <= truth["vectors"][0]["packets"]
        assert truth["payloads"][0]["packets"] == truth["vectors"][0]["packets"]
        assert truth["kinds"] == ["udp_flood"]


def test_sources_are_counted_one_by_one(poll_until: Poll) -> None:
    with Lab("few_sources") as lab:
        mark_at_rest(lab)
        flood(lab, 40_000, 10_000)
        truth = truth_at_rest(lab)
        clients = {row["key"] for row in truth["legitimate"]["sources"]}
        attackers = [row for row in truth["sources"] if row["key"] not in clients]
        assert len(attackers) == 20
        assert sum(row["packets"] for row in attackers) == truth["vectors"][0]["packets"]
        hits = count_at_victim(lab, f"ip saddr {attackers[0]['key']}")
        before, lost = attackers[0]["packets"], truth["link_full"]
        flood(lab, 40_000, 10_000)
        truth = truth_at_rest(lab)
        sent = {row["key"]: row["packets"] for row in truth["sources"]}[attackers[0]["key"]] - before
        poll_until(lambda: hits() + truth["link_full"] - lost >= sent)
        assert sent >= hits() > 0


def test_answers_of_an_impersonated_gateway_are_counted() -> None:
    with Lab("resolver_impersonation") as lab:
        mark_at_rest(lab)
        flood(lab, 5000, 2500)
        truth = truth_at_rest(lab)
        assert truth["gateway"]["packets"] > 100  # resets of what the victim answered to forged SYNs
        assert_all_arrived(truth, lab)
        assert len({row["key"] for row in truth["sources"]}) == len(truth["sources"])


def test_rate_is_kept() -> None:
    with inline('[[vector]]\nkind = "udp_flood"\nprotocol = "udp"\nsource = "random"\ndport = 9\n') as lab:
        flood(lab, 30_000, 30_000)
        assert 0 < lab.truth()["pps"] <= 30_000 * 1.05  # a busy machine sends less


def test_legitimate_clients_work_and_are_measured(poll_until: Poll) -> None:
    with Lab("calm") as lab:
        mark_at_rest(lab)
        names = map(str, count())

        def worked() -> dict[str, Any] | None:
            """What clients did in a second in which a busy machine let none of them wait too long."""
            name = next(names)
            lab.phase(name)
            time.sleep(1.0)
            lab.pause_clients()
            works: dict[str, Any] = lab.results()["phases"][name]
            good = all(row["tried"] > 5 and row["success"] == 1.0 for row in works.values())
            return works if good else None

        works = cast(dict[str, Any], poll_until(worked))
        assert set(works) == {"http", "dns", "operator"}
        for work, row in works.items():
            assert 0 < row["median_ms"] < 1000, work  # more would have failed
        truth = truth_at_rest(lab)
        assert truth["attack"] == {"packets": 0, "bytes": 0}
        assert_all_arrived(truth, lab)
        assert lab.ssh_connection.endswith("198.18.0.2 22")


def test_a_capture_is_replayed_packet_by_packet(tmp_path: Path, poll_until: Poll) -> None:
    file = tmp_path / "few.pcap"
    wrpcap(
        str(file), [Ether() / IP(src=f"20.0.0.{n}", dst="203.0.113.9") / UDP(dport=99) for n in range(1, 11)]
    )
    with Lab("calm", capture=file) as lab:
        hits = count_at_victim(lab, "udp dport 99")
        mark_at_rest(lab)
        flood(lab, 5000, 1500)
        truth = truth_at_rest(lab)
        sent = {row["key"]: row["packets"] for row in truth["sources"] if row["key"].startswith("20.0.0.")}
        assert len(sent) == 10
        poll_until(lambda: sum(sent.values()) == hits() + truth["link_full"])
        assert max(sent.values()) - min(sent.values()) <= 1
        assert truth["ports"][0]["port"] in (53, 99)
