"""A rule lives in the iptables variant that it was put into, whichever is in use when a guardian starts."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

import pytest
from guardian_bench import VARIANTS, Bench, apply, ended, rules_of
from test_guardian_lists import change, on_list
from xdp_bench import XdpBench

from fwtop.model.protocol import Keep, Repair, Undo
from fwtop.model.rule import Kind, Match, Rule

pytestmark = pytest.mark.kernel
BENCH = XdpBench
FOREIGN = [
    "-p",
    "udp",
    "--dport",
    "10",
    "-j",
    "DROP",
]  # of others: it makes its variant the one in use


def use(bench: Bench, variant: str) -> None:
    for program, other in ((f"{family}tables-{variant}", variant == "legacy") for family in ("ip", "ip6")):
        if other:
            bench.pair.victim.run(program, "-A", "INPUT", *FOREIGN)
        else:
            bench.pair.victim.run(program.replace(variant, "legacy"), "-F", "INPUT")


def stop(bench: Bench, poll_until: Callable[..., object]) -> None:
    """Tell the guardian to exit, as a service manager does."""
    with bench.connect() as guardian:
        pid = int(guardian.about["pid"])
    os.kill(pid, signal.SIGTERM)
    poll_until(lambda: ended(pid))


def prepared(bench: XdpBench, first: str) -> dict[str, str]:
    """Have the tables of both variants there, one of them in use; return what the kernel has."""
    for family in ("ip", "ip6"):
        for table in ("raw", "filter"):
            bench.pair.victim.run(f"{family}tables-legacy", "-t", table, "-S")
            bench.pair.victim.run(f"{family}tables-nft", "-t", table, "-S")
    use(bench, first)
    return bench.state()


def test_both_variants_at_once_until_each_of_their_rules_is_over(bench: XdpBench, poll_until) -> None:
    """Rules of one go on under a guardian that uses the other, are kept, repaired, counted and undone."""
    before = prepared(bench, "nft")
    with bench.connect() as guardian:
        change(guardian, "create", bench.attacker(6))
        listed = apply(guardian, on_list(Kind.IPSET))
        old = apply(guardian, bench.block_rule(4))
        untracked = apply(guardian, Rule("", Kind.NOTRACK, Match(protocol=17, dport=9, family=4), "x", 600))
        assert not bench.path(4).passes()
    use(bench, "legacy")
    stop(bench, poll_until)
    with bench.connect() as guardian:
        assert guardian.about["variant"] == "legacy"
        assert rules_of(guardian).keys() == {listed, old, untracked}
        assert all(item["acting"] for item in rules_of(guardian).values())
        counted = rules_of(guardian)[old]["packets"]
        assert (bench.path(4).passes(), bench.path(6).passes()) == (False, False)
        poll_until(lambda: rules_of(guardian)[old]["packets"] > counted)
        new = apply(guardian, bench.block_rule(6))
        saved = {name: bench.pair.victim.run(f"ip6tables-{name}-save").stdout for name in VARIANTS}
        assert f"fwtop-{new}-" in saved["legacy"]
        assert f"fwtop-{new}-" not in saved["nft"]
        bench.pair.victim.run(*["iptables-nft", "-t", "raw", "-F", "FWTOP-SOURCES"])
        poll_until(lambda: not rules_of(guardian)[old]["acting"])
        assert bench.path(4).passes(wait_s=30)
        guardian.demand(Repair(old))
        guardian.demand(Keep(old, 600))
        assert not bench.path(4).passes()
        assert "FWTOP" not in bench.pair.victim.run("iptables-legacy-save").stdout
        guardian.demand(Undo((new,)))
        assert "FWTOP" not in bench.pair.victim.run("ip6tables-legacy-save").stdout
        assert not bench.path(6).passes(), "the rule on the list goes on"
        guardian.demand(Undo(all=True))
        assert bench.path(4).passes(wait_s=30)
    use(bench, "nft")
    assert bench.settled(before) == before


@pytest.mark.one_each
@pytest.mark.parametrize("lost", ["the journal", "nothing"])
@pytest.mark.parametrize("first", VARIANTS)
def test_a_rule_is_looked_for_in_the_other_variant_too(bench: XdpBench, first: str, lost: str) -> None:
    """Also where the records say another one than the kernel, or where there are none."""
    second = VARIANTS[first == "nft"]
    before = prepared(bench, first)
    with bench.connect() as guardian:
        assert guardian.about["variant"] == first
        rule_id = apply(guardian, bench.block_rule(4, 6))
        assert not bench.path(4).passes()
    use(bench, second)
    bench.kill_guardian()
    if lost == "the journal":
        for path in bench.directory.glob("state-*/rule-*"):
            path.write_bytes(b"")
    else:
        for path in bench.directory.glob("state-*/rule-*.json"):
            path.write_text(json.dumps(json.loads(path.read_text()) | {"variant": second}))
    with bench.connect() as guardian:
        assert guardian.about["variant"] == second
        assert rules_of(guardian)[rule_id]["acting"], rules_of(guardian)[rule_id]
        assert (bench.path(4).passes(), bench.path(6).passes()) == (False, False)
        guardian.demand(Keep(rule_id, 30))
        guardian.demand(Undo(all=True))
        assert bench.path(4).passes(wait_s=30)
    use(bench, first)
    assert bench.settled(before) == before


def test_sets_of_a_list_go_as_soon_as_nobody_refers_to_them(bench: XdpBench, poll_until) -> None:
    victim, before = bench.pair.victim, bench.state()
    theirs = ["INPUT", "-m", "set", "--match-set", "fwtop-list-bad-4", "src", "-j", "ACCEPT"]
    with bench.connect() as guardian:
        change(guardian, "create", bench.attacker(4))
        apply(guardian, on_list(Kind.IPSET))
        victim.run("iptables-nft", "-A", *theirs)
        guardian.demand(Undo(all=True))
        assert "fwtop-list-bad-4" in victim.run("ipset", "list", "-n").stdout
        victim.run("iptables-nft", "-D", *theirs)
        poll_until(lambda: not victim.run("ipset", "list", "-n").stdout)
        victim.run("nft", "delete", "table", "ip", "filter")
        assert bench.settled(before) == before
