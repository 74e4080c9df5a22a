"""Named lists: rules that share one, changes that packets see at once, and what a crash leaves."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence

import pytest
from guardian_bench import SOON_SECONDS, apply, rules_of
from msgspec.structs import replace
from xdp_bench import XdpBench

from fwtop.client.discovery import GuardianClient
from fwtop.console.guardian_link import GuardianLink
from fwtop.guardian.failpoints import Failpoint
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.named_list import entries_of
from fwtop.model.addresses.prefix_list import entry_texts
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import ListChange, ListRead, ListShow, ListTest, RuleMode, Undo, Why
from fwtop.model.rule import ConnectionLimit, Kind, Level, Match, Protection, RateLimit, Rule

pytestmark = pytest.mark.kernel
BENCH = XdpBench
KINDS = (Kind.IPSET, Kind.XDP, Kind.TC, Kind.NFTABLES)
FAMILIES = (4, 6)
OTHERS = ("198.51.100.0/24", "2001:db8:7::/48")


def on_list(kind: Kind, name: str = "bad", ttl: int = 600) -> Rule:
    return Rule("", kind, Match(), f"block list {name}", ttl, origin=f"list:{name}")


def change(guardian: GuardianClient, action: str, *entries: str, ttl: int | None = None) -> dict:
    prefixes: Sequence[Prefix] = tuple(map(Prefix.parse, entries))
    return guardian.change_list(ListChange("bad", action, ttl), prefixes).data


def passing(bench: XdpBench) -> tuple[bool, bool]:
    return bench.path(4).passes(), bench.path(6).passes()


@pytest.mark.one_each("ipset", "xdp", "nftables")
@pytest.mark.parametrize("kind", KINDS)
def test_passes_is_blocked_by_the_list_and_passes_again(bench: XdpBench, kind: Kind) -> None:
    before = bench.state()
    attacker = [bench.attacker(family) for family in FAMILIES]
    with bench.connect() as guardian:
        change(guardian, "create")
        rule_id = apply(guardian, on_list(kind))
        assert passing(bench) == (True, True), "an empty list blocks nobody"
        change(guardian, "add", attacker[0], *OTHERS)
        assert passing(bench) == (False, True)
        change(guardian, "add", attacker[1])
        assert passing(bench) == (False, False)
        counted = int(rules_of(guardian)[rule_id]["packets"])
        assert counted >= 2
        change(guardian, "remove", attacker[0], "203.0.113.9")
        assert passing(bench) == (True, False)
        change(guardian, "replace", *OTHERS)
        assert passing(bench) == (True, True)
        with pytest.raises(FwtopError, match=rf"used by rule {rule_id}"):
            change(guardian, "delete")
        over = guardian.demand(Undo((rule_id,))).data["rules"][0]
        assert int(over["packets"]) > counted, "the rule's counter goes on"
        change(guardian, "delete")
    assert bench.settled(before) == before


def change_ports(guardian: GuardianClient, action: str, *entries: str) -> dict:
    return guardian.change_list(ListChange("bad", action), entries_of(entries)).data


def near(bench: XdpBench) -> tuple[str, ...]:
    """Return entries that the attacker's packets just miss."""
    four, six = (bench.attacker(family) for family in FAMILIES)
    return f"{four}:5352/udp", f"{four}:5353/tcp", f"[{six}]:5354-5400/udp", "198.51.100.0/24:5353/udp"


