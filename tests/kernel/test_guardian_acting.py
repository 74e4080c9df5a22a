"""A rule that no longer acts is told as such, never confirmed, and put back by one command."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from guardian_bench import PORT, VARIANTS, Bench, apply, rules_of, use_variant
from msgspec.structs import replace
from test_tc_rules import rules as rules_at_tc
from xdp_bench import XdpBench

from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Apply, Keep, Repair, Undo
from fwtop.model.rule import Kind, Match, Rule, Setting
from fwtop.xdp import attach
from tests.kernel.wire import inside

pytestmark = pytest.mark.kernel
BENCH = XdpBench
TIMEOUT = "net.netfilter.nf_conntrack_udp_timeout"

SOURCE = {
    "raw_flushed": "iptables-{variant} -t raw -F",
    "jump_deleted": "iptables-{variant} -t raw -D PREROUTING -j FWTOP",
    "chain_flushed": "iptables-{variant} -t raw -F FWTOP",
    "rules_flushed": "iptables-{variant} -t raw -F FWTOP-SOURCES",
    "first_line_replaced": "iptables-{variant} -t raw -R FWTOP 1 -p udp -j ACCEPT",
    "foreign_accept": "iptables-{variant} -t raw -I PREROUTING -p udp -j ACCEPT",
    "foreign_goto": "iptables-{variant} -t raw -I PREROUTING -p udp -g THEIRS",  # which has no lines
    "set_flushed": "ipset flush fwtop-1-{family}",
}
NFT = {
    "ruleset_flushed": "nft flush ruleset",
    "chain_flushed": "nft flush chain netdev fwtop rules{family}",
    "switch_flushed": "nft flush set netdev fwtop r1-on",
    "dormant": "nft add table netdev fwtop { flags dormant ; }",
    "foreign_accept": "nft insert rule netdev fwtop in-{v0} meta l4proto udp accept",
}


def is_told(bench: Bench, guardian, rule_id: str, poll_until: Callable[..., object]) -> str:
    """Wait until status says that a rule does not act; return why."""
    poll_until(lambda: not rules_of(guardian)[rule_id]["acting"])
    return rules_of(guardian)[rule_id]["not_acting"]


def check(
    bench: Bench,
    rule: Rule,
    damage: Callable[[], object],
    poll_until,
    *,
    family: int = 4,
    refilled: bool = False,
) -> None:
    """Break a provisional rule: told, not confirmed, repaired, confirmed, and gone without a trace."""
    path = bench.path(family)
    with bench.connect() as guardian:
        rule_id = apply(guardian, rule, 300)
        assert rules_of(guardian)[rule_id]["acting"]
        assert not path.passes()
        damage()
        assert path.passes(wait_s=30)
        assert is_told(bench, guardian, rule_id, poll_until)
        if not refilled:
            with pytest.raises(FwtopError, match=f"does not act: .*fwtop repair {rule_id}"):
                guardian.demand(Keep(rule_id))
            assert rules_of(guardian)[rule_id]["state"] == "provisional"
        guardian.demand(Repair(rule_id))
        assert rules_of(guardian)[rule_id]["acting"], rules_of(guardian)[rule_id]["not_acting"]
        assert rules_of(guardian)[rule_id]["state"] == "provisional"
        assert not path.passes()
        guardian.demand(Keep(rule_id))
        assert not path.passes()
        guardian.demand(Undo(all=True))
        assert path.passes(wait_s=30)


# Each harm with either family and either variant, and one harm with all four pairs
IN_RAW = [
    (how, variant, family)
    for number, how in enumerate(SOURCE)
    for place, variant in enumerate(VARIANTS)
    for family in ((4, 6) if how == "jump_deleted" else (4 + 2 * ((number + place) % 2),))
]


@pytest.mark.one_each(
    "raw_flushed-nft-4",
    "jump_deleted-legacy-6",
    "chain_flushed-nft-4",
    "rules_flushed-nft-6",
    "first_line_replaced-legacy-6",
    "foreign_accept-legacy-4",
    "foreign_goto-nft-4",
    "set_flushed-nft-6",
)
@pytest.mark.parametrize(("how", "variant", "family"), IN_RAW)
def test_rule_in_table_raw(bench: Bench, how: str, variant: str, family: int, poll_until) -> None:
    use_variant(bench, variant)
    program = "iptables" if family == 4 else "ip6tables"
    bench.pair.victim.run(f"{program}-{variant}", "-t", "raw", "-N", "THEIRS")
    words = SOURCE[how].replace("iptables", program).format(variant=variant, family=family).split()
    refilled = how == "set_flushed"
    rule = bench.block_rule(family)
    check(bench, rule, lambda: bench.pair.victim.run(*words), poll_until, family=family, refilled=refilled)


@pytest.mark.one_each
@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("how", NFT)
def test_rule_at_netdev_ingress(bench: Bench, how: str, family: int, poll_until) -> None:
    index = bench.pair.victim.run("cat", "/sys/class/net/v0/ifindex").stdout.strip()
    words = NFT[how].replace("{v0}", index).replace("{family}", str(family)).split()
    rule = Rule("", Kind.NFTABLES, Match(family=family, protocol=17, dport=PORT), "x", 600)
    check(bench, rule, lambda: bench.pair.victim.run(*words), poll_until, family=family)


@pytest.mark.one_each("6")
@pytest.mark.parametrize("family", [4, 6])
def test_dormant_table_raw_is_told_and_left_to_its_owner(bench: Bench, family: int, poll_until) -> None:
    """It holds others' rules, too, which only they can want back."""
    victim, table = bench.pair.victim, ("ip6" if family == 6 else "ip", "raw")
    with bench.connect() as guardian:
        rule_id = apply(guardian, bench.block_rule(family))
        victim.run("nft", "add", "table", *table, "{ flags dormant ; }")
        assert "dormant: 'nft add table" in is_told(bench, guardian, rule_id, poll_until)
        with pytest.raises(FwtopError, match="does not act"):
            guardian.demand(Keep(rule_id))
        another = replace(bench.block_rule(family), close_open=True)
        for refused in (Repair(rule_id), Apply(another.to_dict(), 0)):
            with pytest.raises(FwtopError, match=f"'nft add table {table[0]} raw' wakes it"):
                guardian.demand(refused)
        victim.run("nft", "add", "table", *table)
        poll_until(lambda: rules_of(guardian)[rule_id]["acting"])
        victim.run("nft", "add", "table", *table, "{ flags dormant ; }")
        guardian.demand(Undo(all=True))
    assert "FWTOP" not in victim.run("nft", "list", "ruleset").stdout


