"""The ledger drops what the kernel's own counters say, each where it happened."""

from __future__ import annotations

import json

import pytest

from fwtop.lab.run import Lab
from fwtop.lab.scenario import parse
from fwtop.lab.watch import observe
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
    rules = {row["kind"]: row for row in counted}
    ended = {
        (row["layer"], row["rule"] or row["reason"].partition(" ")[0]): row for row in document["ledger"]
    }
    for end, packets in {
        ("xdp", rules["xdp"]["id"]): rules["xdp"]["packets"],
        ("netfilter", rules["nftables"]["id"]): rules["nftables"]["packets"],
        ("netfilter", "NETFILTER_DROP"): policy,
        ("socket", "NO_SOCKET"): closed,
    }.items():
        assert packets > PPS * SECONDS / 10, (end, document["ledger"])
        assert ended[end]["packets"] == pytest.approx(packets, rel=0.02), (end, document["ledger"])
    assert ended["netfilter", "NETFILTER_DROP"]["behind_routing"] == pytest.approx(policy, rel=0.02)
    chains = {chain["name"]: chain["drops_by_policy"] for chain in document["firewall_chains"]}
    assert chains["inet filter input"], chains
    lost = sum(abs(row["packets"]) for (layer, _), row in ended.items() if layer == "unexplained")
    assert lost < 0.001 * document["totals"]["packets"], document["ledger"]
    served = {(row["protocol"], row["port"]): row["pps"] for row in document["listeners"]}
    assert min(served["tcp", 80], served["tcp", 22], served["udp", 53]) > 0, document["listeners"]
    assert not [port for _, port in served if port in (POLICY, CLOSED, INGRESS, DRIVER)]
