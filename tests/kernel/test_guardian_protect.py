"""Protected ports: who may open a connection, what goes on, how levels switch, and what a crash leaves."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from guardian_bench import PORT, SOON_SECONDS, Bench, apply, rules_of, run_console, seen_in_time, use_variant

from fwtop.client.discovery import GuardianClient
from fwtop.guardian.failpoints import Failpoint
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Keep, ListChange, Plan, Repair, Undo, Why
from fwtop.model.rule import Kind, Level, Match, Protection, Rule
from tests.kernel.wire import connects, inside, received

pytestmark = pytest.mark.kernel
PAIR = "shared_pair"
TCP, UDP = 6, 17
FAMILIES = (4, 6)
OPEN, PROTECTED, CLOSED = Level.OPEN, Level.PROTECTED, Level.CLOSED


def protect(level: Level, protocol: int = UDP, *, replaces: str = "", **fields: Any) -> Rule:
    lists = fields.pop("lists", ("office",))
    made = Protection(level, lists, **fields)
    match = Match(protocol=protocol, dport=PORT)
    return Rule("", Kind.PROTECT, match, "protect", 600, protection=made, replaces=replaces)


def change(guardian: GuardianClient, action: str, *entries: str) -> None:
    guardian.change_list(ListChange("office", action), tuple(map(Prefix.parse, entries)))


class Service:
    """A server of the victim on the protected port, and what the attacker can open to it."""

    def __init__(self, bench: Bench, family: int, stack: ExitStack) -> None:
        self._bench, self._stack = bench, stack
        self._kind = socket.AF_INET if family == 4 else socket.AF_INET6
        self.address = bench.pair.victim.ipv4 if family == 4 else bench.pair.victim.ipv6
        with inside(bench.netns):
            self.tcp = stack.enter_context(socket.create_server((self.address, PORT), family=self._kind))
            self.udp = stack.enter_context(socket.socket(self._kind, socket.SOCK_DGRAM))
        self.udp.bind((self.address, PORT))

    def connection(self) -> tuple[socket.socket, socket.socket] | None:
        """Open a TCP connection: both ends, None where nobody is let in."""
        with inside(self._bench.pair.attacker.netns):
            client = self._stack.enter_context(socket.socket(self._kind, socket.SOCK_STREAM))
        if not connects(client, (self.address, PORT), 0.15):
            client.close()
            return None
        return client, self._stack.enter_context(self.tcp.accept()[0])

    def conversation(self) -> socket.socket:
        """Return a client's UDP socket."""
        with inside(self._bench.pair.attacker.netns):
            client = self._stack.enter_context(socket.socket(self._kind, socket.SOCK_DGRAM))
        client.connect((self.address, PORT))
        return client

    def answers(self, client: socket.socket) -> bool:
        """Say whether a datagram arrives; the service answers it then."""
        client.send(b"?")
        found = received(self.udp, 0.15)
        if found is None:
            return False
        self.udp.sendto(b"!", found[1])
        client.settimeout(60)
        return client.recv(100) == b"!"


def arrives(ends: tuple[socket.socket, socket.socket]) -> bool:
    """Say whether a byte gets through an open connection."""
    ends[0].send(b"x")
    return received(ends[1], 0.15, 1) is not None


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@contextmanager
def on_list(bench: Bench, guardian: GuardianClient) -> Iterator[None]:
    """Let the attacker's addresses on the access list for a while."""
    attacker = [bench.attacker(family) for family in FAMILIES]
    change(guardian, "add", *attacker)
    yield
    change(guardian, "remove", *attacker)


