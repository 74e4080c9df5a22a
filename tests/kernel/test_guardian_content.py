"""Rules that somebody neutralised without taking them away: told within 2 s, not confirmed, and repaired.

Each tampering leaves what is counted (sets, lines, their targets) as it was, or nearly so.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from guardian_bench import PORT, VARIANTS, apply, rules_of, use_variant
from msgspec import Struct
from test_guardian_lists import change, on_list
from xdp_bench import XdpBench

from fwtop.kernel import bpf
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Keep, Repair, Undo
from fwtop.model.rule import (
    ConnectionLimit,
    Kind,
    Level,
    Match,
    PayloadMatch,
    Protection,
    RateLimit,
    Rule,
)
from fwtop.xdp.maps import ALLOW_BYTES, MAX_RULES, SLOT_BYTES
from tests.kernel.wire import connects, inside

pytestmark = pytest.mark.kernel
BENCH = XdpBench
ATTACKER, NET, OTHER = map(Prefix.parse, ("10.77.0.2", "10.77.0.0/24", "198.51.100.7"))
TO_PORT = Match(family=4, protocol=17, dport=PORT)
WEB = 8080
RAW = "iptables -t raw"
ASK = "-m set --match-set fwtop-1-4 src"
HASH = "-m hashlimit --hashlimit-above 1000000/sec --hashlimit-mode srcip --hashlimit-name mine -j DROP"
NETDEV = "netdev fwtop"
WATCH = "add table inet t { chain c { type filter hook input priority 0; ct state new counter; }; }"


def rule(kind: Kind, match: Match = TO_PORT, **more: object) -> Rule:
    return Rule("", kind, match, "x", 120, **more)


def sources(*prefixes: Prefix) -> Match:
    return Match(sources=prefixes)


RULES = {
    "block": rule(Kind.IPSET, sources(ATTACKER, OTHER)),
    "net": rule(Kind.IPSET, sources(NET)),
    "long": rule(Kind.IPSET, sources(ATTACKER, *(Prefix(4, 0x0B000000 + n * 512, 32) for n in range(5000)))),
    "list": on_list(Kind.IPSET),
    "limit": rule(Kind.HASHLIMIT, limit=RateLimit(1, 1)),
    "string": rule(Kind.STRING, Match(family=4, protocol=17, payload=(PayloadMatch(b"evil"),))),
    "notrack": rule(Kind.NOTRACK),
    "protect": rule(
        Kind.PROTECT, Match(protocol=17, dport=PORT), protection=Protection(Level.PROTECTED, ("bad",))
    ),
    "ingress": rule(Kind.NFTABLES),
    "ingress_sources": rule(Kind.NFTABLES, sources(ATTACKER, OTHER)),
    "ingress_list": on_list(Kind.NFTABLES),
    "connections": rule(
        Kind.CONNLIMIT, Match(family=4, protocol=6, dport=WEB), connections=ConnectionLimit(1)
    ),
    "proxy": rule(Kind.SYNPROXY, Match(family=4, protocol=6, dport=WEB)),
    "xdp": rule(Kind.XDP),
    "xdp_list": on_list(Kind.XDP),
    "tc": rule(Kind.TC),
}
IN_RAW = {
    "block": {
        "interface": f"{RAW} -R FWTOP-SOURCES 1 -i lo {ASK} -j DROP",
        "target": f"{RAW} -R FWTOP-SOURCES 1 {ASK} -j RETURN",
        "earlier": f"{RAW} -I FWTOP-SOURCES 1 {ASK} -j ACCEPT",
        "passing first": f"{RAW} -R FWTOP 1 -j RETURN",
        "accept in each chain": f"{RAW} -I FWTOP 1 -j ACCEPT; {RAW} -I FWTOP-SOURCES 1 -j ACCEPT",
        "swapped element": "ipset del fwtop-1-4 10.77.0.2; ipset add fwtop-1-4 198.51.100.8",
        "nomatch": "ipset -exist add fwtop-1-4 10.77.0.2 nomatch",
        "swapped set": "ipset create mine hash:net timeout 9 counters; ipset swap mine fwtop-1-4",
    },
    "net": {"nomatch": "ipset add fwtop-1-4 10.77.0.2 nomatch"},
    "long": {
        "swapped element": "ipset del fwtop-1-4 10.77.0.2; ipset add fwtop-1-4 198.51.100.8",
        "nomatch": "ipset -exist add fwtop-1-4 10.77.0.2 nomatch",
        "switch": "ipset flush fwtop-1-on4",
    },
    "list": {
        "swapped element": "ipset del fwtop-list-bad-4 10.77.0.2; ipset add fwtop-list-bad-4 198.51.100.8",
        "deleted element": "ipset del fwtop-list-bad-4 10.77.0.2",
        "target": f"{RAW} -R FWTOP-RULES 1 -m set --match-set fwtop-list-bad-4 src "
        "-m set --match-set fwtop-1-on4 src -j RETURN",
    },
    "limit": {
        "rate": f"{RAW} -R FWTOP-SOURCES 1 -p udp --dport {PORT} -m set --match-set fwtop-1-un4 src {HASH}",
        "switch": "ipset add fwtop-1-un4 10.77.0.2 nomatch",
    },
    "string": {"switch": "ipset add fwtop-1-un4 10.77.0.2 nomatch"},
    "notrack": {"target": f"{RAW} -R FWTOP-RULES 1 -m set --match-set fwtop-1-on4 src -j RETURN"},
    "protect": {
        "switch": "ipset flush fwtop-1-on4",
        "level": "ipset add fwtop-1-pass4 0.0.0.0/1 timeout 60",
        "entry": "ipset add fwtop-list-bad-4 10.77.0.2",
        "open": "ipset add fwtop-1-on4 10.77.0.2 nomatch",
        "earlier": f"{RAW} -I FWTOP-PORTS 1 -j ACCEPT",
    },
}
ELSEWHERE = {
    "ingress": {
        **{
            f"accept in {chain}": f"nft insert rule {NETDEV} {chain} accept"
            for chain in ("rules4", "r1-4", "listed4", "in-INDEX")
        },
        "accept in each chain": "; ".join(
            f"nft insert rule {NETDEV} {chain} accept" for chain in ("rules4", "r1-4", "listed4", "in-INDEX")
        ),
        "edited": f"nft replace rule {NETDEV} rules4 handle HANDLE accept comment fwtop-1",
        "roles": f"nft insert rule {NETDEV} roles4 accept",
    },
    "ingress_sources": {
        "swapped element": f"nft delete element {NETDEV} r1-src4 {{ 10.77.0.2 }}; "
        f"nft add element {NETDEV} r1-src4 {{ 198.51.100.8 }}",
    },
    "ingress_list": {
        "swapped element": f"nft delete element {NETDEV} list-bad-4 {{ 10.77.0.2 }}; "
        f"nft add element {NETDEV} list-bad-4 {{ 198.51.100.8 }}",
        "deleted element": f"nft delete element {NETDEV} list-bad-4 {{ 10.77.0.2 }}",
    },
    "connections": {"accept": "nft insert rule inet fwtop-connections new accept"},
    "proxy": {"accept": "nft insert rule inet fwtop-synproxy in accept"},
    "xdp": {"detached": "LINK", "slots": "slots"},
    "tc": {"detached": "LINK", "slots": "slots"},
    "xdp_list": {"detached": "LINK"},
}
CASES = [
    *((how, damage, variant) for variant in VARIANTS for how in IN_RAW for damage in IN_RAW[how]),
    *((how, damage, "nft") for how in ELSEWHERE for damage in ELSEWHERE[how]),
]
ONE_EACH = {
    ("block", "target", "legacy"),
    ("net", "nomatch", "nft"),
    ("long", "swapped element", "nft"),
    ("list", "swapped element", "nft"),
    ("limit", "rate", "nft"),
    ("protect", "level", "nft"),
    ("ingress", "edited", "nft"),
    ("ingress_list", "swapped element", "nft"),
}
MARKED = [
    pytest.param(*case, id="-".join(case), marks=() if case in ONE_EACH else (pytest.mark.matrix,))
    for case in CASES
]
HARMLESS = {("ingress", "roles")}  # as no probe here meets them


class Probe(Struct):
    """Whether a rule acts, by packets."""

    bench: XdpBench
    how: str
    stack: ExitStack

    def __post_init__(self) -> None:
        if self.how == "connections":
            with inside(self.bench.netns):
                self.stack.enter_context(socket.create_server((self.bench.pair.victim.ipv4, WEB)))
        if self.how == "notrack":
            self.bench.pair.victim.run("nft", WATCH)

    def acts(self) -> bool:
        if self.how == "connections":
            return self._connections() < 2
        if self.how == "proxy":
            before = self._cookies()
            self._connections()
            return self._cookies() > before
        if self.how == "notrack":
            self.bench.pair.victim.run("conntrack", "-F")  # else some may be over meanwhile
            before = self._entries()
            with inside(self.bench.pair.attacker.netns), socket.socket(type=socket.SOCK_DGRAM) as sender:
                sender.sendto(b"?", (self.bench.pair.victim.ipv4, PORT))
            assert self.bench.path(4).passes(wait_s=30)
            return self._entries() == before
        payload = b"evil" if self.how == "string" else b""
        return not all(self.bench.path(4).passes(payload, wait_s=0.5) for _ in range(4))

    def _connections(self) -> int:
        with ExitStack() as opened, suppress(OSError):
            for count in range(2):
                with inside(self.bench.pair.attacker.netns):
                    client = opened.enter_context(socket.socket())
                if not connects(client, (self.bench.pair.victim.ipv4, WEB), 0.5):
                    return count
            return 2
        return count

    def _cookies(self) -> int:
        lines = self.bench.pair.victim.run("cat", "/proc/net/stat/synproxy", check=False).stdout.splitlines()
        return sum(int(line.split()[1], 16) for line in lines[1:])

    def _entries(self) -> int:
        return int(self.bench.pair.victim.run("sysctl", "-n", "net.netfilter.nf_conntrack_count").stdout)


def pins(bench: XdpBench) -> Path:
    return Path(f"/sys/fs/bpf/fwtop/{os.stat(f'/run/netns/{bench.netns}').st_ino}")


def fill_map(bench: XdpBench, name: str, value: bytes) -> bytes:
    """Write into a pinned map of one value; return what was in it."""
    descriptor = bpf.open_pin(pins(bench) / name)
    before = bpf.get_element(descriptor, bytes(4), len(value))
    bpf.set_element(descriptor, bytes(4), value)
    os.close(descriptor)
    return before


def do_damage(bench: XdpBench, words: str) -> None:
    if words == "LINK":  # by its id: the pin stays
        link = str(next(pins(bench).glob("link-*")))
        shown = subprocess.run(
            ["bpftool", "-j", "link", "show", "pinned", link], capture_output=True, check=True
        )
        number = str(json.loads(shown.stdout)["id"])
        subprocess.run(["bpftool", "link", "detach", "id", number], check=True, timeout=20)
    elif words == "slots":
        fill_map(bench, words, bytes(SLOT_BYTES * MAX_RULES))
    else:
        victim = bench.pair.victim
        if "INDEX" in words:
            words = words.replace("INDEX", victim.run("cat", "/sys/class/net/v0/ifindex").stdout.strip())
        if "HANDLE" in words:
            listed = json.loads(victim.run("nft", "-j", "list", "chain", *NETDEV.split(), "rules4").stdout)
            handle = next(item["rule"]["handle"] for item in listed["nftables"] if "rule" in item)
            words = words.replace("HANDLE", str(handle))
        for command in words.split("; "):
            victim.run(*shlex.split(command))


def check(
    bench: XdpBench, how: str, words: str, poll_until: Callable[..., object], *, harmless: bool
) -> None:
    wanted = RULES[how]
    with ExitStack() as stack, bench.connect() as guardian:
        probe = Probe(bench, how, stack)
        before = bench.state()
        if wanted.lists_used:
            change(guardian, "create", *([str(ATTACKER)] if wanted.list_name else []), str(OTHER))
        assert not probe.acts()
        rule_id = apply(guardian, wanted, 300, force=True)
        assert rules_of(guardian)[rule_id]["acting"], rules_of(guardian)[rule_id]["not_acting"]
        assert probe.acts()
        do_damage(bench, words)
        assert harmless or not probe.acts(), "it was neutralised"
        poll_until(lambda: not rules_of(guardian)[rule_id]["acting"])
        if "deleted" not in rules_of(guardian)[rule_id]["not_acting"]:  # `keep` fills a set
            with pytest.raises(FwtopError, match=f"does not act: .*fwtop repair {rule_id}"):
                guardian.demand(Keep(rule_id))
        guardian.demand(Repair(rule_id))
        assert rules_of(guardian)[rule_id]["acting"], rules_of(guardian)[rule_id]["not_acting"]
        assert probe.acts()
        guardian.demand(Keep(rule_id))
        assert probe.acts()
        with suppress(AssertionError):
            bench.pair.victim.run("ipset", "destroy", "mine")
        guardian.demand(Undo(all=True))
        poll_until(lambda: not probe.acts())
        assert bench.settled(before) == before


@pytest.mark.one_each(
    "net-nomatch-nft",
    "list-swapped element-nft",
    "limit-rate-nft",
    "block-target-legacy",
    "ingress-edited-nft",
)
@pytest.mark.parametrize(("how", "damage", "variant"), MARKED)
def test_a_neutralised_rule_is_told_and_repaired(
    bench: XdpBench, how: str, damage: str, variant: str, poll_until
) -> None:
    words = (IN_RAW | ELSEWHERE)[how][damage]
    if how in IN_RAW:
        use_variant(bench, variant)
        words = words.replace("iptables", f"iptables-{variant}")
    check(bench, how, words, poll_until, harmless=(how, damage) in HARMLESS)


@pytest.mark.parametrize(
    ("how", "damage"), [("block", "interface"), ("block", "earlier"), ("ingress", "edited")]
)
def test_what_was_changed_without_a_guardian_is_told_by_the_next(
    bench: XdpBench, how: str, damage: str
) -> None:
    with bench.connect() as guardian:
        rule_id = apply(guardian, RULES[how])
    bench.kill_guardian()
    do_damage(bench, (IN_RAW | ELSEWHERE)[how][damage])
    with bench.connect() as guardian:
        assert "were changed" in rules_of(guardian)[rule_id]["not_acting"]
        guardian.demand(Repair(rule_id))
        assert rules_of(guardian)[rule_id]["acting"]
        assert not bench.path(4).passes()
        guardian.demand(Undo(all=True))
    assert not list(bench.directory.glob("state-*/contents-*")), "nothing is kept of rules that are over"


def test_nobody_changes_the_list_of_a_compiled_rule(bench: XdpBench) -> None:
    with bench.connect() as guardian:
        change(guardian, "create", str(ATTACKER), str(OTHER))
        apply(guardian, RULES["xdp_list"])
        lists = [path for path in pins(bench).glob("list-*") if not path.name.endswith("layout")]
        assert lists
        for path in lists:
            descriptor = bpf.open_pin(path)
            with pytest.raises(FwtopError):  # EPERM
                bpf.set_element(descriptor, bytes(4), bytes(bpf.value_size(descriptor)))
            os.close(descriptor)
        assert not bench.path(4).passes()
        change(guardian, "remove", str(ATTACKER))
        assert bench.path(4).passes(wait_s=30), "fwtop puts another in its place"


def test_the_table_of_peers_is_put_back(bench: XdpBench, poll_until) -> None:
    """It belongs to no rule; each refresh of the allow-list looks after it."""
    emptied = bytes(8) + b"\1" * 8 + bytes(ALLOW_BYTES - 16)
    with bench.connect() as guardian:
        rule_id = apply(guardian, RULES["xdp"])
        before = fill_map(bench, "allow", emptied)
        assert before != emptied
        # What is found meanwhile may be in it, too
        poll_until(lambda: not holds_peers(bench, emptied))
        assert rules_of(guardian)[rule_id]["acting"]


def holds_peers(bench: XdpBench, wanted: bytes) -> bool:
    descriptor = bpf.open_pin(pins(bench) / "allow")
    try:
        return bpf.get_element(descriptor, bytes(4), len(wanted)) == wanted
    finally:
        os.close(descriptor)
