"""What a rule drops or answers is booked to it: each kind, in either family, wherever packets meet it.

The ledger is compared with the rule's own counter; other firewalls, the kernel and "unexplained" get no part.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

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
from fwtop.render.observation import observation_json
from fwtop.rules.kind import Layer
from fwtop.rules.kinds import KINDS, filters, of
from tests.kernel.conftest import Host, made_pair
from tests.kernel.forwarding_bench import FAMILIES, address, wired
from tests.kernel.watching import tick, watched
from tests.kernel.wire import attach_foreign_xdp, checksummed, meet

pytestmark = pytest.mark.kernel
TCP, UDP, PORT, WEB = 6, 17, 5353, 8080
BURST = 250  # packets between two looks
TICK_SECONDS = 0.4  # each judges all that was seen so far
SYN, ACK = 0x02, 0x10
XDP_PASS = 2
Flood = Callable[[Host, Host, int], None]  # from, to, family


def datagrams(attacker: Host, target: Host, family: int) -> None:
    """Send a burst to the UDP service."""
    with inside(attacker.netns):
        sender = socket.socket(FAMILIES[family], socket.SOCK_DGRAM)
    with sender:
        for serial in range(BURST):
            sender.sendto(b"flood:%d" % serial, (address(target, family), PORT))


def segments(flags: int) -> Flood:
    """Return a flood of bare TCP segments with these flags to the web server."""

    def send(attacker: Host, target: Host, family: int) -> None:
        kind, to = FAMILIES[family], address(target, family)
        ends = socket.inet_pton(kind, address(attacker, family)) + socket.inet_pton(kind, to)
        pseudo = ends + struct.pack("!HH", TCP, 20)
        with inside(attacker.netns):
            raw = socket.socket(kind, socket.SOCK_RAW, TCP)
        with raw:
            for _ in range(BURST):
                sport, seq = random.randrange(1024, 65536), random.getrandbits(32)
                head = struct.pack("!HHIIBBHHH", sport, WEB, seq, 1, 5 << 4, flags, 512, 0, 0)
                raw.sendto(checksummed(pseudo + head, len(pseudo) + 16)[-20:], (to, 0))

    return send


def connections(attacker: Host, target: Host, family: int) -> None:
    """Begin connections that are left alone."""
    with contextlib.ExitStack() as held, inside(attacker.netns):
        for _ in range(BURST):
            sock = held.enter_context(socket.socket(FAMILIES[family], socket.SOCK_STREAM))
            sock.setblocking(False)
            sock.connect_ex((address(target, family), WEB))


def both(attacker: Host, target: Host, family: int) -> None:
    datagrams(attacker, target, family)
    segments(SYN)(attacker, target, family)


def rule(kind: Kind, match: Match, **options: object) -> Rule:
    return Rule("", kind, match, "of the test", 120, **options)  # type: ignore[arg-type]


def playbook(*parts: Rule) -> Rule:
    return rule(Kind.HARDEN, Match(), playbook="test", parts=parts)


SERVICE, SERVER = Match(protocol=UDP, dport=PORT), Match(protocol=TCP, dport=WEB)
PAYLOAD = replace(SERVICE, payload=(PayloadMatch(b"flood:", 0),))
ATTACKERS = Match(
    sources=tuple(map(Prefix.parse, ("10.77.0.0/24", "fd77::/64", "10.78.0.0/16", "fd78::/16")))
)
TARGETS = tuple(map(Prefix.parse, ("10.77.0.1", "fd77::1", "10.78.2.2", "fd78:2::2")))
LIMIT = RateLimit(5, 5)
VERBS: dict[str, tuple[Match, dict[str, object]]] = {  # whose kinds drop packet by packet
    "block": (ATTACKERS, {}),
    "drop": (SERVICE, {}),
    "limit": (SERVICE, {"limit": LIMIT}),
    "match": (PAYLOAD, {}),
}
PROXY = rule(Kind.SYNPROXY, replace(SERVER, destinations=TARGETS))
FEW = rule(Kind.CONNLIMIT, SERVER, connections=ConnectionLimit(2))
SLOW = rule(Kind.HASHLIMIT, SERVICE, limit=LIMIT)
CASES: dict[str, tuple[Rule, Flood]] = {
    **{
        f"{verb} --via {kind}": (rule(kind, match, **options), datagrams)
        for verb, (match, options) in VERBS.items()
        for kind in filters(verb)
    },
    "protect": (rule(Kind.PROTECT, SERVICE, protection=Protection(Level.CLOSED)), datagrams),
    "connlimit": (FEW, connections),
    "synproxy, SYNs": (PROXY, segments(SYN)),
    "synproxy, ACKs": (PROXY, segments(ACK)),
    "a playbook that limits": (playbook(SLOW, FEW), datagrams),
    "a playbook that limits connections": (playbook(SLOW, FEW), connections),
    "a playbook that answers": (playbook(PROXY), segments(SYN)),
    "a playbook that limits and answers": (playbook(PROXY, SLOW), both),
}


def compiled(made: Rule) -> bool:
    return of(made.kind).is_compiled


ONE_EACH = {  # of those that are one kind to the kernel, as blocks, drops and matches at XDP are
    (made.kind, made.kinds, made.limit, flood): name for name, (made, flood) in reversed(CASES.items())
}.values()

HOOKS: dict[str, Callable[[Rule], bool]] = {  # where packets meet the rules, and which are there
    "host": lambda _: True,
    "router": lambda made: made.kind is not Kind.PROTECT,  # it protects ports of this machine
    "bridge": lambda made: of(made.kind).layer < Layer.RAW,
    "host beside another XDP program": compiled,
}


def test_every_kind_that_drops_has_a_case() -> None:
    tried = {kind for name in ONE_EACH for made, _ in [CASES[name]] for kind in (made.kind, *made.kinds)}
    assert tried == {kind for kind, known in KINDS.items() if known.drop_reason} | {Kind.HARDEN}


@contextlib.contextmanager
def placed(hook: str, directory: Path) -> Iterator[tuple[Bench, Host]]:
    """Wire a bench with connection tracking, which SYN proxy and limits need, and say whom it protects."""
    host = hook.startswith("host")
    with (
        made_pair() if host else wired(hook, "l") as ends,
        contextlib.closing(Bench(ends, directory)) as bench,
    ):
        if host:
            meet(ends)
        if hook == "host beside another XDP program":
            attach_foreign_xdp(ends.victim, XDP_PASS)
        for tool in ("iptables", "ip6tables"):
            for chain in ("INPUT", "FORWARD"):
                ends.victim.run(tool, "-A", chain, "-m", "conntrack", "--ctstate", "NEW", "-j", "ACCEPT")
        yield bench, ends.victim if host else ends.server


@pytest.mark.one_each("host-6-each kind", "host beside another XDP program-4-each kind")
@pytest.mark.parametrize("cases", [ONE_EACH, CASES], ids=["each kind", "each verb"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("hook", HOOKS)
def test_drops_are_booked_to_the_rule(
    hook: str, family: int, cases: Iterable[str], tmp_path: Path, poll_until: Callable[..., object]
) -> None:
    wrong = {}
    with contextlib.ExitStack() as held:
        bench, target = held.enter_context(placed(hook, tmp_path))
        with inside(target.netns):
            held.enter_context(socket.create_server(("::", WEB), family=socket.AF_INET6, dualstack_ipv6=True))
            receiver = held.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
            receiver.bind(("::", PORT))
        guardian = held.enter_context(bench.connect())
        session = held.enter_context(watched(bench))

        def booked() -> Counter[str]:
            """Return whose the packets are that ended so far, as `fwtop snapshot --json` says."""
            ends = Counter[str]()
            for row in observation_json(tick(bench, session))["ledger"]:
                if row["layer"] != "delivered":
                    ends[f"rule {row['rule']}" if row["rule"] else row["layer"]] += abs(row["packets"])
            return ends

        def known(rule_id: str) -> bool:
            """Say whether the session has heard of the rule."""
            return any(status.rule.id == rule_id for status in tick(bench, session).mitigations)

        def compared(rule_id: str, before: Counter[str]) -> tuple[int, int, dict[str, int]]:
            """Return what the rule counted, what was booked to it, and what to others."""
            ends = booked()
            own = ends.pop(f"rule {rule_id}", 0)
            return rules_of(guardian)[rule_id]["packets"], own, dict(ends - before)

        def settled(rule_id: str, before: Counter[str]) -> bool:
            """Say whether all is booked, but for what samples of two rules with one reason leave open."""
            counted, own, others = compared(rule_id, before)
            return counted > 2 * BURST and max(abs(own - counted), sum(others.values())) < counted / 10

        for name in cases:
            made, flood = CASES[name]
            if not HOOKS[hook](made):
                continue
            before = booked()
            rule_id = apply(guardian, made, force=True)
            poll_until(partial(known, rule_id), every_s=TICK_SECONDS)
            for _ in range(3):
                flood(bench.pair.attacker, target, family)
                booked()
            try:
                poll_until(partial(settled, rule_id, before), every_s=TICK_SECONDS)
            except pytest.fail.Exception:
                wrong[name] = "{} counted, {} booked, {} to others".format(*compared(rule_id, before))
            guardian.demand(Undo((rule_id,)))
    assert not wrong