@pytest.mark.one_each("ipset", "xdp", "nftables")
@pytest.mark.parametrize("kind", KINDS)
def test_what_an_address_sends_to_a_port_is_blocked_and_nothing_else(bench: XdpBench, kind: Kind) -> None:
    before = bench.state()
    four, six = (bench.attacker(family) for family in FAMILIES)
    with bench.connect() as guardian:
        change_ports(guardian, "create", *near(bench))
        rule_id = apply(guardian, on_list(kind))
        assert passing(bench) == (True, True)
        change_ports(guardian, "add", f"{four}/31:5300-5360/udp", f"[{six}]:5353/udp")
        assert passing(bench) == (False, False)
        status = rules_of(guardian)[rule_id]
        assert int(status["packets"]) == 2
        assert status["acting"], status["not_acting"]
        change_ports(guardian, "remove", f"{four}/31:5300-5360/udp", f"[{six}]:5353/udp")
        assert passing(bench) == (True, True)
        guardian.demand(Undo((rule_id,)))
        change_ports(guardian, "delete")
    assert bench.settled(before) == before


@pytest.mark.parametrize("kind", [Kind.IPSET, Kind.NFTABLES])
def test_ranges_that_overlap_and_lists_of_one_kind(bench: XdpBench, kind: Kind) -> None:
    four = bench.attacker(4)
    with bench.connect() as guardian:
        change_ports(guardian, "create", f"{four}/31:5300-5360/udp", f"{four}:5353/udp")
        rule_id = apply(guardian, on_list(kind))
        for text, holder in (
            (f"{four}:5353/udp", f"{four}:5353/udp"),
            (f"{four}:5301/udp", "/31:5300-5360/udp"),
        ):
            assert guardian.demand(ListTest("bad", text)).data["entry"].endswith(holder)
        change_ports(guardian, "remove", f"{four}/31:5300-5360/udp")
        assert not bench.path(4).passes(), "one more entry has this port"
        many = [f"100.64.{number >> 8}.{number & 255}:5000-5009/udp" for number in range(700)]
        change_ports(
            guardian, "replace", f"{four}:5353/udp", *many
        )  # a set is built aside where that is faster
        assert not bench.path(4).passes()
        change_ports(guardian, "replace", *near(bench))
        assert passing(bench) == (True, True)
        with pytest.raises(FwtopError, match="list bad holds addresses with ports"):
            change(guardian, "add", "192.0.2.1")
        ports = Rule("", Kind.PROTECT, Match(protocol=6, dport=80), "x", 600)
        with pytest.raises(FwtopError, match="list bad holds addresses with ports"):
            apply(guardian, replace(ports, protection=Protection(Level.CLOSED, ("bad",))))
        guardian.demand(Undo((rule_id,)))
        change_ports(guardian, "delete")


def pairs_of(bench: XdpBench, to: int = 0) -> list[str]:
    """Return a pair of attacker and victim in each family, or of the attacker and an address beside."""
    found = []
    for family in FAMILIES:
        victim = Prefix.parse(bench.pair.victim.ipv4 if family == 4 else bench.pair.victim.ipv6)
        found.append(f"{bench.attacker(family)},{replace_address(victim, to)}")
    return found


def replace_address(prefix: Prefix, by: int) -> Prefix:
    return Prefix(prefix.family, prefix.value + by, prefix.length)


@pytest.fixture(params=[Kind.IPSET, Kind.NFTABLES])
def pair_kind(request) -> Kind:
    """A way to look pairs up; hash:net,net is a module that not every kernel has."""
    if request.param is Kind.IPSET:
        made = subprocess.run(
            ["ipset", "create", "fw-probe", "hash:net,net"], capture_output=True, check=False
        )
        subprocess.run(["ipset", "destroy", "fw-probe"], capture_output=True, check=False)
        if made.returncode:
            pytest.skip("this kernel has no hash:net,net (scripts/vm.sh runs Debian's, which has)")
    return request.param


