"""Whoever hosts behind a router or a bridge talk with: no rule cuts that off, and what is forged is dropped.

The peer is operator, resolver and time server of the server behind. Every rule is about a prefix around it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from guardian_bench import Bench, apply

from fwtop.client.discovery import GuardianClient
from fwtop.model.addresses.address import Prefix
from fwtop.model.protocol import Status, Undo
from fwtop.model.rule import Kind, Match, RateLimit, Rule
from tests.kernel.forwarding_bench import FORWARDERS, Forwarder, address, udp_socket, wired
from tests.kernel.wire import inside

pytestmark = pytest.mark.kernel
FIRST_PORT = 40_000  # from which the server asks
LEARNED_SECONDS = 20.0  # generous: ports of bridges are looked up every 5 s


class Talks:
    """An SSH session, a resolver and a time server of the server's, at the attacker's address."""

    def __init__(self, forwarder: Forwarder, family: int, stack: ExitStack) -> None:
        self.forwarder, self.family = forwarder, family
        here, there = forwarder.server, forwarder.attacker
        kind = socket.AF_INET if family == 4 else socket.AF_INET6
        with inside(here.netns):
            self.listener = stack.enter_context(
                socket.create_server((address(here, family), 22), family=kind)
            )
        with inside(there.netns):
            target = (address(here, family), 22)
            self.client = stack.enter_context(socket.create_connection(target, timeout=5))
        self.served = stack.enter_context(self.listener.accept()[0])
        self.served.settimeout(5)
        self.services = {port: stack.enter_context(udp_socket(there, family, port)) for port in (53, 123)}
        self.asking = {
            port: stack.enter_context(udp_socket(here, family, FIRST_PORT + port)) for port in self.services
        }
        self.forger = stack.enter_context(udp_socket(there, family))

    def go_on(self) -> None:
        """A key press and its echo, a name and a time: fails if one is lost."""
        self.client.send(b"key")
        assert self.served.recv(100) == b"key"
        self.served.send(b"echo")
        assert self.client.recv(100) == b"echo"
        for port, asking in self.asking.items():
            asking.sendto(b"question", (address(self.forwarder.attacker, self.family), port))
            text, who = self.services[port].recvfrom(100)
            self.services[port].sendto(text + b" answered", who)
            assert asking.recv(100) == b"question answered"

    def forged(self) -> list[bool]:
        """Say what arrives of packets that no role covers."""
        return [self.forwarder.passes(0.2, self.family), self._low_port(), self._connects()]

    def _low_port(self) -> bool:
        """From the resolver's port to one that no answer goes to."""
        with udp_socket(self.forwarder.server, self.family, 80) as service:
            self.services[53].sendto(b"forged", service.getsockname()[:2])
            service.settimeout(0.2)
            try:
                return service.recv(100) == b"forged"
            except TimeoutError:
                return False

    def _connects(self) -> bool:
        with inside(self.forwarder.attacker.netns):
            sock = socket.socket(self.client.family, socket.SOCK_STREAM)
        with sock:
            sock.settimeout(0.3)
            done = sock.connect_ex((address(self.forwarder.server, self.family), 22)) == 0
        if done:
            self.listener.accept()[0].close()
        return done


@pytest.fixture(scope="module", params=FORWARDERS)
def forwarder(request: pytest.FixtureRequest) -> Iterator[Forwarder]:
    with wired(request.param, "l") as made:
        yield made


@pytest.fixture(scope="module")
def bench(forwarder: Forwarder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(forwarder, Path(tmp_path_factory.mktemp("guardian")))
    yield made
    made.close()


@pytest.fixture(scope="module")
def guardian(bench: Bench) -> Iterator[GuardianClient]:
    with bench.connect() as connected:
        yield connected


@pytest.fixture(params=[4, 6])
def talks(forwarder: Forwarder, request: pytest.FixtureRequest) -> Iterator[Talks]:
    with ExitStack() as stack:
        yield Talks(forwarder, request.param, stack)


def learned(guardian: GuardianClient) -> set[tuple[str, str, str]]:
    """Return role, peer and host of what was learned."""
    entries = guardian.demand(Status()).data["allow"]
    return {(item["role"], item["prefix"], item["host"]) for item in entries if item["tier"] == "learned"}


def wait_until_learned(guardian: GuardianClient, talks: Talks, poll_until) -> None:
    peer, host = (address(end, talks.family) for end in (talks.forwarder.attacker, talks.forwarder.server))
    wanted = {(role, peer, host) for role in ("ssh", "dns", "ntp")}

    def is_learned() -> bool:
        talks.go_on()
        return wanted <= learned(guardian)

    poll_until(is_learned, LEARNED_SECONDS)


def around(end: str) -> Prefix:
    """Return a prefix of eight addresses, which the server's is not among."""
    prefix = Prefix.parse(end)
    return Prefix(prefix.family, prefix.value >> 3 << 3, prefix.bits - 3)


RULES = {
    "ipset": (Kind.IPSET, None),
    "hashlimit": (Kind.HASHLIMIT, RateLimit(1, 1)),
    "nftables": (Kind.NFTABLES, None),
    "xdp": (Kind.XDP, None),
    "xdp limit": (Kind.XDP, RateLimit(1, 1)),
    "tc": (Kind.TC, None),
}


@pytest.mark.parametrize("name", RULES)
def test_a_block_around_the_peer_leaves_their_talks_alive(
    guardian: GuardianClient, talks: Talks, name: str, poll_until
) -> None:
    kind, limit = RULES[name]
    forwarder = talks.forwarder
    if forwarder.kind == "bridge" and kind in (Kind.IPSET, Kind.HASHLIMIT):
        pytest.skip("this bridge passes packets on without netfilter")
    wait_until_learned(guardian, talks, poll_until)
    assert talks.forged() == [True, True, True]
    match = Match(sources=(around(address(forwarder.attacker, talks.family)),))
    rule_id = apply(guardian, Rule("", kind, match, "block", 60, limit=limit), force=True)
    if limit:
        talks.forged()  # uses the limit up
    talks.go_on()
    assert talks.forged() == [False, False, False]
    talks.go_on()
    guardian.demand(Undo((rule_id,)))
    assert talks.forged() == [True, True, True]
    talks.go_on()
