"""Whatever somebody does to the allow-list's sets, it is told, and nobody on the list is cut off by fwtop."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from fwtop.client.discovery import GuardianClient
from fwtop.model.protocol import Apply, Keep, Repair, Status, Undo
from fwtop.model.rule import Kind, Match, PayloadMatch, Rule
from tests.kernel.guardian_bench import (
    PORT,
    VARIANTS,
    Bench,
    Path4or6,
    apply,
    rules_of,
    run_console,
    seen_in_time,
    tcp_connection,
    use_variant,
)
from tests.kernel.xdp_bench import XdpBench

pytestmark = pytest.mark.kernel
BENCH = XdpBench
REFILLED_SECONDS = 60.0  # generous: the allow-list is compared every 5 s
KEYS = PayloadMatch(b"keystroke")
# Prefixes side by side, one inside another, at both ends of the address space, of both families
LISTED = (
    "198.51.100.0/25 198.51.100.128/25 198.51.100.7 0.0.0.0/8 255.255.255.255 192.0.2.1 192.0.2.2 "
    "2001:db8::/64 2001:db8:0:1::/64 2001:db8::5 ::2 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
)
IN_TABLE_RAW = Rule("", Kind.STRING, Match(protocol=17, dport=PORT, payload=(PayloadMatch(b"#"),)), "x", 300)
ANOTHER = replace(IN_TABLE_RAW.match, family=4)
AT_INGRESS = Rule("", Kind.NFTABLES, Match(protocol=17, dport=PORT), "x", 300)
ACTIONS: dict[str, Callable[[str], object]] = {
    "keep": Keep,
    "repair": Repair,
    "apply": lambda _: Apply(replace(IN_TABLE_RAW, match=ANOTHER).to_dict(), 0, force=True),
}


def allow_attacker(bench: Bench) -> None:
    bench.allow = "\n".join([bench.attacker(4), *LISTED.split(), ""])


def reason(guardian: GuardianClient, rule_id: str) -> str:
    return rules_of(guardian)[rule_id]["not_acting"]


@pytest.mark.parametrize("how", ACTIONS)
def test_allow_listed_host_passes_after_ipset_flush(bench: Bench, how: str) -> None:
    """A rule's sets are filled again only when those of the allow-list are."""
    allow_attacker(bench)
    path = bench.path(4)
    with bench.connect() as guardian:
        rule_id = apply(guardian, IN_TABLE_RAW, force=True)
        assert path.passes(wait_s=30)
        bench.pair.victim.run("ipset", "flush")
        guardian.demand(ACTIONS[how](rule_id))
        assert path.passes(wait_s=30)
        assert rules_of(guardian)[max(rules_of(guardian), key=int)]["acting"]
        guardian.demand(Undo(all=True))


@pytest.mark.parametrize("how", [Keep, Repair])
def test_ssh_session_outlives_ipset_flush(bench: Bench, monkeypatch, how: Callable[[str], object]) -> None:
    rule = Rule("", Kind.STRING, Match(protocol=6, payload=(KEYS,)), "x", 300)
    with tcp_connection(bench, 4) as (client, server):
        peer, local = client.getsockname(), client.getpeername()
        monkeypatch.setenv("SSH_CONNECTION", f"{peer[0]} {peer[1]} {local[0]} {local[1]}")
        console = run_console(bench, "pass")
        try:
            with bench.connect() as guardian:
                rule_id = apply(guardian, rule, force=True)
                for sets in ((), ("fwtop-allow-peers4",)):
                    bench.pair.victim.run("ipset", "flush", *sets)
                    guardian.demand(how(rule_id))
                    assert rules_of(guardian)[rule_id]["acting"]
                    client.send(b"keystroke")
                    assert received(server) == b"keystroke"
                guardian.demand(Undo(all=True))
        finally:
            console.kill()
            console.wait(10)
            console.stdin.close()
            console.stdout.close()


def received(server: socket.socket) -> bytes:
    server.settimeout(60)
    return server.recv(100)


