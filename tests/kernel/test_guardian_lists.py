"""Named lists: rules that share one, changes that packets see at once, and what a crash leaves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from guardian_bench import SOON_SECONDS, apply, rules_of
from msgspec.structs import replace
from xdp_bench import XdpBench

from fwtop.client.discovery import GuardianClient
from fwtop.guardian.failpoints import Failpoint
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.named_list import entries_of
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import ListChange, ListShow, ListTest, Undo
from fwtop.model.rule import Kind, Level, Match, Protection, Rule

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
        with pytest.raises(FwtopError, match="list bad has ports"):
            apply(guardian, replace(ports, protection=Protection(Level.CLOSED, ("bad",))))
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