def test_what_goes_from_one_network_to_another_is_blocked_and_nothing_else(
    bench: XdpBench, pair_kind: Kind, poll_until
) -> None:
    before = bench.state()
    four, six = pairs_of(bench)
    with bench.connect() as guardian:
        change_ports(guardian, "create", *pairs_of(bench, 1), "198.51.100.0/24,0.0.0.0/0")
        rule_id = apply(guardian, on_list(pair_kind))
        assert passing(bench) == (True, True), "the attacker, but to others"
        change_ports(guardian, "add", four)
        assert passing(bench) == (False, True)
        change_ports(guardian, "add", six)
        assert passing(bench) == (False, False)
        poll_until(lambda: int(rules_of(guardian)[rule_id]["packets"]) == 3)
        status = rules_of(guardian)[rule_id]
        assert status["acting"], status["not_acting"]
        counts = guardian.demand(ListRead("bad", 0, 10, counters=True)).data["entries"]
        assert {text: packets for text, _, packets in counts if packets} == {four: 2, six: 1}
        guardian.demand(RuleMode((rule_id,), "count"))
        assert passing(bench) == (True, True)
        poll_until(lambda: int(rules_of(guardian)[rule_id]["packets"]) == 5)  # it counts what it would drop
        assert any("second of a pair" in line for line in guardian.demand(Why(rule_id)).data["sentences"])
        assert guardian.demand(ListShow("bad")).data["lists"][0]["pairs"]
        assert (
            guardian.demand(ListTest("bad", "198.51.100.7,9.9.9.9")).data["entry"]
            == "198.51.100.0/24,0.0.0.0/0"
        )
        many = [f"100.64.{number >> 8}.{number & 255},10.0.0.0/8" for number in range(5000)]
        guardian.demand(RuleMode((rule_id,), "drop", confirm_seconds=0))
        change_ports(guardian, "replace", *many[:4000], four)  # built aside, and swapped in
        assert passing(bench) == (False, True)
        bench.kill_guardian()
    assert passing(bench) == (False, True)
    with bench.connect() as guardian:
        status = rules_of(guardian)[rule_id]
        assert status["acting"], status["not_acting"]
        everywhere = f"{bench.attacker(4)},0.0.0.0/0"
        change_ports(guardian, "replace", everywhere)
        assert passing(bench) == (False, True)
        counts = guardian.demand(ListRead("bad", 0, 10, counters=True)).data["entries"]
        assert [(text, packets) for text, _, packets in counts] == [(everywhere, 1)]
        change_ports(guardian, "remove", everywhere)
        assert passing(bench) == (True, True)
        guardian.demand(Undo((rule_id,)))
        change_ports(guardian, "delete")
    assert bench.settled(before) == before


LIMIT, UDP_53 = RateLimit(9, 9), Match(protocol=17, dport=53)
NO_LIST = "a named list goes with"
TAKES_NO_PAIRS = {  # each kind that a list of pairs does not go with
    Kind.XDP: (on_list(Kind.XDP), "looks up no pairs"),
    Kind.TC: (replace(on_list(Kind.TC), limit=LIMIT), "looks up no pairs"),
    Kind.HASHLIMIT: (replace(on_list(Kind.HASHLIMIT), limit=LIMIT), NO_LIST),
    Kind.STRING: (on_list(Kind.STRING), NO_LIST),
    Kind.NOTRACK: (replace(on_list(Kind.NOTRACK), match=UDP_53), NO_LIST),
    Kind.SYNPROXY: (
        replace(on_list(Kind.SYNPROXY), match=Match(protocol=6, dport=80)),
        "a named list goes with",
    ),
    Kind.CONNLIMIT: (
        replace(on_list(Kind.CONNLIMIT), connections=ConnectionLimit(9)),
        "a named list goes with",
    ),
    Kind.PROTECT: (
        Rule("", Kind.PROTECT, UDP_53, "x", 600, protection=Protection(Level.PROTECTED, ("bad",))),
        "an access list holds addresses",
    ),
}