@pytest.mark.parametrize(("variant", "protocol"), [("nft", TCP), ("nft", UDP), ("legacy", UDP)])
def test_only_the_access_list_gets_in_and_what_is_open_goes_on(
    bench: Bench, stack: ExitStack, variant: str, protocol: int
) -> None:
    if variant == "legacy":
        use_variant(bench, variant)
    # A rule that needs connection tracking: from then on it knows what is open.
    tracking = "table inet t { chain c { type filter hook input priority 0; ct state new counter; }; }"
    bench.pair.victim.run("nft", tracking)
    before = bench.state()
    services = [Service(bench, family, stack) for family in FAMILIES]
    open_before = [service.connection() for service in services]
    talks_before = [service.conversation() for service in services]
    assert all(service.answers(talk) for service, talk in zip(services, talks_before, strict=True))

    def let_in() -> list[bool]:
        if protocol == TCP:
            return [service.connection() is not None for service in services]
        return [service.answers(service.conversation()) for service in services]

    def goes_on() -> list[bool]:
        if protocol == TCP:
            return [arrives(ends) for ends in open_before if ends is not None]
        return [service.answers(talk) for service, talk in zip(services, talks_before, strict=True)]

    with bench.connect() as guardian:
        change(guardian, "create", "198.51.100.0/24")
        rule_id = apply(guardian, protect(PROTECTED, protocol))
        assert let_in() == [False, False]
        assert goes_on() == [True, True]
        with on_list(bench, guardian):
            assert let_in() == [True, True]
        shown = rules_of(guardian)[rule_id]
        assert shown["acting"], shown["not_acting"]
        assert 2 <= shown["packets"] < 16, "what passes is not counted"
        for level, expected in ((OPEN, True), (CLOSED, False)):
            assert apply(guardian, protect(level, protocol, replaces=rule_id)) == rule_id, "a switch"
            assert let_in() == [expected, expected], level
            assert goes_on() == [True, True], level
        with pytest.raises(FwtopError, match=f"used by rule {rule_id}"):
            change(guardian, "delete")
        strict = apply(guardian, protect(CLOSED, protocol, replaces=rule_id, strict=True))
        assert goes_on() == [False, False]
        assert list(rules_of(guardian)) == [strict]
        guardian.demand(Undo((strict,)))
        assert let_in() == [True, True]
        change(guardian, "delete")
    assert bench.settled(before) == before
    bench.pair.victim.run("nft", "delete table inet t")
    for program in ("iptables-legacy", "ip6tables-legacy") if variant == "legacy" else ():
        bench.pair.victim.run(program, "-t", "raw", "-F")
        bench.pair.victim.run(program, "-F")


def test_udp_conversations_of_an_open_port_go_on_when_it_is_closed(bench: Bench, stack: ExitStack) -> None:
    """Also without connection tracking: what the service answered was noted."""
    service = Service(bench, 4, stack)
    with bench.connect() as guardian:
        rule_id = apply(guardian, protect(OPEN, lists=()))
        known, stranger = service.conversation(), service.conversation()
        assert service.answers(known)
        apply(guardian, protect(CLOSED, lists=(), replaces=rule_id))
        assert service.answers(known)
        assert not service.answers(stranger)


def test_the_highest_priority_decides_and_of_one_the_newest(bench: Bench) -> None:
    with bench.connect() as guardian:
        change(guardian, "create", "198.51.100.0/24")
        low = apply(guardian, protect(PROTECTED, priority=10))
        top = apply(guardian, protect(OPEN, priority=20))
        middle = apply(guardian, protect(CLOSED, priority=15, strict=True))
        assert bench.path(4).passes(wait_s=30)
        guardian.demand(Undo((top,)))
        assert not bench.path(4).passes()
        newest = apply(guardian, protect(OPEN, priority=15))
        assert bench.path(4).passes(wait_s=30)
        for rule_id in (newest, middle):
            guardian.demand(Undo((rule_id,)))
            assert not bench.path(4).passes()
        guardian.demand(Undo((low,)))
        assert bench.path(4).passes(wait_s=30)


def test_a_level_is_provisional_until_it_is_kept(bench: Bench, poll_until: Callable[..., Any]) -> None:
    with bench.connect() as guardian:
        change(guardian, "create", bench.attacker(4))
        rule_id = apply(guardian, protect(PROTECTED))
        assert bench.path(4).passes(wait_s=30)
        trial = apply(guardian, protect(CLOSED, replaces=rule_id), 30)
        assert not bench.path(4).passes()
        guardian.demand(Undo((trial,)))
        assert bench.path(4).passes(wait_s=30)
        assert not bench.path(6).passes(), "the old level acts"
        kept = apply(guardian, protect(CLOSED, replaces=rule_id), 30)
        guardian.demand(Keep(kept))
        assert list(rules_of(guardian)) == [kept]
        short = apply(guardian, protect(OPEN, replaces=kept), SOON_SECONDS)
        assert bench.path(4).passes(wait_s=30)
        poll_until(lambda: short not in rules_of(guardian))
        assert not bench.path(4).passes()