@pytest.mark.parametrize("how", ["undo", "successor"])
def test_dormant_table_of_fwtop_keeps_no_rule_from_ending(bench: Bench, how: str) -> None:
    """nft 1.0.6 prints half a document of JSON for such a table."""
    rule = Rule("", Kind.NFTABLES, Match(family=4, protocol=17, dport=PORT), "x", 600)
    with bench.connect() as guardian:
        rule_id = apply(guardian, rule)
        bench.pair.victim.run("nft", "add", "table", "netdev", "fwtop", "{ flags dormant ; }")
        if how == "undo":
            guardian.demand(Undo((rule_id,)))
    if how == "successor":
        bench.kill_guardian()
        with bench.connect() as guardian:
            assert list(rules_of(guardian)) == [rule_id]
            guardian.demand(Undo(all=True))
    assert "fwtop" not in bench.pair.victim.run("nft", "list", "ruleset").stdout


def test_emptied_source_set_at_netdev_ingress(bench: Bench, poll_until) -> None:
    rule = Rule("", Kind.NFTABLES, bench.block_rule(4).match, "x", 600)
    check(
        bench,
        rule,
        lambda: bench.pair.victim.run(*["nft", "flush", "set", "netdev", "fwtop", "r1-src4"]),
        poll_until,
    )


def test_ingress_of_one_of_several_interfaces(bench: Bench, poll_until) -> None:
    """A base chain that is gone from one interface is told, though the others still have theirs."""
    victim = bench.pair.victim
    victim.run(*["ip", "link", "add", "d0", "up", "type", "veth", "peer", "name", "d1"])
    victim.run(*["ip", "link", "set", "d1", "up"])
    index = victim.run("cat", "/sys/class/net/v0/ifindex").stdout.strip()
    rule = Rule("", Kind.NFTABLES, Match(family=4, protocol=17, dport=PORT), "x", 600)
    with bench.connect() as guardian:
        rule_id = apply(guardian, rule)
        assert rules_of(guardian)[rule_id]["note"].count(", ") == 2
        victim.run(*f"nft flush chain netdev fwtop in-{index}".split())
        assert "from the ingress of v0" in is_told(bench, guardian, rule_id, poll_until)
        guardian.demand(Repair(rule_id))
        assert rules_of(guardian)[rule_id]["acting"]
        assert not bench.path(4).passes()


@pytest.mark.one_each("xdp")
@pytest.mark.parametrize("kind", [Kind.XDP, Kind.TC])
def test_compiled_rule_whose_program_was_detached(bench: XdpBench, kind: Kind, poll_until) -> None:
    def detach() -> None:
        pins = Path(f"/sys/fs/bpf/fwtop/{os.stat(f'/run/netns/{bench.netns}').st_ino}")
        link = str(next(pins.glob("link-*")))
        subprocess.run(["bpftool", "link", "detach", "pinned", link], check=True, timeout=20)

    check(bench, Rule("", kind, Match(protocol=17, dport=PORT), "x", 600), detach, poll_until)


