"""SIGKILL at every failpoint of an install, a keep and an undo: the next start leaves no half rule."""

from __future__ import annotations

import pytest
from guardian_bench import PORT, SOON_SECONDS, Bench, apply, ended, rules_of
from xdp_bench import XdpBench

from fwtop.guardian.failpoints import Failpoint
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Keep, Repair, Undo
from fwtop.model.rule import Kind, Match, PayloadMatch, Rule

pytestmark = pytest.mark.kernel
BENCH = XdpBench
INSTALL = (
    Failpoint.INTENT,
    Failpoint.ALLOW,
    Failpoint.SETS,
    Failpoint.CHAIN_V4,
    Failpoint.CHAIN_V6,
    Failpoint.INSTALLED,
)
KEEP = (Failpoint.RENEWED, Failpoint.KEPT)
FOLLOW = (Failpoint.FOLLOWED,)
UNDO = (
    Failpoint.UNDO,
    Failpoint.INACTIVE,
    Failpoint.CHAINS_REMOVED,
    Failpoint.SETS_DESTROYED,
    Failpoint.UNDONE,
)
COMPILED = (
    Failpoint.COMPILED,
    Failpoint.ENABLED,
    Failpoint.DISABLED,
    Failpoint.UNLOADED,
)  # test_xdp_life.py tries these
TABLES = (Failpoint.NFT, Failpoint.NFT_REMOVED)  # tried in test_guardian_nftables.py
CLOSING = (Failpoint.CLOSED,)  # tried in test_guardian_connlimit.py
# Tried in test_guardian_protect.py and test_guardian_changing.py
SWITCHES = (Failpoint.SWITCHING, Failpoint.ASIDE, Failpoint.SWITCHED)
BESIDE = (Failpoint.BESIDE,)  # tried in test_harden_stateless.py
SYSCTL = (Failpoint.SETTING, Failpoint.RESTORED)  # tried in test_guardian_sysctl.py
LISTS = tuple(point for point in Failpoint if point.value.startswith("list-"))  # in test_guardian_lists.py
REPAIR = (
    *(Failpoint.REPAIR, Failpoint.REPAIR_SYSCTLS, Failpoint.REPAIR_SETS),
    *(Failpoint.REPAIR_CHAIN_V4, Failpoint.REPAIR_CHAIN_V6, Failpoint.REPAIRED),
)
OTHER_REPAIRS = {Failpoint.REPAIR_NFT: Kind.NFTABLES, Failpoint.REPAIR_COMPILED: Kind.XDP}


def test_every_failpoint_is_tried() -> None:
    elsewhere = {*COMPILED, *TABLES, *CLOSING, *SYSCTL, *SWITCHES, *LISTS, *BESIDE}
    assert {*INSTALL, *KEEP, *FOLLOW, *REPAIR, *OTHER_REPAIRS, *UNDO, *elsewhere} == set(Failpoint)


@pytest.mark.parametrize("failpoint", INSTALL)
def test_crash_while_installing(bench: Bench, failpoint: Failpoint) -> None:
    before = bench.state()
    guardian = bench.connect(crash_at=failpoint.value)
    with guardian, pytest.raises(FwtopError, match="ended before it answered"):
        apply(guardian, bench.block_rule(4, 6))
    with bench.connect() as successor:
        if failpoint is Failpoint.INSTALLED:
            assert rules_of(successor)["1"]["state"] == "confirmed"
            assert not bench.path(4).passes()
            successor.demand(Undo(all=True))
        else:
            assert rules_of(successor) == {}
            assert rules_of(successor, finished=True)["1"]["state"] == "reverted"
        assert bench.path(4).passes(wait_s=30)
    assert bench.settled(before) == before


@pytest.mark.parametrize("failpoint", UNDO)
def test_crash_while_undoing(bench: Bench, failpoint: Failpoint) -> None:
    before = bench.state()
    guardian = bench.connect(crash_at=failpoint.value)
    with guardian:
        apply(guardian, bench.block_rule(4, 6))
        with pytest.raises(FwtopError, match="ended before it answered"):
            guardian.demand(Undo(all=True))
    with bench.connect() as successor:
        assert rules_of(successor) == {}
        assert rules_of(successor, finished=True)["1"]["state"] == "reverted"
        assert bench.path(4).passes(wait_s=30)
    assert bench.settled(before) == before


