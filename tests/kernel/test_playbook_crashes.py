"""kill -9 of the guardian at each step of each playbook: nothing of it stays, or undo takes it back."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from guardian_bench import Bench, crash_within_life

from fwtop.guardian.failpoints import Failpoint
from fwtop.harden import conntrack, resolver
from fwtop.harden.playbook import Options
from fwtop.harden.table import Table
from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Match, Rule
from fwtop.netfilter.ctnetlink import ASSURED, SEEN_REPLY, Entry
from fwtop.resolver.advice import Machine, advise
from fwtop.resolver.servers import Server
from fwtop.resolver.view import DnsCounters, view_of
from tests.kernel.wire import inside

pytestmark = pytest.mark.kernel
OPTIONS = Options(600)
SETTINGS = ("udp_timeout", "tcp_timeout_established")
STATEFUL = "-p udp --dport 9 -m conntrack --ctstate NEW,ESTABLISHED -j ACCEPT"
NATIVE = """
table inet own {
 chain in {
  type filter hook input priority 0
  ct state established,related accept
  udp dport 9 ct state new accept
 }
}
"""
FIREWALLS = ("iptables-nft", "iptables-legacy", "nft", "docker", "firewalld")
RULE_SETS = Path(__file__).with_name("rulesets")
ANY = struct.pack(">6H", 1, 0x0100, 1, 0, 0, 0) + b"\3big\7example\0" + struct.pack(">2H", 255, 1)
POINTS = {
    "conntrack": (
        *(Failpoint.INTENT, Failpoint.SETTING, Failpoint.NFT, Failpoint.BESIDE, Failpoint.CHAIN_V4),
        *(Failpoint.CHAIN_V6, Failpoint.INSTALLED, Failpoint.RENEWED, Failpoint.UNDO, Failpoint.RESTORED),
        *(Failpoint.INACTIVE, Failpoint.NFT_REMOVED, Failpoint.CHAINS_REMOVED, Failpoint.SETS_DESTROYED),
    ),
    "resolver": (*(Failpoint.CHAIN_V4, Failpoint.INSTALLED, Failpoint.INACTIVE, Failpoint.CHAINS_REMOVED),),
}


def conntrack_rule(firewall: str) -> Rule:
    """Return the playbook for a full table: a service that needs no tracking, and one that does.

    Beside Docker's rules, whose NAT could meet it, every service does.
    """
    spare = Entry(4, 17, bytes((198, 51, 100, 7)), bytes(4), 4000, 9)
    bound = Entry(4, 6, bytes((192, 0, 2, 1)), bytes(4), 4000, 80, SEEN_REPLY | ASSURED, 431_000, tcp_state=3)
    timeouts = {"tcp_timeout_established": 432_000, "udp_timeout": 30}
    table = Table(262_000, 262_144, 262_144, 0.0, (*[spare] * 50, *[bound] * 50), timeouts)

    def needs(match: Match) -> Sequence[str]:
        needed = match.dport == 80 or firewall == "docker"
        return ("a rule that counts connections",) if needed else ()

    rule = conntrack.plan_for(table, OPTIONS, needs).rule
    assert rule is not None
    assert len(rule.parts) == (2 if firewall == "docker" else 3)
    return rule


def resolver_rule() -> Rule:
    """Return the playbook for a server asked ANY by one address, on a link with broadcasts."""
    counters = DnsCounters()
    for number in range(400):
        ends = socket.inet_aton(f"198.19.{number % 40}.1") + socket.inet_aton("198.51.100.53")
        datagram = struct.pack(">4H", 4000, 53, 8 + len(ANY), 0) + ANY
        header = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(datagram), 0, 0, 64, 17, 0)
        counters.packet(header + ends + datagram, incoming=True)
    view = view_of(counters, 3.0, 1)
    machine = Machine((Server("unbound", "unbound", True, True),), (Prefix.parse("10.77.0.255"),))
    rule = resolver.plan_for(view, machine, advise(view, machine, 60, "cli"), OPTIONS).rule
    assert rule is not None
    assert len(rule.parts) >= 3
    return rule


def state(bench: Bench) -> dict[str, str]:
    names = [f"net.netfilter.nf_conntrack_{name}" for name in SETTINGS]
    return bench.state() | {"sysctl": bench.pair.victim.run("sysctl", *names).stdout}


def load(bench: Bench, firewall: str) -> None:
    """Load the rules of a firewall that the playbooks must leave as they are."""
    victim = bench.pair.victim
    if firewall == "firewalld":
        victim.run("nft", "-f", str(RULE_SETS / "firewalld-1.3.3.nft"))
    elif firewall == "docker":
        victim.run("iptables-nft-restore", str(RULE_SETS / "docker-20.10.24.rules"))
    elif firewall == "nft":
        victim.run("nft", NATIVE)
    else:
        victim.run(firewall, "-A", "INPUT", *STATEFUL.split())
    if firewall == "iptables-legacy":  # a legacy table stays once it was read
        for program in ("iptables-legacy", "ip6tables-legacy"):
            for table in ("raw", "filter"):
                victim.run(program, "-t", table, "-S")


# What the conntrack playbook does for services that it takes out of tracking: beside Docker there are none.
UNTRACKING = {("conntrack", point) for point in (Failpoint.BESIDE, Failpoint.CHAIN_V4, Failpoint.CHAIN_V6)}
STEPS = [(name, point) for name in POINTS for point in POINTS[name]]


@pytest.mark.one_each(
    "conntrack-setting-nft",
    "conntrack-beside-firewalld",
    "conntrack-chain4-iptables-nft",
    "conntrack-renewed-docker",
    "conntrack-restored-iptables-nft",
    "conntrack-inactive-iptables-legacy",
    "resolver-installed-iptables-legacy",
    "resolver-inactive-nft",
)
@pytest.mark.parametrize(
    ("playbook", "point", "firewall"),
    # Each step with one firewall, each firewall with steps of all stages; FIREWALLS=all: each with each.
    [
        (*step, firewall)
        for number, step in enumerate(STEPS)
        for at, firewall in enumerate(FIREWALLS)
        if (os.environ.get("FIREWALLS") == "all" or at == (number + 1) % len(FIREWALLS))
        and not (firewall == "docker" and step in UNTRACKING)
    ],
)
def test_kill_at_a_step_leaves_nothing_that_undo_does_not_take_back(
    bench: Bench, playbook: str, point: Failpoint, firewall: str
) -> None:
    load(bench, firewall)
    before = state(bench)
    with inside(bench.netns):  # where the table's size is not to be changed
        rule = conntrack_rule(firewall) if playbook == "conntrack" else resolver_rule()
    crash_within_life(bench, rule, point)
    assert state(bench) == before