def test_pairs_are_refused_where_nothing_can_look_them_up(bench: XdpBench) -> None:
    assert {*TAKES_NO_PAIRS, Kind.IPSET, Kind.NFTABLES} == {*Kind} - {Kind.SYSCTL, Kind.HARDEN}
    with bench.connect() as guardian:
        change_ports(guardian, "create", "10.0.0.0/8,192.0.2.9", "10.1.0.0/16,192.0.2.0/24")
        overlapping = (on_list(Kind.NFTABLES), "that overlap as 10.0.0.0/8,192.0.2.9")
        for rule, why in (*TAKES_NO_PAIRS.values(), overlapping):
            with pytest.raises(FwtopError, match=why):
                apply(guardian, rule)
        change_ports(guardian, "remove", "10.0.0.0/8,192.0.2.9")
        rule_id = apply(guardian, on_list(Kind.NFTABLES))
        with pytest.raises(FwtopError, match="that overlap"):
            change_ports(guardian, "add", "10.0.0.0/8,192.0.2.9")
        assert rules_of(guardian)[rule_id]["acting"]
        guardian.demand(Undo((rule_id,)))
        change_ports(guardian, "delete")


LISTED = {
    "many": [f"100.64.{number >> 8}.{number & 255}" for number in range(5_000)],
    "ports": ["192.0.2.7:443/tcp", "10.0.0.0/8:8000-8100/udp"],
    "pairs": ["192.0.2.0/24,198.51.100.7"],
}


@pytest.mark.parametrize("case", LISTED)
def test_a_console_reads_all_that_a_rule_on_a_list_matches(bench: XdpBench, case: str) -> None:
    """Else it would take what a counting rule counts for everybody's."""
    kind = Kind.NFTABLES if case == "pairs" else Kind.IPSET
    with bench.connect() as guardian, bench.connect("console") as console:
        change_ports(guardian, "create", *LISTED[case])
        rule_id = apply(guardian, on_list(kind))
        link = GuardianLink(socket.socket(fileno=os.dup(console._connection.fileno())))
        whole = link.whole_rule(rule_id)
        link.close()
        assert sorted(entry_texts(whole.match.sources)) == sorted(LISTED[case])
        guardian.demand(Undo((rule_id,)))
        change_ports(guardian, "delete")


def test_many_rules_share_a_list_in_each_mechanism(bench: XdpBench) -> None:
    before = bench.state()
    with bench.connect() as guardian:
        change(guardian, "create", bench.attacker(4))
        kinds = (Kind.IPSET, Kind.IPSET, Kind.NFTABLES, Kind.NFTABLES, Kind.XDP, Kind.XDP)
        families = (None, 4, None, 4, None, 4)  # the same rule twice would be refused
        rules = [
            replace(on_list(kind), match=Match(family=of)) for kind, of in zip(kinds, families, strict=True)
        ]
        ids = [apply(guardian, rule) for rule in rules]
        tables = bench.pair.victim.run("nft", "list", "sets", "netdev").stdout
        assert tables.count("list-bad-") == 2
        sets = bench.pair.victim.run("ipset", "list", "-n").stdout.split()
        assert [name for name in sets if "-list-" in name] == ["fwtop-list-bad-4", "fwtop-list-bad-6"]
        told = guardian.demand(ListShow("bad")).data["lists"][0]
        assert told["rules"] == ids
        assert told["kernel_bytes"] > 0
        assert not bench.path(4).passes()
        guardian.demand(Undo((ids[2], *ids[4:])))
        guardian.demand(Undo((ids[3],)))
        assert not bench.path(4).passes(), "the ipset rules still have the list"
        change(guardian, "remove", bench.attacker(4))
        assert bench.path(4).passes(wait_s=30)
        guardian.demand(Undo(all=True))
        change(guardian, "delete")
    assert bench.settled(before) == before


