"""Ending a rule depends on nothing else: not on others, nor on counters, nor on a child."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest
from guardian_bench import SOON_SECONDS, Bench, apply, inside, kill, own_xtables_lock, rules_of, use_variant

from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Undo
from fwtop.model.rule import Kind, Match, Rule, Setting

pytestmark = pytest.mark.kernel
TIMEOUT = "net.netfilter.nf_conntrack_udp_timeout"
NATIVE = "add rule ip raw PREROUTING udp dport 9 notrack"


def sysctl(bench: Bench) -> int:
    return int(bench.pair.victim.run("sysctl", "-n", TIMEOUT).stdout)


def set_sysctl(bench: Bench) -> Rule:
    return Rule("", Kind.SYSCTL, Match(), "x", 600, settings=(Setting(TIMEOUT, 7),))


def native_rule(bench: Bench) -> None:
    """A foreign native rule in iptables' table, for which iptables-nft-save refuses all of it."""
    bench.pair.victim.run("nft", NATIVE)


@pytest.mark.parametrize("how", ["undo", "expiry", "successor"])
def test_native_rule_in_table_raw_keeps_nothing_from_ending(bench: Bench, how: str, poll_until) -> None:
    before, path = sysctl(bench), bench.path(4)
    with bench.connect() as guardian:
        apply(guardian, bench.block_rule(4, ttl=SOON_SECONDS if how == "expiry" else 600))
        apply(guardian, set_sysctl(bench))
        assert (path.passes(), sysctl(bench)) == (False, 7)
        native_rule(bench)
        counted = rules_of(guardian)["1"]["packets"]
        assert counted >= 1
        if how == "expiry":
            poll_until(lambda: "1" not in rules_of(guardian))
        elif how == "successor":
            kill(int(guardian.about["pid"]))
    with bench.connect() as guardian:
        guardian.demand(Undo(all=True))
        assert rules_of(guardian) == {}
    assert path.passes(wait_s=30)
    assert sysctl(bench) == before
    left = bench.pair.victim.run("nft", "list", "table", "ip", "raw").stdout
    assert "FWTOP" not in left
    assert "notrack" in left
    assert "fwtop" not in bench.pair.victim.run("ipset", "list", "-n").stdout


JUMPS = """*raw
-A PREROUTING -j FWTOP
-I PREROUTING 1 -p udp -m comment --comment "to -j FWTOP" -j FWTOP
-I PREROUTING 1 -p udp -m multiport --dports 1,2 -g FWTOP-RULES
COMMIT
"""


@pytest.mark.one_each
@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("variant", ["nft", "legacy"])
def test_more_jumps_keep_no_rule_from_ending(bench: Bench, variant: str, family: int) -> None:
    use_variant(bench, variant)
    before, victim, path = bench.state(), bench.pair.victim, bench.path(family)
    with bench.connect() as guardian:
        apply(guardian, bench.block_rule(family))
        saved = bench.directory / "saved"
        saved.write_text(JUMPS)
        program = f"ip{'6' if family == 6 else ''}tables-{variant}-restore"
        victim.run("sh", "-c", f"{program} --noflush < {saved}")
        assert not path.passes()
        guardian.demand(Undo(all=True))
        assert path.passes(wait_s=30)
    assert bench.settled(before) == before


def test_lock_of_another_program_keeps_no_rule_from_ending(bench: Bench, poll_until) -> None:
    """Legacy tables have one lock on the whole machine, which a stopped iptables holds for ever."""
    use_variant(bench, "legacy")
    before, victim = sysctl(bench), bench.pair.victim
    with own_xtables_lock(bench) as held:
        with bench.connect() as guardian:
            apply(guardian, bench.block_rule(4, 6))
            apply(guardian, set_sysctl(bench))
            fcntl.flock(held, fcntl.LOCK_EX)
            guardian.demand(Undo(all=True), timeout=25)
            assert rules_of(guardian) == {}
            assert all(bench.path(family).passes(wait_s=30) for family in (4, 6))
            assert sysctl(bench) == before
            fcntl.flock(held, fcntl.LOCK_UN)
        with bench.connect():
            saved = ("iptables-legacy-save", "-t", "raw")
            poll_until(lambda: "FWTOP" not in victim.run(*saved).stdout)
            poll_until(lambda: "fwtop" not in victim.run("ipset", "list", "-n").stdout)  # after the lines


def test_rule_ends_although_its_lines_cannot_be_removed(bench: Bench, poll_until) -> None:
    """A jump that only somebody else can take out: the rule stops all the same, and is removed later."""
    before, victim, path = bench.state(), bench.pair.victim, bench.path(4)
    with bench.connect() as guardian:
        apply(guardian, bench.block_rule(4))
        victim.run("nft", "add chain ip raw THEIRS")
        victim.run("nft", "add map ip raw ways { type inet_proto : verdict ; }")
        victim.run("nft", "add element ip raw ways { udp : jump FWTOP }")
        assert not path.passes()
        guardian.demand(Undo(all=True))
        assert rules_of(guardian) == {}
        assert path.passes(wait_s=30)
        assert "fwtop" not in victim.run("ipset", "list", "-n").stdout
        assert "match set" not in victim.run("nft", "list", "table", "ip", "raw").stdout
        victim.run("nft", "delete map ip raw ways")
        victim.run("nft", "delete chain ip raw THEIRS")
    with bench.connect() as guardian:
        guardian.demand(Undo(all=True))
    assert bench.settled(before) == before


def test_bulk_load_that_runs_out_of_memory_leaves_no_set(bench: Bench, monkeypatch, tmp_path: Path) -> None:
    """ENOBUFS in the second message of a long list."""
    from fwtop.guardian.allow.allowlist import AllowList
    from fwtop.guardian.failpoints import Failpoints
    from fwtop.guardian.mechanisms.chains import sets
    from fwtop.guardian.mechanisms.chains.chain import Chains
    from fwtop.guardian.mechanisms.compiled.rules import CompiledRules
    from fwtop.guardian.mechanisms.kernel import Kernel
    from fwtop.guardian.mechanisms.mechanism import Wanted
    from fwtop.guardian.records.files import Records
    from fwtop.guardian.records.former import FormerState
    from fwtop.kernel import netlink
    from fwtop.model.addresses.address import Prefix
    from fwtop.netfilter.iptables import named
    from fwtop.rules.kind import KernelObjects, SetSpec

    sent: list[int] = []

    class Short(netlink.socket.socket):  # type: ignore[name-defined, misc]
        """A netlink socket of a machine whose memory is short."""

        def send(self, data: bytes, *flags: int) -> int:
            sent.append(len(data))
            if len(sent) == 2:
                raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
            return super().send(data, *flags)

    elements = tuple(Prefix.parse(f"10.{i >> 8 & 255}.{i & 255}.0/24") for i in range(20_000))
    spec = SetSpec("fwtop-7-4", 4, tuple(dict.fromkeys(elements)), timed=False)
    rule = Rule("7", Kind.IPSET, Match(), "x", 600)
    with inside(bench.netns):
        failpoints = Failpoints()
        kernel = Kernel(
            Chains(named("nft")),
            FormerState(Records(tmp_path, 0, ""), print),
            failpoints,
            CompiledRules(failpoints, 0),
            list,
        )
        with monkeypatch.context() as patch:
            patch.setattr(netlink.socket, "socket", Short)
            with pytest.raises(FwtopError, match="fwtop-7-4 could not be filled"):
                kernel.install(Wanted(rule, KernelObjects((spec,), ()), AllowList(()), 60))
        assert len(sent) >= 2
        assert sets.names() == set()
