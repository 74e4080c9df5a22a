"""kill -9 of the guardian at each step of each play-book: nothing of it stays, or undo takes it back."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

import pytest
from guardian_bench import Bench, crash_within_life

from fwtop.guardian.failpoints import Failpoint
from fwtop.harden import conntrack, resolver
from fwtop.harden.playbook import Options
from fwtop.harden.table import Table
from fwtop.kernel.netfilter.ctnetlink import ASSURED, SEEN_REPLY, Entry
from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Match, Rule
from fwtop.resolver.advice import Machine, advise
from fwtop.resolver.counters import DnsCounters
from fwtop.resolver.servers import Server
from fwtop.resolver.view import counts_of, view_of
from tests.kernel.wire import inside

pytestmark = pytest.mark.kernel
OPTIONS = Options(60)
SETTINGS = ("udp_timeout", "tcp_timeout_established")
STATEFUL = "-p udp --dport 9 -m conntrack --ctstate NEW,ESTABLISHED -j ACCEPT"
ANY = struct.pack(">6H", 1, 0x0100, 1, 0, 0, 0) + b"\3big\7example\0" + struct.pack(">2H", 255, 1)
POINTS = {
    "conntrack": (
        *(Failpoint.INTENT, Failpoint.SETTING, Failpoint.NFT, Failpoint.BESIDE, Failpoint.CHAIN_V4),
        *(Failpoint.CHAIN_V6, Failpoint.INSTALLED, Failpoint.RENEWED, Failpoint.UNDO, Failpoint.RESTORED),
        *(Failpoint.INACTIVE, Failpoint.NFT_REMOVED, Failpoint.CHAINS_REMOVED, Failpoint.SETS_DESTROYED),
    ),
    "resolver": (*(Failpoint.CHAIN_V4, Failpoint.INSTALLED, Failpoint.INACTIVE, Failpoint.CHAINS_REMOVED),),
}


def conntrack_rule() -> Rule:
    """Return the play-book for a full table: a service that needs no tracking, and one that does."""
    spare = Entry(4, 17, bytes((198, 51, 100, 7)), bytes(4), 4000, 9)
    bound = Entry(4, 6, bytes((192, 0, 2, 1)), bytes(4), 4000, 80, SEEN_REPLY | ASSURED, 431_000, tcp_state=3)
    timeouts = {"tcp_timeout_established": 432_000, "udp_timeout": 30}
    table = Table(262_000, 262_144, 262_144, 0.0, (*[spare] * 50, *[bound] * 50), timeouts)

    def needs(match: Match) -> Sequence[str]:
        return ("a rule that counts connections",) if match.dport == 80 else ()

    rule = conntrack.plan_for(table, OPTIONS, needs).rule
    assert rule is not None
    assert len(rule.parts) == 3
    return rule


def resolver_rule() -> Rule:
    """Return the play-book for a server asked ANY by one address, on a link with broadcasts."""
    counters = DnsCounters()
    for number in range(400):
        ends = socket.inet_aton(f"198.19.{number % 40}.1") + socket.inet_aton("198.51.100.53")
        datagram = struct.pack(">4H", 4000, 53, 8 + len(ANY), 0) + ANY
        header = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(datagram), 0, 0, 64, 17, 0)
        counters.packet(header + ends + datagram, incoming=True)
    view = view_of(counts_of(counters), 3.0, 1)
    machine = Machine((Server("unbound", "unbound", True, True),), (Prefix.parse("10.77.0.255"),))
    rule = resolver.plan_for(view, machine, advise(view, machine, 60, "cli"), OPTIONS).rule
    assert rule is not None
    assert len(rule.parts) >= 3
    return rule


def state(bench: Bench) -> dict[str, str]:
    names = [f"net.netfilter.nf_conntrack_{name}" for name in SETTINGS]
    return bench.state() | {"sysctl": bench.pair.victim.run("sysctl", *names).stdout}


@pytest.mark.parametrize(("playbook", "point"), [(name, point) for name in POINTS for point in POINTS[name]])
def test_kill_at_a_step_leaves_nothing_that_undo_does_not_take_back(
    bench: Bench, playbook: str, point: Failpoint
) -> None:
    bench.pair.victim.run("iptables-nft", "-A", "INPUT", *STATEFUL.split())
    before = state(bench)
    with inside(bench.netns):  # where the table's size is not to be changed
        rule = conntrack_rule() if playbook == "conntrack" else resolver_rule()
    crash_within_life(bench, rule, point)
    assert state(bench) == before