@pytest.mark.one_each
@pytest.mark.parametrize("kind", [Kind.IPSET, Kind.XDP, Kind.NFTABLES])
@pytest.mark.parametrize("more", [4, 5000])
def test_entries_that_stay_keep_their_counters(bench: XdpBench, kind: Kind, more: int) -> None:
    """A small change goes into the set, a large one builds it anew."""
    added = [f"100.64.{number >> 8}.{number & 255}" for number in range(more)]
    with bench.connect() as guardian:
        change(guardian, "create", bench.attacker(4))
        apply(guardian, on_list(kind))
        for _ in range(3):
            assert not bench.path(4).passes(wait_s=0.01)
        change(guardian, "add", *added)
        assert not bench.path(4).passes()
        told = guardian.demand(ListShow("bad")).data["lists"][0]
        assert told["busiest"][bench.attacker(4)] == 4
        change(guardian, "remove", *added)
        told = guardian.demand(ListShow("bad")).data["lists"][0]
        assert told["ipv4"] == 1


def test_entries_end_by_their_time_to_live(bench: XdpBench, poll_until) -> None:
    with bench.connect() as guardian:
        change(guardian, "create", bench.attacker(6))
        change(guardian, "add", bench.attacker(4), ttl=SOON_SECONDS)
        apply(guardian, on_list(Kind.IPSET))
        assert passing(bench) == (False, False)
        found = guardian.demand(ListTest("bad", bench.attacker(4))).data
        assert 0 < found["seconds_left"] <= SOON_SECONDS
        poll_until(lambda: bench.path(4).passes(wait_s=0.2))
        assert passing(bench) == (True, False)
        assert guardian.demand(ListTest("bad", bench.attacker(4))).data["entry"] is None


def test_the_allow_list_wins(bench: XdpBench) -> None:
    bench.allow = f"{bench.attacker(4)}\n"
    with bench.connect() as guardian:
        change(guardian, "create", "10.77.0.0/24", bench.attacker(6))
        for kind in KINDS:
            apply(guardian, on_list(kind))
        assert passing(bench) == (True, False)


def test_what_contradicts_itself_is_refused(bench: XdpBench) -> None:
    with bench.connect() as guardian:
        change(guardian, "create", *OTHERS)
        rule_id = apply(guardian, on_list(Kind.IPSET))
        wrong = {
            ListRead("bad", -1, 5): "first goes from 0",
            ListRead("bad", 0, -5): "count goes from 0",
            Undo((rule_id,), all=True): "undo takes ids, or all",
            Undo(): "undo takes ids, or all",
        }
        for request, words in wrong.items():
            with pytest.raises(FwtopError, match=words):
                guardian.demand(request)
        assert rule_id in rules_of(guardian)
        assert len(guardian.demand(ListRead("bad", 0, 20_000)).data["entries"]) == 2
        guardian.demand(Undo((rule_id,)))
        change(guardian, "delete")


def test_large_sets_shrink_after_a_mass_removal(bench: XdpBench) -> None:
    many = [f"100.{64 + (number >> 16)}.{number >> 8 & 255}.{number & 255}" for number in range(40_000)]
    with bench.connect() as guardian:
        change(guardian, "create", bench.attacker(4), *many)
        apply(guardian, on_list(Kind.IPSET))
        large = guardian.demand(ListShow("bad")).data["lists"][0]["kernel_bytes"]
        change(guardian, "remove", *many)
        small = guardian.demand(ListShow("bad")).data["lists"][0]["kernel_bytes"]
        assert small * 20 < large
        assert not bench.path(4).passes()


CRASHES = {
    Failpoint.LIST_PREPARED: False,
    Failpoint.LIST_RECORDED: False,
    Failpoint.LIST_COMPILED: False,
    Failpoint.LIST_CHANGED: False,
    Failpoint.LIST_DONE: True,
}