def test_the_kernel_returns_to_the_old_level_without_a_guardian(
    bench: Bench, poll_until: Callable[..., Any]
) -> None:
    with bench.connect() as guardian:
        change(guardian, "create", bench.attacker(4))
        rule_id = apply(guardian, protect(CLOSED))

        def try_open(seconds: int) -> None:
            poll_until(lambda: list(rules_of(guardian)) == [rule_id])
            apply(guardian, protect(OPEN, replaces=rule_id), seconds)

        assert seen_in_time(try_open, lambda: bench.path(4).passes(wait_s=30))
    bench.kill_guardian()
    poll_until(lambda: not bench.path(4).passes())


@pytest.mark.parametrize(
    ("failpoint", "old", "new"),
    [
        (Failpoint.SWITCHING, CLOSED, OPEN),
        (Failpoint.SWITCHING, OPEN, CLOSED),
        (Failpoint.SWITCHED, CLOSED, PROTECTED),
    ],
)
def test_a_crash_while_switching_ends_at_the_new_level(
    bench: Bench, failpoint: Failpoint, old: Level, new: Level
) -> None:
    with bench.connect(crash_at=failpoint.value) as guardian:
        change(guardian, "create", bench.attacker(4))
        rule_id = apply(guardian, protect(old))
        with pytest.raises(FwtopError, match="ended before it answered"):
            apply(guardian, protect(new, replaces=rule_id))
    with bench.connect() as successor:
        shown = rules_of(successor)[rule_id]
        assert shown["rule"]["protection"]["level"] == new.value
        assert shown["acting"], shown["not_acting"]
        assert bench.path(4).passes() == (new is not CLOSED)
        assert bench.path(6).passes() == (new is OPEN)


def test_a_damaged_rule_is_told_and_repaired(bench: Bench) -> None:
    with bench.connect() as guardian:
        change(guardian, "create", bench.attacker(4))
        rule_id = apply(guardian, protect(PROTECTED))
        bench.pair.victim.run("iptables", "-t", "raw", "-F", "FWTOP-PORTS")
        bench.pair.victim.run("ipset", "flush", f"fwtop-{rule_id}-on6")
        sentences = " ".join(guardian.demand(Why(rule_id)).data["sentences"])
        assert "gone from chain FWTOP-PORTS" in sentences
        assert f"fwtop repair {rule_id}" in sentences
        assert bench.path(6).passes(wait_s=30)
        guardian.demand(Repair(rule_id))
        assert not bench.path(6).passes()
        assert rules_of(guardian)[rule_id]["acting"]


def test_a_rule_without_a_record_is_found_in_the_kernel(bench: Bench) -> None:
    with bench.connect() as guardian:
        change(guardian, "create", bench.attacker(4))
        rule_id = apply(guardian, protect(CLOSED))
    bench.kill_guardian()
    for left in bench.directory.glob("state-*"):
        shutil.rmtree(left)
    with bench.connect() as successor:
        shown = rules_of(successor)[rule_id]
        assert shown["rule"]["kind"] == "protect"
        assert not bench.path(6).passes()
        successor.demand(Undo((rule_id,)))
        assert bench.path(6).passes(wait_s=30)


def test_nobody_locks_the_operator_out(
    bench: Bench, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = bench.attacker(4)
    monkeypatch.setenv("SSH_CONNECTION", f"{peer} 50022 {bench.pair.victim.ipv4} {PORT}")
    stack.callback(run_console(bench, "pass").communicate, "")
    with bench.connect() as guardian:
        change(guardian, "create", "198.51.100.0/24")
        for level in (PROTECTED, CLOSED):
            refused = guardian.demand(Plan(protect(level, TCP).to_dict())).data["refused"]
            assert f"{peer} is logged in by ssh on port {PORT} and could not log in again" in refused
            with pytest.raises(FwtopError, match="could not log in again"):
                apply(guardian, protect(level, TCP), force=True)
        assert rules_of(guardian) == {}
        change(guardian, "add", peer)
        apply(guardian, protect(PROTECTED, TCP))
        with pytest.raises(FwtopError, match="could not log in again; put it on an access list"):
            change(guardian, "remove", peer)


def test_what_the_operator_lists_passes_a_closed_port(bench: Bench) -> None:
    bench.allow = f"{bench.attacker(4)}\n"
    with bench.connect() as guardian:
        apply(guardian, protect(CLOSED, lists=(), strict=True))
        assert bench.path(4).passes(wait_s=30)
        assert not bench.path(6).passes()