@pytest.mark.one_each("chains-removed", "undone")
@pytest.mark.parametrize("failpoint", UNDO)
def test_crash_while_undoing_one_of_two(bench: Bench, failpoint: Failpoint) -> None:
    guardian = bench.connect(crash_at=failpoint.value)
    with guardian:
        gone, stays = apply(guardian, bench.block_rule(4)), apply(guardian, bench.block_rule(6))
        with pytest.raises(FwtopError, match="ended before it answered"):
            guardian.demand(Undo((gone,)))
    with bench.connect() as successor:
        assert list(rules_of(successor)) == [stays]
        assert bench.path(4).passes(wait_s=30)
        assert not bench.path(6).passes()


@pytest.mark.parametrize("failpoint", KEEP)
def test_crash_while_keeping(bench: Bench, failpoint: Failpoint, poll_until) -> None:
    guardian = bench.connect(crash_at=failpoint.value)
    with guardian:
        rule_id = apply(guardian, bench.block_rule(4), SOON_SECONDS + 4)  # until a successor has started
        with pytest.raises(FwtopError, match="ended before it answered"):
            guardian.demand(Keep(rule_id))
    with bench.connect() as successor:
        if failpoint is Failpoint.KEPT:
            assert rules_of(successor)[rule_id]["state"] == "confirmed"
        else:  # nobody was told that it is kept: it ends as unconfirmed rules do
            assert rules_of(successor)[rule_id]["state"] == "provisional"
            poll_until(lambda: bench.path(4).passes())


@pytest.mark.parametrize("failpoint", FOLLOW)
def test_crash_while_the_allow_list_is_followed(bench: Bench, failpoint: Failpoint, poll_until) -> None:
    """The next guardian does the rest: who came on the list passes, and is dropped once off it again."""
    before = bench.state()
    allowed = bench.directory / "allow"
    rule = Rule("", Kind.STRING, Match(protocol=17, dport=PORT, payload=(PayloadMatch(b"#"),)), "x", 600)
    guardian = bench.connect(crash_at=failpoint.value)
    with guardian:
        rule_id = apply(guardian, rule)
        pid = int(guardian.about["pid"])
        bench.allow = f"{bench.attacker(4)}\n"  # which the next guardian finds, too
        allowed.write_text(bench.allow)
        poll_until(lambda: ended(pid))
    with bench.connect() as successor:
        assert rules_of(successor)[rule_id]["not_acting"] == ""
        assert bench.path(4).passes(wait_s=30)
        allowed.write_text("")
        poll_until(lambda: not bench.path(4).passes())
        successor.demand(Undo(all=True))
    assert bench.settled(before) == before


@pytest.mark.one_each("repair-sets", "repair-chain6", "repaired")
@pytest.mark.parametrize("failpoint", REPAIR)
def test_crash_while_repairing(bench: Bench, failpoint: Failpoint) -> None:
    """The next guardian completes the repair: a rule that lacks something then was not ended by anybody."""
    before = bench.state()
    guardian = bench.connect(crash_at=failpoint.value)
    with guardian:
        rule_id = apply(guardian, bench.block_rule(4, 6))
        for words in ("iptables -t raw -F", "ip6tables -t raw -F", "ipset flush"):
            bench.pair.victim.run(*words.split())
        with pytest.raises(FwtopError, match="ended before it answered"):
            guardian.demand(Repair(rule_id))
    check_repaired(bench, rule_id, before)


@pytest.mark.parametrize("failpoint", OTHER_REPAIRS)
def test_crash_while_repairing_other_kinds(bench: Bench, failpoint: Failpoint) -> None:
    before = bench.state()
    rule = Rule("", OTHER_REPAIRS[failpoint], Match(protocol=17, dport=PORT), "x", 600)
    guardian = bench.connect(crash_at=failpoint.value)
    with guardian:
        rule_id = apply(guardian, rule)
        with pytest.raises(FwtopError, match="ended before it answered"):
            guardian.demand(Repair(rule_id))
    check_repaired(bench, rule_id, before)


def check_repaired(bench: Bench, rule_id: str, before: dict[str, str]) -> None:
    with bench.connect() as successor:
        found = rules_of(successor)[rule_id]
        assert (found["state"], found["acting"], found["not_acting"]) == ("confirmed", True, "")
        assert "repaired" not in found["note"]
        assert not bench.path(4).passes()
        assert not bench.path(6).passes()
        successor.demand(Undo(all=True))
        assert bench.path(4).passes(wait_s=30)
    assert bench.settled(before) == before