UNPROMPTED = "flushed"
CHANGES = {
    "flushed": (IN_TABLE_RAW, "ipset flush fwtop-allow4", "fwtop-allow4"),
    "added": (IN_TABLE_RAW, "ipset add fwtop-allow4 10.9.9.9", "fwtop-allow4"),
    "exchanged": (
        IN_TABLE_RAW,
        "ipset del fwtop-allow4 192.0.2.1; ipset add fwtop-allow4 192.0.2.3",
        "fwtop-allow4",
    ),
    "known": (IN_TABLE_RAW, "ipset flush fwtop-known4", "fwtop-known4"),
    "nft known": (AT_INGRESS, "nft flush set netdev fwtop hosts4", "hosts4"),
    "nft networks": (AT_INGRESS, "nft flush set netdev fwtop nets6", "nets6"),
    "peer": (IN_TABLE_RAW, "ipset add fwtop-allow-peers4 10.77.0.2,udp:53", "fwtop-allow-peers4"),
    "gateway": (IN_TABLE_RAW, "ipset add fwtop-allow-gateways6 2001:db8::9", "fwtop-allow-gateways6"),
    "nft flushed": (AT_INGRESS, "nft flush set netdev fwtop allow4", "allow4"),
    "nft added": (AT_INGRESS, "nft add element netdev fwtop allow6 { 2001:db9::/32 }", "allow6"),
    "nft longer": (
        AT_INGRESS,
        "nft delete element netdev fwtop allow4 { 192.0.2.2 }; "
        "nft add element netdev fwtop allow4 { 192.0.2.2/31 }",
        "allow4",
    ),
    "nft peer": (AT_INGRESS, "nft add element netdev fwtop peers4 { 10.77.0.2 . tcp . 1 }", "peers4"),
    "nft gateway": (AT_INGRESS, "nft add element netdev fwtop gateways4 { 10.77.0.9 }", "gateways4"),
}


@pytest.mark.one_each("flushed", "exchanged", "known", "peer", "nft networks", "nft longer", "nft gateway")
@pytest.mark.parametrize("how", CHANGES)
def test_changed_allow_list_is_told_and_made_good(bench: Bench, how: str, poll_until) -> None:
    rule, commands, name = CHANGES[how]
    allow_attacker(bench)
    path = bench.path(4)
    with bench.connect() as guardian:
        rule_id = apply(guardian, rule, force=True)
        assert reason(guardian, rule_id) == ""

        def is_told() -> bool:
            """Change it again, as the next comparison may come before anybody asks."""
            bench.pair.victim.run("sh", "-c", commands, check=False)
            return f"set {name} of the allow-list" in reason(guardian, rule_id)

        poll_until(is_told, REFILLED_SECONDS, 0.5)
        if how != UNPROMPTED:  # an address that comes and goes has the list compared at once
            for verb in ("add", "del"):
                bench.pair.victim.run("ip", "address", verb, "198.18.99.1/32", "dev", "lo")
        poll_until(lambda: reason(guardian, rule_id) == "", REFILLED_SECONDS)
        assert path.passes(wait_s=30)
        bench.pair.victim.run("sh", "-c", commands, check=False)
        guardian.demand(Keep(rule_id))
        assert reason(guardian, rule_id) == ""
        assert path.passes(wait_s=30)
        guardian.demand(Undo(all=True))


@pytest.mark.one_each
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", [4, 6])
def test_blocked_source_that_comes_on_the_list_passes_until_it_goes(
    bench: Bench, family: int, variant: str, poll_until
) -> None:
    """Its rule's line moves behind the allow-list and back, and counts on."""
    use_variant(bench, variant)
    path, program = bench.path(family), f"{'iptables' if family == 4 else 'ip6tables'}-{variant}"

    def holds_line(chain: str) -> bool:
        return "fwtop-1-" in bench.pair.victim.run(program, "-t", "raw", "-S", chain).stdout

    with bench.connect() as guardian:
        rule_id = apply(guardian, bench.block_rule(family))

        def packets() -> int:
            return rules_of(guardian)[rule_id]["packets"]

        assert holds_line("FWTOP-SOURCES")
        poll_until(lambda: not path.passes() and packets(), REFILLED_SECONDS)
        (bench.directory / "allow").write_text(f"{bench.attacker(family)}\n")
        poll_until(lambda: holds_line("FWTOP-RULES"), REFILLED_SECONDS)
        assert path.passes(wait_s=30)
        assert not holds_line("FWTOP-SOURCES")
        assert reason(guardian, rule_id) == ""
        (bench.directory / "allow").write_text("")
        poll_until(lambda: holds_line("FWTOP-SOURCES"), REFILLED_SECONDS)
        before = packets()
        assert before >= 1
        assert not path.passes()
        poll_until(lambda: packets() == before + 1, REFILLED_SECONDS)
        assert reason(guardian, rule_id) == ""
        guardian.demand(Undo(all=True))
    assert path.passes(wait_s=30)


def elements(bench: Bench, name: str, flag: str = "") -> list[str]:
    """Return the elements of a timed set, or those with a flag."""
    listing = bench.pair.victim.run("ipset", "list", name).stdout
    return sorted(re.findall(rf"^(\S+) timeout \d+{flag}$", listing, re.MULTILINE))


