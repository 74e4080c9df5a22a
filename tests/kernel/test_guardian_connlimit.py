"""A limit of connections, and the end of open ones: what a rule would not let in any more."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from guardian_bench import Bench, apply, rules_of
from msgspec.structs import replace

from fwtop.client.discovery import GuardianClient
from fwtop.guardian.failpoints import Failpoint
from fwtop.model.protocol import Plan, Undo
from fwtop.model.rule import ConnectionLimit, Kind, Match, Rule
from tests.kernel.wire import connects, inside, let_arrive

pytestmark = pytest.mark.kernel
PAIR = "shared_pair"
PORT = 8080
FAMILIES = (4, 6)


class Clients:
    """A service of the victim that accepts and says nothing, and clients of the attacker's namespace."""

    def __init__(self, bench: Bench, family: int, stack: ExitStack) -> None:
        self._bench, self._stack = bench, stack
        self._kind = socket.AF_INET if family == 4 else socket.AF_INET6
        self._address = bench.pair.victim.ipv4 if family == 4 else bench.pair.victim.ipv6
        with inside(bench.pair.victim.netns):
            self.server = stack.enter_context(socket.socket(self._kind, socket.SOCK_STREAM))
        self.server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.server.bind((self._address, PORT))
        self.server.listen(64)

    def open(self, number: int) -> list[socket.socket]:
        """Try to open connections; return those that were accepted."""
        found = []
        for _ in range(number):
            with inside(self._bench.pair.attacker.netns):
                end = self._stack.enter_context(socket.socket(self._kind, socket.SOCK_STREAM))
            if connects(end, (self._address, PORT), 0.1):
                found.append(end)
        return found


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def is_reset(end: socket.socket) -> bool:
    """Say whether the other side has ended a connection."""
    end.setblocking(False)
    try:
        return end.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def limit(most: int, *, closing: bool = False, **match: Any) -> Rule:
    found = Match(protocol=6, dport=PORT, **match)
    return Rule(
        "", Kind.CONNLIMIT, found, "limit", 600, connections=ConnectionLimit(most), close_open=closing
    )


def note_of(guardian: GuardianClient, rule_id: str) -> str:
    return rules_of(guardian)[rule_id]["note"]


@pytest.mark.one_each("4")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_source_gets_as_many_connections_as_the_limit_says(
    bench: Bench, family: int, stack: ExitStack, poll_until: Callable[..., Any]
) -> None:
    before = bench.state()
    clients = Clients(bench, family, stack)
    with bench.connect() as guardian:
        rule_id = apply(guardian, limit(3, family=family))
        opened = clients.open(5)
        assert len(opened) == 3
        assert rules_of(guardian)[rule_id]["packets"] >= 2
        opened[0].close()
        clients.server.accept()[0].close()
        poll_until(lambda: clients.open(1))  # a place is free again
        assert clients.open(1) == []
        guardian.demand(Undo((rule_id,)))
        assert len(clients.open(4)) == 4
    assert bench.settled(before) == before


@pytest.mark.one_each("6")
@pytest.mark.parametrize("family", FAMILIES)
def test_open_connections_above_the_limit_are_closed_as_the_plan_says(
    bench: Bench, family: int, stack: ExitStack, poll_until: Callable[..., Any]
) -> None:
    clients = Clients(bench, family, stack)
    ends = clients.open(9)
    assert len(ends) == 9
    rule = limit(2, closing=True)
    with bench.connect() as guardian:
        plan = guardian.demand(Plan(rule.to_dict())).data
        assert any("closes 7 open connections of" in line for line in plan["warnings"]), plan
        assert not any(is_reset(end) for end in ends), "a plan changes nothing"
        rule_id = apply(guardian, rule)
        assert "closed 7 open connections" in note_of(guardian, rule_id)
        poll_until(lambda: sum(is_reset(end) for end in ends) == 7)
        guardian.demand(Undo((rule_id,)))


def test_a_block_closes_what_its_sources_have_open_and_nobody_elses(
    bench: Bench, stack: ExitStack, poll_until: Callable[..., Any]
) -> None:
    four, six = (Clients(bench, family, stack) for family in FAMILIES)
    blocked, others = four.open(3), six.open(3)
    rule = replace(bench.block_rule(4), close_open=True)
    with bench.connect() as guardian:
        rule_id = apply(guardian, rule)
        poll_until(lambda: all(is_reset(end) for end in blocked))
        let_arrive()
        assert not any(is_reset(end) for end in others)
        guardian.demand(Undo((rule_id,)))


def test_nobody_on_the_allow_list_is_cut_off(bench: Bench, stack: ExitStack) -> None:
    bench.allow = f"{bench.attacker(4)}\n"
    four, six = (Clients(bench, family, stack) for family in FAMILIES)
    ends, others = four.open(5), six.open(5)
    with bench.connect() as guardian:
        rule_id = apply(guardian, limit(1, closing=True))
        assert "closed 4 open connections" in note_of(guardian, rule_id)
        let_arrive()
        assert not any(is_reset(end) for end in ends)
        assert len(four.open(3)) == 3
        assert sum(is_reset(end) for end in others) == 4
        guardian.demand(Undo((rule_id,)))


@pytest.mark.one_each("closed", "nft-removed")
@pytest.mark.parametrize(
    "failpoint", [Failpoint.NFT, Failpoint.CLOSED, Failpoint.UNDO, Failpoint.NFT_REMOVED]
)
def test_a_crash_leaves_nothing_half_done(bench: Bench, failpoint: Failpoint, stack: ExitStack) -> None:
    before = bench.state()
    clients = Clients(bench, 4, stack)
    with suppress(Exception), bench.connect(crash_at=failpoint.value) as guardian:
        rule_id = apply(guardian, limit(2, closing=True))
        guardian.demand(Undo((rule_id,)))
    with bench.connect() as guardian:
        guardian.demand(Undo(all=True))
        assert len(clients.open(4)) == 4
    assert bench.settled(before) == before


REFUSED = [
    limit(5, sport=99),
    limit(0),
    Rule("", Kind.CONNLIMIT, Match(protocol=17), "x", 600, connections=ConnectionLimit(5)),
    Rule("", Kind.CONNLIMIT, Match(protocol=6), "x", 600),
    Rule("", Kind.NOTRACK, Match(protocol=6, dport=80), "x", 600, close_open=True),
]


def test_what_a_limit_of_connections_can_not_say_is_refused(bench: Bench) -> None:
    with bench.connect() as guardian:
        for rule in REFUSED:
            answer = guardian.request(Plan(rule.to_dict()))
            assert not answer.ok or answer.data["refused"]
