"""What a rule of each kind drops or answers is booked to it, in either family, and not to other firewalls."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Callable
from functools import partial

import pytest
from guardian_bench import Bench, apply, inside, rules_of
from msgspec.structs import replace

from fwtop.model.addresses.address import Prefix
from fwtop.model.protocol import Undo
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
from tests.kernel.watching import tick, watched

pytestmark = pytest.mark.kernel
TCP, UDP, PORT, WEB = 6, 17, 5353, 8080
BURST = 250  # packets between two looks
FAMILIES = (4, 6)
Flood = Callable[[Bench, int], None]


def datagrams(bench: Bench, family: int) -> None:
    """Send a burst to the UDP service."""
    for serial in range(BURST):
        bench.path(family).sender.send(b"flood:%d" % serial)


def segments(flags: int) -> Flood:
    """Return a flood of bare TCP segments with these flags to the web server."""

    def send(bench: Bench, family: int) -> None:
        pair, kind = bench.pair, socket.AF_INET if family == 4 else socket.AF_INET6
        target = pair.victim.ipv4 if family == 4 else pair.victim.ipv6
        ends = socket.inet_pton(kind, bench.attacker(family)) + socket.inet_pton(kind, target)
        with inside(pair.attacker.netns):
            raw = socket.socket(kind, socket.SOCK_RAW, TCP)
        with raw:
            for _ in range(BURST):
                sport, seq = random.randrange(1024, 65536), random.getrandbits(32)
                head = struct.pack("!HHIIBBHHH", sport, WEB, seq, 1, 5 << 4, flags, 512, 0, 0)
                summed = ends + struct.pack("!HH", TCP, len(head)) + head
                total = sum(struct.unpack(f"!{len(summed) // 2}H", summed))
                total = (total & 0xFFFF) + (total >> 16)
                check = 0xFFFF & ~((total & 0xFFFF) + (total >> 16))
                raw.sendto(head[:16] + struct.pack("!H", check) + head[18:], (target, 0))

    return send


def connections(bench: Bench, family: int) -> None:
    """Begin connections that are left alone."""
    kind, pair = socket.AF_INET if family == 4 else socket.AF_INET6, bench.pair
    target = pair.victim.ipv4 if family == 4 else pair.victim.ipv6
    with contextlib.ExitStack() as held, inside(pair.attacker.netns):
        for _ in range(BURST):
            sock = held.enter_context(socket.socket(kind, socket.SOCK_STREAM))
            sock.setblocking(False)
            sock.connect_ex((target, WEB))


def rule(kind: Kind, **options: object) -> Rule:
    return Rule("", kind, options.pop("match", SERVICE), "of the test", 120, **options)  # type: ignore[arg-type]


SYN, ACK = 0x02, 0x10
SERVICE, SERVER = Match(protocol=UDP, dport=PORT), Match(protocol=TCP, dport=WEB)
PAYLOAD = replace(SERVICE, payload=(PayloadMatch(b"flood:", 0),))
ATTACKERS = tuple(map(Prefix.parse, ("10.77.0.0/24", "fd77::/64")))
CASES: dict[str, tuple[Rule, Flood]] = {
    "ipset": (rule(Kind.IPSET, match=Match(sources=ATTACKERS)), datagrams),
    "nftables": (rule(Kind.NFTABLES), datagrams),
    "hashlimit": (rule(Kind.HASHLIMIT, limit=RateLimit(5, 5)), datagrams),
    "string": (rule(Kind.STRING, match=PAYLOAD), datagrams),
    "xdp": (rule(Kind.XDP), datagrams),
    "xdp limit": (rule(Kind.XDP, limit=RateLimit(5, 5)), datagrams),
    "tc": (rule(Kind.TC), datagrams),
    "protect": (rule(Kind.PROTECT, protection=Protection(Level.CLOSED)), datagrams),
    "connlimit": (rule(Kind.CONNLIMIT, match=SERVER, connections=ConnectionLimit(2)), connections),
    "synproxy, SYNs": (rule(Kind.SYNPROXY, match=SERVER), segments(SYN)),
    "synproxy, ACKs": (rule(Kind.SYNPROXY, match=SERVER), segments(ACK)),
}


@pytest.fixture
def tracking(bench: Bench) -> Bench:
    """The bench with connection tracking, which SYN proxy and limits of connections need, and a way back."""
    victim, attacker = bench.pair.victim, bench.pair.attacker
    for tool in ("iptables", "ip6tables"):
        victim.run(tool, "-A", "INPUT", "-m", "conntrack", "--ctstate", "NEW", "-j", "ACCEPT")
    victim.run("ip", "route", "add", "default", "via", attacker.ipv4)
    victim.run("ip", "-6", "route", "add", "default", "via", attacker.ipv6)
    return bench


@pytest.mark.one_each("6")
@pytest.mark.parametrize("family", FAMILIES)
def test_drops_are_booked_to_the_rule(
    tracking: Bench, family: int, poll_until: Callable[..., object]
) -> None:
    wrong = {}
    with inside(tracking.netns):
        listener = socket.create_server(("::", WEB), family=socket.AF_INET6, dualstack_ipv6=True)
    with listener, tracking.connect() as guardian, watched(tracking) as session:

        def taken() -> dict[str | None, int]:
            """Return the packets that compiled rules and netfilter took so far, by rule; None: others'."""
            booked: dict[str | None, int] = {}
            for row in tick(tracking, session).tables.ledger:
                if row.layer in ("xdp", "tc", "netfilter"):
                    booked[row.rule] = booked.get(row.rule, 0) + row.packets
            return booked

        def known(rule_id: str) -> bool:
            """Say whether the session has heard of the rule."""
            return any(status.rule.id == rule_id for status in tick(tracking, session).mitigations)

        def compared(rule_id: str) -> tuple[int, int, int]:
            """Return what the rule counted, what was booked to it, and what to others so far."""
            booked = taken()
            return rules_of(guardian)[rule_id]["packets"], booked.get(rule_id, 0), booked.get(None, 0)

        def settled(rule_id: str, before: int) -> bool:
            """Say whether all is booked, but for what samples of two rules with one reason leave open."""
            counted, booked, others = compared(rule_id)
            return counted > 2 * BURST and max(abs(booked - counted), abs(others - before)) < counted / 10

        for name, (made, flood) in CASES.items():
            before = taken().get(None, 0)
            rule_id = apply(guardian, made, force=True)
            poll_until(partial(known, rule_id))
            for _ in range(4):
                flood(tracking, family)
                taken()
            try:
                poll_until(partial(settled, rule_id, before))
            except pytest.fail.Exception:
                counted, booked, others = compared(rule_id)
                wrong[name] = f"{counted} counted, {booked} booked, {others - before} to others"
            guardian.demand(Undo((rule_id,)))
    assert not wrong