@pytest.mark.one_each
@pytest.mark.parametrize("kind", [Kind.IPSET, Kind.XDP, Kind.NFTABLES])
@pytest.mark.parametrize("failpoint", CRASHES)
def test_kill_in_the_middle_leaves_the_old_list_or_the_new_one(
    bench: XdpBench, failpoint: Failpoint, kind: Kind
) -> None:
    with bench.connect(crash_at=failpoint.value) as guardian:
        change(guardian, "create", bench.attacker(4), *OTHERS)
        apply(guardian, on_list(kind))
        assert passing(bench) == (False, True)
        with pytest.raises(FwtopError, match="ended before it answered"):
            change(guardian, "replace", bench.attacker(6), *OTHERS)
    with bench.connect() as successor:
        is_new = CRASHES[failpoint]
        told = successor.demand(ListShow("bad")).data["lists"][0]
        assert (told["ipv4"], told["ipv6"]) == ((1, 2) if is_new else (2, 1))
        assert passing(bench) == (is_new, not is_new)
        assert all(item["acting"] for item in rules_of(successor).values())
        change(successor, "replace", *OTHERS)
        assert passing(bench) == (True, True)
        left = bench.pair.victim.run("ipset", "list", "-n").stdout
        assert "fwtop-new-" not in left


def test_crash_after_a_list_was_made(bench: XdpBench) -> None:
    with (
        bench.connect(crash_at=Failpoint.LIST_CREATED.value) as guardian,
        pytest.raises(FwtopError, match="ended before it answered"),
    ):
        change(guardian, "create", *OTHERS)
    with bench.connect() as successor:
        assert successor.demand(ListShow()).data["lists"][0]["name"] == "bad"


def test_lists_survive_their_guardian(bench: XdpBench) -> None:
    with bench.connect() as guardian:
        change(guardian, "create", *OTHERS)
        change(guardian, "add", bench.attacker(4))
        apply(guardian, on_list(Kind.IPSET))
        apply(guardian, on_list(Kind.XDP))
        apply(guardian, on_list(Kind.NFTABLES))
    bench.kill_guardian()
    assert not bench.path(4).passes()
    with bench.connect() as successor:
        assert all(item["acting"] for item in rules_of(successor).values())
        change(successor, "remove", bench.attacker(4))
        assert bench.path(4).passes(wait_s=30)
        change(successor, "add", bench.attacker(4))
        assert not bench.path(4).passes()


def test_what_a_rule_may_not_have_is_refused_as_a_whole(bench: XdpBench) -> None:
    with bench.connect() as guardian:
        change(guardian, "create", *OTHERS)
        apply(guardian, on_list(Kind.IPSET))
        with pytest.raises(FwtopError, match="/0 is everybody"):
            change(guardian, "add", bench.attacker(4), "0.0.0.0/0")
        with pytest.raises(FwtopError, match=r"broader than /8"):
            change(guardian, "add", bench.attacker(4), "96.0.0.0/4")
        assert passing(bench) == (True, True)
        assert guardian.demand(ListShow("bad")).data["lists"][0]["ipv4"] == 1


def test_nested_entries_at_netdev_ingress(bench: XdpBench) -> None:
    """nftables refuses prefixes inside others: a set has the outermost, whatever comes and goes."""
    address = bench.attacker(4)
    with bench.connect() as guardian:
        change(guardian, "create", address)
        rule_id = apply(guardian, on_list(Kind.NFTABLES))
        change(guardian, "add", "10.77.0.0/24", "10.77.0.0/30")
        assert not bench.path(4).passes()
        change(guardian, "remove", "10.77.0.0/24")
        assert not bench.path(4).passes()
        change(guardian, "replace", "10.77.0.0/16")
        assert not bench.path(4).passes()
        change(guardian, "replace", "10.77.1.0/24", "10.78.0.0/16")
        assert bench.path(4).passes(wait_s=30)
        assert rules_of(guardian)[rule_id]["acting"]
        with pytest.raises(FwtopError, match="takes up to 10,000"):
            change(guardian, "add", *(f"100.64.{number >> 8}.{number & 255}" for number in range(10_001)))
        assert guardian.demand(ListShow("bad")).data["lists"][0]["ipv4"] == 2
