"""Rules that an older fwtop left in the kernel: continued where that is possible, ended cleanly anyway."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from guardian_bench import PORT, Bench, apply, rules_of
from xdp_bench import XdpBench, at_tc, xdp

from fwtop.model.protocol import Repair, Undo
from fwtop.model.rule import Kind, Match, RateLimit, Rule

pytestmark = pytest.mark.kernel
BENCH = XdpBench
RULE_SET = re.compile(r"fwtop-\d+-")
LATER_CHAINS = ("FWTOP-SOURCES", "FWTOP-ROLES", "FWTOP-RULES")
LATER_SETS = ("peers", "gateways", "known")


# Heads of chain FWTOP and of nftables' chain `rules` as older versions wrote them, cut to what differs.
OLD_HEADS = {
    "listed": ("-m set --match-set fwtop-allow4 src",),
    "roles": (
        "-m set --match-set fwtop-allow4 src",
        "-p tcp ! --syn -m set --match-set fwtop-allow-peers4 src,src",
        "-p udp --sport 53 --dport 1024:65535 -m set --match-set fwtop-allow-peers4 src,src",
        "-p icmp -m set --match-set fwtop-allow-gateways4 src",
    ),
}

OLD_TABLE_HEAD = (
    "icmpv6 type { 134, 135, 136 } ip6 hoplimit 255",
    "ip6 saddr @allow6",
    "ip saddr @allow4",
)


def chains(bench: Bench) -> str:
    """Return fwtop's IPv4 chains without rules' lines."""
    listed = bench.pair.victim.run("iptables", "-t", "raw", "-S").stdout.splitlines()
    return "\n".join(line for line in listed if "FWTOP" in line and not RULE_SET.search(line))


@pytest.mark.parametrize("head", OLD_HEADS)
def test_one_chain_for_all(bench: Bench, head: str, poll_until) -> None:
    """Older versions had the allow-list and the rules in the hook's chain; all rules move."""
    before, victim = bench.state(), bench.pair.victim
    source = bench.block_rule(4)
    with bench.connect() as guardian:
        for rule in (
            source,
            Rule("", Kind.HASHLIMIT, Match(family=4, protocol=17, dport=9), "x", 60, limit=RateLimit(1, 1)),
        ):
            apply(guardian, rule)
        chain = chains(bench)
        listed = victim.run("iptables", "-t", "raw", "-S").stdout.splitlines()
    bench.kill_guardian()
    rules = [re.sub("FWTOP-[A-Z]+", "FWTOP", line) for line in listed if RULE_SET.search(line)]
    assert len(rules) == 2
    lines = [
        *(f"-F {name}" for name in ("FWTOP", *LATER_CHAINS)),
        *(f"-X {name}" for name in LATER_CHAINS),
        "-A FWTOP -i lo -j RETURN",
        *(f"-A FWTOP {condition} -j RETURN" for condition in OLD_HEADS[head]),
        *rules,
    ]
    subprocess.run(
        ["ip", "netns", "exec", bench.netns, "iptables-restore", "--noflush"],
        input="\n".join(["*raw", *lines, "COMMIT", ""]), text=True, check=True,
    )  # fmt: skip
    victim.run("ipset", "destroy", "fwtop-known4")
    assert not bench.path(4).passes()
    with bench.connect() as successor:
        poll_until(lambda: chains(bench) == chain)  # adoption follows the hello
        assert [item["acting"] for item in rules_of(successor).values()] == [True, True]
        assert not bench.path(4).passes()
        successor.demand(Undo(("1",)))
        assert bench.path(4).passes(wait_s=10)
        successor.demand(Undo(all=True))
    assert bench.state() == before


def test_table_without_role_chains(bench: Bench) -> None:
    before, victim = bench.state(), bench.pair.victim
    rule = Rule("", Kind.NFTABLES, Match(family=4, protocol=17, dport=PORT), "x", 60)
    with bench.connect() as guardian:
        apply(guardian, rule)
    bench.kill_guardian()
    listed = victim.run(*["nft", "-j", "-a", "list", "chain", "netdev", "fwtop", "rules"]).stdout
    heads = [item["rule"]["handle"] for item in json.loads(listed)["nftables"] if "rule" in item][:2]
    old = [f"delete rule netdev fwtop rules handle {handle}" for handle in heads]
    old += [f"{verb} chain netdev fwtop roles{family}" for family in (4, 6) for verb in ("flush", "delete")]
    old += [f"delete set netdev fwtop {name}{family}" for name in LATER_SETS for family in (4, 6)]
    old += [f"insert rule netdev fwtop rules {line} return" for line in OLD_TABLE_HEAD]
    subprocess.run(
        ["ip", "netns", "exec", bench.netns, "nft", "-f", "-"],
        input="\n".join(old) + "\n", text=True, check=True,
    )  # fmt: skip
    assert not bench.path(4).passes()
    with bench.connect() as successor:
        assert rules_of(successor)["1"]["acting"]
        table = victim.run("nft", "list", "table", "netdev", "fwtop").stdout
        assert "@peers4" in table
        assert "ip saddr @known4 jump roles4" in table
        assert "@allow4 return" not in table
        assert not bench.path(4).passes()
        successor.demand(Undo(all=True))
        assert bench.path(4).passes(wait_s=10)
    assert bench.state() == before


def outdate(bench: XdpBench) -> None:
    """Install a rule of both kinds, and take out a map that older versions did not have."""
    with bench.connect() as guardian:
        apply(guardian, xdp(Match(family=4, protocol=17, dport=PORT)))
        apply(guardian, at_tc(Match(family=6, protocol=17, dport=PORT)))
    (Path("/sys/fs/bpf/fwtop") / str(os.stat(f"/run/netns/{bench.netns}").st_ino) / "allow").unlink()
    bench.kill_guardian()


def test_compiled_rules_end(bench: XdpBench) -> None:
    before = bench.state()
    outdate(bench)
    with bench.connect() as successor:
        assert "an older fwtop compiled" in rules_of(successor)["1"]["not_acting"]
        assert not bench.path(4).passes()
        successor.demand(Undo(("1",)))
        assert bench.path(4).passes(wait_s=10)
        assert not bench.path(6).passes()
        successor.demand(Undo(all=True))
        assert bench.path(6).passes(wait_s=10)
        assert bench.state() == before


def test_compiled_rules_are_compiled_again(bench: XdpBench) -> None:
    before = bench.state()
    outdate(bench)
    with bench.connect() as successor:
        for rule_id in ("1", "2"):
            successor.demand(Repair(rule_id))
        assert [item["acting"] for item in rules_of(successor).values()] == [True, True]
        assert not bench.path(4).passes()
        assert not bench.path(6).passes()
        successor.demand(Undo(all=True))
        assert bench.path(4).passes(wait_s=10)
        assert bench.state() == before
