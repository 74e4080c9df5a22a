"""The path's stages drop what the kernel's own counters say, each at the stage where it happened."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fwtop.lab.run import Lab
from fwtop.lab.scenario import parse
from fwtop.lab.watch import observe
from fwtop.model.rule import Kind, Match, Rule, RuleStatus, State
from fwtop.model.service import Service
from fwtop.model.traffic.snapshot import (
    FilterChain,
    LedgerRow,
    Origin,
    Sampling,
    Snapshot,
    Surroundings,
    Tables,
    Totals,
)
from fwtop.ui.lists.path import stages_of
from tests.kernel.whole import FWTOP, fwtop, fwtop_json, in_netns

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("installed")]
POLICY, CLOSED, INGRESS, DRIVER = 27015, 27016, 27017, 27018
_VECTOR = """
[[vector]]
name = "to port {port}"
kind = "udp_flood"
protocol = "udp"
source = {{ count = 200 }}
dport = {port}
payload = {{ text = "XXXXXXXXXXXXXXXX" }}
"""
SCENARIO = f'title = "one port for each way to end"\nseed = 3\nopen_ports = ["udp/{CLOSED}"]\n' + "".join(
    _VECTOR.format(port=port) for port in (POLICY, CLOSED, INGRESS, DRIVER)
)
SECONDS, PPS = 6.0, 20_000


def snapshot_of(document: dict[str, Any]) -> Snapshot:
    """Read back from the JSON what the path is made of."""
    totals, seconds = document["totals"], document["seconds"]
    book = tuple(
        LedgerRow(
            row["layer"],
            row["reason"],
            row["packets"],
            row["packets"] / seconds,
            row["rule"],
            filtered=row["behind_routing"],
        )
        for row in document["ledger"]
    )
    rules = tuple(
        RuleStatus(Rule(row["id"], Kind(row["kind"]), Match(), "", 600), State.CONFIRMED, row["packets"])
        for row in document["mitigations"]
    )
    around = Surroundings(
        tuple(Service(**row) for row in document["listeners"]),
        chains=tuple(FilterChain(**row) for row in document["firewall_chains"]),
    )
    counted = Totals(
        totals["packets"],
        totals["bytes"],
        totals["packets"] / seconds,
        0.0,
        totals["accepted"],
        totals["dropped"],
    )
    tables = Tables(counted, Sampling(1.0, 0, 0), book)
    origin = Origin("live", ("eth0",))
    return Snapshot("v", origin, 0.0, seconds, tables, mitigations=rules, surroundings=around)


def to_the_policy(lab: Lab) -> int:
    """Packets that the last rule before the chain's policy has counted."""
    shown = json.loads(in_netns(lab.victim, "nft", "-j", "list", "chain", "inet", "filter", "input"))
    rules = [item["rule"] for item in shown["nftables"] if "rule" in item]
    return int(rules[-1]["expr"][0]["counter"]["packets"])


def no_ports(lab: Lab) -> int:
    """UDP packets of either family that found no socket."""
    lines = in_netns(lab.victim, "cat", "/proc/net/snmp").splitlines()
    names, values = (line.split() for line in lines if line.startswith("Udp:"))
    six = dict(line.split() for line in in_netns(lab.victim, "cat", "/proc/net/snmp6").splitlines())
    return int(dict(zip(names, values, strict=True))["NoPorts"]) + int(six["Udp6NoPorts"])


def test_each_stage_drops_what_the_kernel_counted() -> None:
    with Lab(parse(SCENARIO, "path"), source=SCENARIO) as lab:
        in_netns(lab.victim, "nft", "add", "rule", "inet", "filter", "input", "counter")
        for port, via in ((INGRESS, "nftables"), (DRIVER, "xdp")):
            where = ("--proto", "udp", "--dport", str(port), "--via", via)
            done = fwtop("drop", *where, "--yes", "--netns", lab.victim)
            assert done.returncode == 0, done.stderr
        before = to_the_policy(lab), no_ports(lab)
        argv = [FWTOP, "snapshot", "--netns", lab.victim, "--seconds", f"{SECONDS:g}", "--json", "--no-store"]
        document = observe(lab, SECONDS, PPS, watcher=argv)["observation"]
        policy, closed = to_the_policy(lab) - before[0], no_ports(lab) - before[1]
        # What a rule counted in the end: the counters of an active one are up to two seconds old
        assert fwtop("undo", "--all", "--netns", lab.victim).returncode == 0
        counted = fwtop_json("status", "--all", "--json", "--netns", lab.victim)["mitigations"]
    rules = {row["kind"]: (f"rule {row['id']}", row["packets"]) for row in counted}
    seen = snapshot_of(document)
    found = {
        stage.name: {drop.by: drop.pps * seen.seconds for drop in stage.drops} for stage in stages_of(seen)
    }
    at_least = PPS * SECONDS / 10
    for stage, (by, packets) in {
        "XDP": rules["xdp"],
        "tc": rules["nftables"],
        "filter": ("inet filter input (policy drop)", policy),
        "socket": ("NO_SOCKET", closed),
    }.items():
        assert packets > at_least, (stage, document["ledger"])
        assert found[stage].get(by) == pytest.approx(packets, rel=0.02), (stage, found, document["ledger"])
    assert sum(found["raw"].values()) < 0.02 * policy
    assert "unaccounted" not in found, document["ledger"]
    served = {(row["protocol"], row["port"]): row["pps"] for row in document["listeners"]}
    assert min(served["tcp", 80], served["tcp", 22], served["udp", 53]) > 0, document["listeners"]
    assert not [port for _, port in served if port in (POLICY, CLOSED, INGRESS, DRIVER)]
