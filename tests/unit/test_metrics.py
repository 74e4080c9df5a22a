"""Metrics: what they say, and that neither attackers nor clients can make them grow."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from stored_samples import POISON, START, attack, rule, snapshot, status

from fwtop.cli.recorder import listen
from fwtop.console.publish import outputs
from fwtop.console.publish.metrics import MAX_KINDS, MAX_RULES, exposition
from fwtop.console.publish.outputs import ScrapeServer, answer
from fwtop.model.errors import FwtopError
from fwtop.model.traffic.counters import ConntrackSample, Counters, DropCount, RuleCount, TcpService
from fwtop.model.traffic.packets import PacketBatch
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.stats.ledger import RunningTotals

Poll = Callable[..., Any]
Series = dict[tuple[str, ...], float]
DOCUMENT = (Path(__file__).parents[2] / "docs/MONITORING.md").read_text()
FULL = replace(
    snapshot(START, attacks=(attack(),), mitigations=(status(rule(), START + 60),)),
    tcp=TcpService(5, 2.0, 9.0),
    conntrack=ConntrackSample(10, 40),
    softirq_share=0.25,
    guardian="ready",
)


def series(tick: Snapshot, totals: RunningTotals | None = None) -> Series:
    text = exposition(tick, totals or RunningTotals()).decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_an_observation_as_metrics() -> None:
    found = series(FULL)
    assert found["fwtop_attack_packets_per_second", "dns_amplification"] == 185_000
    assert found["fwtop_attack_confidence", "dns_amplification"] == 0.97
    assert found["fwtop_rule_packets_total", "1", "ipset"] == FULL.mitigations[0].packets
    assert found["fwtop_conntrack_entries",] / found["fwtop_conntrack_limit",] == 0.25
    assert found["fwtop_softirq_ratio",] == 0.25
    assert found["fwtop_handshakes_per_second",] == 2
    assert found["fwtop_guardian_up",] == 1
    assert series(replace(FULL, guardian="lost: gone"))["fwtop_guardian_up",] == 0


def test_the_document_names_every_metric_and_no_other() -> None:
    part = DOCUMENT.split("## Metrics", 1)[1].split("\n## ", 1)[0]
    named = {word for word in part.split("`") if word.startswith("fwtop_")}
    assert named == {name for name, *_ in series(FULL)}


def test_counters_add_up_what_became_of_packets() -> None:
    totals = RunningTotals()
    drops = (
        DropCount("netfilter", "NETFILTER_DROP", 50),
        DropCount("socket", "NO_SOCKET", 5, before_delivery=False),
        DropCount("nic", "rx_missed_errors", 7, 700),
    )
    counters = Counters(1.0, 100, 10_000, 50, drops=drops, rules=(RuleCount("3", 30, 3000),), records_lost=2)
    for _ in range(2):
        totals.add(PacketBatch.empty(), counters)
    assert (totals.packets, totals.bytes, totals.lost) == (214, 21_400, 4)
    assert totals.ends == {"mine": 60, "other": 40, "kernel": 24, "reaches": 90}
    assert sum(totals.ends.values()) == totals.packets
    found = series(FULL, totals)
    assert found["fwtop_packets_total", "my_rules"] == 60
    assert found["fwtop_arrived_packets_total",] == 214


def test_many_attacks_and_rules_make_few_series_and_poison_makes_none() -> None:
    attacks = tuple(attack(f"kind_{number}", 1000.0 - number) for number in range(200))
    attacks += (attack(POISON), attack("x" * 500), attack("é"))
    rules = tuple(status(rule(number + 1), START + 60, pps=number) for number in range(500))
    rules += (status(replace(rule(), id=POISON), START + 60),)
    found = series(replace(FULL, judgement=replace(FULL.judgement, attacks=attacks), mitigations=rules))
    kinds = [labels for name, *labels in found if name == "fwtop_attack_packets_per_second"]
    ids = [labels[0] for name, *labels in found if name == "fwtop_rule_packets_total"]
    assert MAX_KINDS - 1 <= len(kinds) <= MAX_KINDS
    assert found["fwtop_attacks",] == 203
    assert found["fwtop_rules",] == 500
    assert len(ids) == MAX_RULES
    assert "500" in ids
    whole = sum(value for (name, *_), value in found.items() if name == "fwtop_attack_packets_per_second")
    assert whole == pytest.approx(sum(item.pps for item in attacks))
    assert exposition(
        replace(FULL, judgement=replace(FULL.judgement, attacks=attacks)), RunningTotals()
    ).isascii()


@pytest.fixture
def place(tmp_path: Path) -> tuple[str, ScrapeServer]:
    path = str(tmp_path / "s")
    listener = socket.socket(fileno=listen(f"unix:{path}", public=False))
    return path, ScrapeServer(listener)


def ask(path: str, request: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(20)
        sock.connect(path)
        sock.sendall(request)
        found = b""
        while part := sock.recv(1 << 16):
            found += part
        return found


def test_a_scrape_gets_what_was_published_last(place: tuple[str, ScrapeServer]) -> None:
    path, server = place
    request = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"
    assert ask(path, request).startswith(b"HTTP/1.1 503 ")
    text = b"x 1\n" * 200_000  # more than a socket takes at once
    server.publish(text)
    head, _, body = ask(path, request).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert f"Content-Length: {len(text)}".encode() in head
    assert body == text
    assert ask(path, b"GET /other HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 404 ")
    assert ask(path, b"POST /metrics HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 405 ")
    assert ask(path, b"\x00\r\n\r\n").startswith(b"HTTP/1.1 405 ")
    assert answer(b"HEAD /metrics HTTP/1.1\r\n\r\n", b"x 1\n").endswith(b"close\r\n\r\n")


def test_clients_that_send_nothing_or_too_much_are_dropped(
    place: tuple[str, ScrapeServer], monkeypatch: pytest.MonkeyPatch, poll_until: Poll
) -> None:
    path, server = place
    server.publish(b"x 1\n")
    monkeypatch.setattr(outputs, "_SCRAPE_SECONDS", 0.1)
    monkeypatch.setattr(outputs, "_CHECK_SECONDS", 0.05)
    silent = [socket.socket(socket.AF_UNIX) for _ in range(outputs._CLIENTS)]
    for sock in silent:
        sock.settimeout(20)
        sock.connect(path)
    assert [sock.recv(1) for sock in silent] == [b""] * len(silent)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(20)
        sock.connect(path)
        with pytest.raises(OSError, match=r"pipe|reset"):
            sock.sendall(b"x" * (8 << 20))
    for sock in silent:
        sock.close()
    request = b"GET /metrics HTTP/1.0\r\n\r\n"
    poll_until(lambda: ask(path, request).endswith(b"x 1\n"))


def test_a_socket_of_a_dead_recording_is_replaced_and_of_a_living_one_not(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 's'}"
    first = socket.socket(fileno=listen(address, public=False))
    with pytest.raises(FwtopError, match="in use"):
        listen(address, public=False)
    first.close()
    socket.socket(fileno=listen(address, public=False)).close()
    (tmp_path / "f").write_text("kept")
    with pytest.raises(FwtopError):
        listen(f"unix:{tmp_path / 'f'}", public=False)
    assert (tmp_path / "f").read_text() == "kept"


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("0.0.0.0:9464", "--metrics-public"),
        ("[::]:9464", "--metrics-public"),
        ("192.0.2.1:9464", "--metrics-public"),
        ("[::ffff:192.0.2.1]:9464", "--metrics-public"),
        ("localhost:9464", "no address and port"),
        ("127.0.0.1", "no address and port"),
        ("127.0.0.1:0", "the port is missing"),
        ("127.0.0.1:99999", "the port is missing"),
        ("unix:relative", "begin with a slash"),
        ("unix:/" + "x" * 200, "too long"),
    ],
)
def test_addresses_that_are_refused(address: str, why: str) -> None:
    with pytest.raises(FwtopError, match=why) as raised:
        listen(address, public=False)
    assert raised.value.code == 2


def test_the_dashboard_asks_only_for_metrics_and_labels_that_exist() -> None:
    dashboard = json.loads((Path(__file__).parents[2] / "docs/grafana.json").read_text())
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(exposition(FULL, RunningTotals()).decode()):
        for sample in family.samples:
            labels.setdefault(sample.name, {"instance"}).update(sample.labels)
    asked = set()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            found = re.findall(r"(fwtop_\w+)(?:\{(.*?)\})?", target["expr"])
            assert found, panel["title"]
            used = {label for _, matchers in found for label in re.findall(r"(\w+)\s*=~?", matchers)}
            used |= {
                name for group in re.findall(r"\bby \((.*?)\)", target["expr"]) for name in group.split(", ")
            }
            used |= set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            for name, _ in found:
                assert used <= labels[name], (panel["title"], name)
                asked.add(name)
    assert asked >= set(labels) - {"fwtop_build_info"}, "a metric that no panel shows"