@pytest.mark.one_each
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", [4, 6])
def test_rule_for_all_sources_spares_who_comes_on_the_list_until_it_goes(
    bench: Bench, family: int, variant: str, poll_until
) -> None:
    """Its enable set follows the list in one step, also where a crash left the copy of an earlier step."""
    use_variant(bench, variant)
    before, path, name = bench.state(), bench.path(family), f"fwtop-1-un{family}"

    def is_spared() -> bool:
        return bench.attacker(family) in elements(bench, name, " nomatch")

    with bench.connect() as guardian:
        rule_id = apply(guardian, IN_TABLE_RAW)
        poll_until(lambda: not path.passes(), REFILLED_SECONDS)
        inet = "inet" if family == 4 else "inet6"
        bench.pair.victim.run("ipset", "create", f"{name}-new", "hash:net", "family", inet)
        (bench.directory / "allow").write_text(f"{bench.attacker(family)}\n")
        poll_until(is_spared, REFILLED_SECONDS)
        assert all(path.passes(wait_s=30) for _ in range(3))
        assert reason(guardian, rule_id) == ""
        guardian.demand(Keep(rule_id))
        (bench.directory / "allow").write_text("")
        poll_until(lambda: not is_spared(), REFILLED_SECONDS)
        before_that = rules_of(guardian)[rule_id]["packets"]
        assert not path.passes()
        poll_until(lambda: rules_of(guardian)[rule_id]["packets"] > before_that, REFILLED_SECONDS)
        assert reason(guardian, rule_id) == ""
        guardian.demand(Undo(all=True))
    assert bench.settled(before) == before


def test_change_of_the_list_does_not_revive_a_flushed_rule(bench: Bench, poll_until) -> None:
    with bench.connect() as guardian:
        apply(guardian, IN_TABLE_RAW)
        assert elements(bench, "fwtop-1-un4") == ["0.0.0.0/1", "128.0.0.0/1"]
        bench.pair.victim.run("ipset", "flush", "fwtop-1-un4")
        both = f"{bench.attacker(4)}\n{bench.attacker(6)}\n"
        (bench.directory / "allow").write_text(both)
        poll_until(lambda: bench.attacker(6) in elements(bench, "fwtop-1-un6", " nomatch"), REFILLED_SECONDS)
        assert elements(bench, "fwtop-1-un4") == []
        guardian.demand(Undo(all=True))


def test_listed_host_is_spared_to_the_end_when_nothing_of_fwtop_lives(bench: Bench, poll_until) -> None:
    bench.allow = f"{bench.attacker(4)}\n"
    listed, other = bench.path(4), bench.path(6)

    def install(seconds: int) -> None:
        with bench.connect() as guardian:
            poll_until(lambda: not rules_of(guardian))
            apply(guardian, replace(IN_TABLE_RAW, ttl_seconds=seconds), force=True)
        bench.kill_guardian()

    def is_over() -> bool:
        assert listed.passes(wait_s=30)
        return other.passes()

    assert seen_in_time(install, lambda: not other.passes())
    poll_until(is_over)


def test_too_long_list_keeps_no_gateway_from_passing_compiled_rules(bench: XdpBench, poll_until) -> None:
    """What passes in a role is updated even if the operator's list is too long; the warnings tell."""
    port = 3784
    path = Path4or6(bench.pair, 4, port)  # BFD
    try:
        with bench.connect() as guardian:
            apply(guardian, Rule("", Kind.XDP, Match(protocol=17, dport=port), "x", 300), force=True)
            assert not path.passes()
            allowed = "".join(f"198.18.{number >> 8}.{number & 255}\n" for number in range(4097))
            (bench.directory / "allow").write_text(allowed)
            poll_until(lambda: "not 4,097" in " ".join(guardian.demand(Status()).data["warnings"]))
            bench.pair.victim.run("ip", "route", "add", "default", "via", bench.attacker(4))
            poll_until(path.passes)
            (bench.directory / "allow").write_text("")
            poll_until(lambda: guardian.demand(Status()).data["warnings"] == [])
    finally:
        path.close()


def test_what_is_wrong_with_the_list_is_told_once(bench: Bench) -> None:
    """By the status, and with each rule that is installed."""
    bench.allow = "192.0.2.1\nnonsense\n"
    with bench.connect() as guardian:
        answer = guardian.demand(Apply(IN_TABLE_RAW.to_dict(), 0, force=True))
        for warnings in (answer.data["warnings"], guardian.demand(Status()).data["warnings"]):
            assert sum("line 2 is ignored" in line for line in warnings) == 1
        guardian.demand(Undo(all=True))