def test_compiled_rule_whose_filter_was_deleted(bench: XdpBench, poll_until) -> None:
    """Before Linux 6.6 a clsact filter takes the place of the link."""
    victim = bench.pair.victim
    pins = Path(f"/sys/fs/bpf/fwtop/{os.stat(f'/run/netns/{bench.netns}').st_ino}")
    with bench.connect() as guardian:
        rule_id = apply(guardian, Rule("", Kind.TC, Match(protocol=17, dport=PORT), "x", 600))
        link = next(pins.glob("link-ingress-*"))
        with rules_at_tc(PORT) as same, inside(bench.netns):
            attach.attach_filter(pins, same.program, int(link.name.rpartition("-")[2]), "ingress")
            link.unlink()
            assert rules_of(guardian)[rule_id]["acting"]
            victim.run(*["tc", "filter", "del", "dev", "v0", "ingress"])
            assert "detached its program from v0" in is_told(bench, guardian, rule_id, poll_until)
            guardian.demand(Repair(rule_id))
        assert rules_of(guardian)[rule_id]["acting"]
        assert not bench.path(4).passes()


def test_pin_that_cannot_be_read_is_told_and_keeps_no_guardian_from_starting(bench: XdpBench) -> None:
    pins = Path(f"/sys/fs/bpf/fwtop/{os.stat(f'/run/netns/{bench.netns}').st_ino}")
    with bench.connect() as guardian:
        other = apply(guardian, bench.block_rule(6))
        rule_id = apply(guardian, Rule("", Kind.XDP, Match(protocol=17, dport=PORT), "x", 600))
        link = next(pins.glob("link-*"))
        link.rename(pins / "aside")
        link.mkdir()  # bpf(2) opens no directory
        assert "can't be checked" in rules_of(guardian)[rule_id]["not_acting"]
        assert rules_of(guardian)[other]["acting"]
        with pytest.raises(FwtopError, match="can't be checked"):
            guardian.demand(Keep(rule_id))
    bench.kill_guardian()
    with bench.connect() as successor:
        assert set(rules_of(successor)) == {rule_id, other}
        link.rmdir()
        (pins / "aside").rename(link)
        successor.demand(Undo(all=True))


def test_sysctl_that_somebody_set_back(bench: Bench, poll_until) -> None:
    rule = Rule("", Kind.SYSCTL, Match(), "x", 600, settings=(Setting(TIMEOUT, 7),))
    victim = bench.pair.victim
    with bench.connect() as guardian:
        rule_id = apply(guardian, rule, 300)
        victim.run("sysctl", "-w", f"{TIMEOUT}=30")
        assert f"{TIMEOUT} to 30" in is_told(bench, guardian, rule_id, poll_until)
        with pytest.raises(FwtopError, match="does not act"):
            guardian.demand(Keep(rule_id))
        guardian.demand(Repair(rule_id))
        assert victim.run("sysctl", "-n", TIMEOUT).stdout.strip() == "7"
        assert rules_of(guardian)[rule_id]["acting"]


def test_lines_of_others_that_do_not_concern_a_rule_raise_no_alarm(bench: Bench) -> None:
    victim = bench.pair.victim
    with bench.connect() as guardian:
        rule_id = apply(guardian, bench.block_rule(4))
        for words in ("-s 198.51.100.1 -j ACCEPT", "-i lo -j ACCEPT", "-d 192.0.2.1 -j DROP"):
            victim.run("iptables", "-t", "raw", "-I", "PREROUTING", *words.split())
        assert rules_of(guardian)[rule_id]["acting"]


def test_a_flushed_chain_of_roles_is_told_and_repaired(bench: Bench, poll_until) -> None:
    """Without the roles, packets of listed addresses would all pass, or none of them."""
    nft = Rule("", Kind.NFTABLES, Match(family=4, protocol=17, dport=PORT), "x", 600)
    with bench.connect() as guardian:
        for rule, words, place in (
            (bench.block_rule(4), "iptables -t raw -F FWTOP-ROLES", "FWTOP-ROLES (IPv4)"),
            (nft, "nft flush chain netdev fwtop roles4", "roles4 in table netdev fwtop"),
        ):
            rule_id = apply(guardian, rule)
            bench.pair.victim.run(*words.split())
            assert f"the first lines of chain {place}" in is_told(bench, guardian, rule_id, poll_until)
            guardian.demand(Repair(rule_id))
            assert rules_of(guardian)[rule_id]["acting"]


def test_repaired_chain_spares_the_allow_list_again(bench: Bench) -> None:
    """`iptables -t raw -F` takes the lines of the allow-list, too: they must be back before any rule is."""
    bench.allow = f"{bench.attacker(4)}\n"
    rule = Rule("", Kind.NOTRACK, Match(protocol=17, dport=PORT, family=4), "x", 600)
    with bench.connect() as guardian:
        rule_id = apply(guardian, rule)
        chains = bench.pair.victim.run("iptables", "-t", "raw", "-S").stdout
        bench.pair.victim.run("iptables", "-t", "raw", "-F")
        guardian.demand(Repair(rule_id))
        assert bench.pair.victim.run("iptables", "-t", "raw", "-S").stdout == chains
