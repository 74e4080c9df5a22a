"""Rules that an older fwtop left in the kernel: continued where that is possible, ended cleanly anyway."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from guardian_bench import PORT, Bench, apply, rules_of
from xdp_bench import XdpBench, at_tc, xdp

from fwtop.model.protocol import Repair, Undo
from fwtop.model.rule import Kind, Match, RateLimit, Rule

pytestmark = pytest.mark.kernel
BENCH = XdpBench
Poll = Callable[..., bool]


@pytest.mark.parametrize("kind", [Kind.HASHLIMIT, Kind.NFTABLES])
def test_other_allow_list_lines_are_replaced(bench: Bench, kind: Kind, poll_until: Poll) -> None:
    """What another version wrote ahead of the rules differs; so does what somebody took out meanwhile."""
    before, victim = bench.state(), bench.pair.victim
    limit = RateLimit(1, 1) if kind is Kind.HASHLIMIT else None
    with bench.connect() as guardian:
        apply(guardian, Rule("", kind, Match(family=4, protocol=17, dport=PORT), "x", 600, limit=limit))
    bench.kill_guardian()
    if kind is Kind.HASHLIMIT:
        listed, flush = (["iptables", "-t", "raw", verb, "FWTOP-ROLES"] for verb in ("-S", "-F"))
    else:
        listed, flush = (["nft", verb, "chain", "netdev", "fwtop", "roles4"] for verb in ("list", "flush"))
    roles = victim.run(*listed).stdout
    victim.run(*flush)
    with bench.connect() as successor:
        poll_until(lambda: victim.run(*listed).stdout == roles)  # adoption follows the hello
        assert rules_of(successor)["1"]["acting"]
        successor.demand(Undo(all=True))
    assert bench.settled(before) == before


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
        assert bench.path(4).passes(wait_s=30)
        assert not bench.path(6).passes()
        successor.demand(Undo(all=True))
        assert bench.path(6).passes(wait_s=30)
        assert bench.settled(before) == before


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
        assert bench.path(4).passes(wait_s=30)
        assert bench.settled(before) == before
