"""The lab in real namespaces: exact counts, steady rates, working clients, replayed captures."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from lab_bench import inline
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

from fwtop.lab.run import Lab

pytestmark = pytest.mark.kernel


def in_netns(name: str, *argv: str) -> str:
    done = subprocess.run(
        ["ip", "netns", "exec", name, *argv], capture_output=True, text=True, timeout=30, check=False
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


def test_exactly_what_was_sent_arrives() -> None:
    with Lab("udp_flood") as lab:
        hits = count_at_victim(lab, "udp dport 27015")
        lab.mark()
        lab.start_flood(40_000)
        time.sleep(0.6)
        lab.stop()
        lab.pause_clients()
        truth = lab.truth()
        sent = truth["vectors"][0]["packets"] - truth["link_full"]
        assert hits() == sent > 1000
        assert truth["packets"] == sent + truth["legitimate"]["packets"]
        assert truth["arrived_packets"] == pytest.approx(truth["packets"], rel=0.005)
        assert sum(row["packets"] for row in truth["source_prefixes"]) <= truth["vectors"][0]["packets"]
        assert truth["payloads"][0]["packets"] == truth["vectors"][0]["packets"]
        assert truth["kinds"] == ["udp_flood"]


def test_sources_are_counted_one_by_one() -> None:
    with Lab("few_sources") as lab:
        lab.mark()
        lab.start_flood(40_000)
        time.sleep(0.5)
        lab.stop()
        truth = lab.truth()
        clients = {row["key"] for row in truth["legitimate"]["sources"]}
        attackers = [row for row in truth["sources"] if row["key"] not in clients]
        assert len(attackers) == 20
        assert sum(row["packets"] for row in attackers) == truth["vectors"][0]["packets"]
        hits = count_at_victim(lab, f"ip saddr {attackers[0]['key']}")
        before = attackers[0]["packets"]
        lab.start_flood(40_000)
        time.sleep(0.3)
        lab.stop()
        after = {row["key"]: row["packets"] for row in lab.truth()["sources"]}
        assert hits() + lab.link_full() >= after[attackers[0]["key"]] - before >= hits() > 0


def test_answers_of_an_impersonated_gateway_are_counted() -> None:
    with Lab("resolver_impersonation") as lab:
        lab.pause_clients()
        lab.mark()
        lab.start_flood(5000)
        time.sleep(0.5)
        lab.stop()
        truth = lab.truth()
        assert truth["gateway"]["packets"] > 100  # resets of what the victim answered to forged SYNs
        assert truth["packets"] == pytest.approx(truth["arrived_packets"], rel=0.01)
        assert len({row["key"] for row in truth["sources"]}) == len(truth["sources"])


def test_rate_is_kept() -> None:
    with inline('[[vector]]\nkind = "udp_flood"\nprotocol = "udp"\nsource = "random"\ndport = 9\n') as lab:
        lab.start_flood(30_000)
        time.sleep(1.5)
        lab.stop()
        assert 0 < lab.truth()["pps"] <= 30_000 * 1.05  # a busy machine sends less


def test_legitimate_clients_work_and_are_measured() -> None:
    with Lab("calm") as lab:
        lab.pause_clients()
        lab.mark()
        lab.phase("before")
        time.sleep(1.0)
        lab.pause_clients()
        works = lab.results()["phases"]["before"]
        assert set(works) == {"http", "dns", "operator"}
        for work, row in works.items():
            assert row["tried"] > 5, work
            assert row["success"] == 1.0, work
            assert 0 < row["median_ms"] < 500, work
        truth = lab.truth()
        assert truth["attack"] == {"packets": 0, "bytes": 0}
        assert truth["packets"] == pytest.approx(truth["arrived_packets"], abs=5)
        assert lab.ssh_connection.endswith("198.18.0.2 22")


def test_a_capture_is_replayed_packet_by_packet(tmp_path: Path) -> None:
    file = tmp_path / "few.pcap"
    wrpcap(
        str(file), [Ether() / IP(src=f"20.0.0.{n}", dst="203.0.113.9") / UDP(dport=99) for n in range(1, 11)]
    )
    with Lab("calm", capture=file) as lab:
        hits = count_at_victim(lab, "udp dport 99")
        lab.mark()
        lab.start_flood(5000)
        time.sleep(0.3)
        lab.stop()
        truth = lab.truth()
        sent = {row["key"]: row["packets"] for row in truth["sources"] if row["key"].startswith("20.0.0.")}
        assert len(sent) == 10
        assert sum(sent.values()) == hits() + truth["link_full"]
        assert max(sent.values()) - min(sent.values()) <= 1
        assert truth["ports"][0]["port"] in (53, 99)
