"""Whoever hosts behind a router or a bridge talk with: no rule cuts that off, and what is forged is dropped.

The peer is operator, resolver and time server of the server behind. Every rule is about a prefix around it.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest
from guardian_bench import Bench, apply

from fwtop.client.discovery import GuardianClient
from fwtop.dissect.supervisor import dissector_user
from fwtop.model.addresses.address import Prefix
from fwtop.model.protocol import Status, Undo
from fwtop.model.rule import Kind, Match, RateLimit, Rule
from tests.kernel.conftest import Host
from tests.kernel.forwarding_bench import FORWARDERS, Forwarder, address, udp_socket, wired
from tests.kernel.wire import inside

pytestmark = pytest.mark.kernel
FIRST_PORT = 40_000  # from which the server asks
LEARNED_SECONDS = 60.0  # generous: ports of bridges are looked up every 5 s


class Routers:
    """OSPF between the attacker and the server: hellos to all on the link, and packets to each other."""

    NUMBERS = b"\1\1\1\1", b"\2\2\2\2"
    GROUP = "224.0.0.5"

    def __init__(self, forwarder: Forwarder, stack: ExitStack) -> None:
        self.ends = forwarder.attacker, forwarder.server
        self.sockets = [stack.enter_context(self._open(end)) for end in self.ends]

    def _open(self, host: Host) -> socket.socket:
        with inside(host.netns):
            sock = socket.socket(socket.AF_INET, socket.SOCK_RAW, 89)
        sock.bind((host.ipv4, 0))
        own = socket.inet_aton(host.ipv4)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, own)
        sock.settimeout(0.3)
        return sock

    def greet(self) -> None:
        """Each says hello to all routers, and names the other."""
        for sock, own, other in zip(self.sockets, self.NUMBERS, reversed(self.NUMBERS), strict=True):
            sock.sendto(b"\2\1\0\0" + own + bytes(36) + other, (self.GROUP, 0))

    def hears(self, text: bytes) -> bool:
        """Say whether what the first sends to the second arrives."""
        self.sockets[0].sendto(text, (self.ends[1].ipv4, 0))
        try:
            while not self.sockets[1].recv(200).endswith(text):
                pass
        except TimeoutError:
            return False
        return True


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
            self.client = stack.enter_context(socket.create_connection(target, timeout=60))
        self.served = stack.enter_context(self.listener.accept()[0])
        self.served.settimeout(60)
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

    def forged(self, *, beside: int = 0) -> list[bool]:
        """Say what arrives of packets that no role covers, right after so many others."""
        probes = (partial(self.forwarder.passes, 0.2, self.family), self._low_port, self._connects)
        return [self._after(beside, probe) for probe in probes]

    def _after(self, others: int, probe: Callable[[], bool]) -> bool:
        for _ in range(others):
            self.forger.sendto(b"", (address(self.forwarder.server, self.family), 9))
        return probe()

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


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Undo what a test that failed has left."""
    yield
    if "guardian" in request.fixturenames:
        request.getfixturevalue("guardian").demand(Undo(all=True))


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
    session = (
        f"its port {talks.client.getsockname()[1]} "  # of former sessions the guardian knows the ports, too
    )

    def is_learned() -> bool:
        talks.go_on()
        passes = [item.get("passes", "") for item in guardian.demand(Status()).data["allow"]]
        return wanted <= learned(guardian) and any(session in text for text in passes)

    poll_until(is_learned, LEARNED_SECONDS)


def around(end: str) -> Prefix:
    """Return a prefix of eight addresses, which the server's is not among."""
    prefix = Prefix.parse(end)
    return Prefix(prefix.family, prefix.value >> 3 << 3, prefix.bits - 3)


@pytest.mark.one_each("bridge-4")
def test_the_guardian_reads_no_packet_itself(guardian: GuardianClient, talks: Talks, poll_until) -> None:
    """A confined process of another user does; when that is killed, the guardian starts another."""
    wait_until_learned(guardian, talks, poll_until)
    (reader,) = readers_of(guardian)
    lines = Path(f"/proc/{reader}/status").read_text().splitlines()
    status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    account = dissector_user()
    assert account is not None
    assert status["Uid"] == [str(account.pw_uid)] * 4
    assert (status["Seccomp"], status["NoNewPrivs"], status["CapEff"]) == (["2"], ["1"], ["0" * 16])
    os.kill(reader, signal.SIGKILL)
    poll_until(lambda: readers_of(guardian) not in ([], [reader]), LEARNED_SECONDS)


def readers_of(guardian: GuardianClient) -> list[int]:
    """Return the process ids of the guardian's children that read packets."""
    tasks = Path(f"/proc/{guardian.about['pid']}/task")
    children = [int(word) for task in tasks.iterdir() for word in (task / "children").read_text().split()]
    found = []
    for pid in children:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            if b"fwtop.dissect.listening" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


RULES = {
    "ipset": (Kind.IPSET, None),
    "hashlimit": (Kind.HASHLIMIT, RateLimit(1, 1)),
    "nftables": (Kind.NFTABLES, None),
    "xdp": (Kind.XDP, None),
    "xdp limit": (Kind.XDP, RateLimit(1, 1)),
    "tc": (Kind.TC, None),
}


@pytest.mark.one_each(
    "router-4-hashlimit",
    "router-6-xdp limit",
    "bridge-4-nftables",
    "bridge-6-tc",
    "bridge with br_netfilter-6-ipset",
    "bridge with br_netfilter-4-xdp",
)
@pytest.mark.parametrize("name", RULES)
def test_a_block_around_the_peer_leaves_their_talks_alive(
    guardian: GuardianClient, talks: Talks, name: str, poll_until
) -> None:
    kind, limit = RULES[name]
    forwarder = talks.forwarder
    # The other bridge passes packets on without netfilter.
    unseen = forwarder.kind == "bridge" and kind in (Kind.IPSET, Kind.HASHLIMIT)
    wait_until_learned(guardian, talks, poll_until)
    assert talks.forged() == [True, True, True]
    match = Match(sources=(around(address(forwarder.attacker, talks.family)),))
    rule_id = apply(guardian, Rule("", kind, match, "block", 600, limit=limit), force=True)
    talks.go_on()
    if limit:  # others use it up, if not more than a second lies between them and what is looked at
        poll_until(lambda: talks.forged(beside=5) == [unseen] * 3)
    assert limit or talks.forged() == [unseen] * 3
    talks.go_on()
    guardian.demand(Undo((rule_id,)))
    assert talks.forged() == [True, True, True]
    talks.go_on()


@pytest.fixture
def tracking(forwarder: Forwarder) -> Iterator[None]:
    """Have the router track what it forwards, and nobody say a word meanwhile."""
    lines = [(program, "-m", "conntrack", "--ctstate", "NEW") for program in ("iptables", "ip6tables")]
    for program, *match in lines:
        forwarder.victim.run(program, "-A", "FORWARD", *match)
    yield
    for program, *match in lines:
        forwarder.victim.run(program, "-D", "FORWARD", *match)


@pytest.mark.parametrize("forwarder", ["router"], indirect=True)  # bridges are listened to
def test_the_connection_table_tells_of_sessions_that_are_idle(
    forwarder: Forwarder, tracking: None, talks: Talks, tmp_path: Path
) -> None:
    """A guardian that starts when they are hours old has heard none of their packets."""
    talks.go_on()
    late = Bench(forwarder, tmp_path)
    with late.connect() as guardian:
        roles = {role for role, *_ in learned(guardian)}
    late.close()
    assert {"ssh", "dns", "ntp"} <= roles


@pytest.mark.one_each("router-4", "bridge-6")
def test_answers_forged_in_a_resolvers_name_can_be_dropped(
    guardian: GuardianClient, talks: Talks, poll_until
) -> None:
    """They look like what its role lets pass: so whoever names its address and its port is obeyed."""
    wait_until_learned(guardian, talks, poll_until)
    peer = address(talks.forwarder.attacker, talks.family)
    match = Match(sources=(Prefix.parse(peer),), protocol=17, sport=53)
    rule_id = apply(guardian, Rule("", Kind.NFTABLES, match, "block", 600), force=True)
    poll_until(lambda: not answered(talks), LEARNED_SECONDS)
    guardian.demand(Undo((rule_id,)))
    poll_until(lambda: answered(talks), LEARNED_SECONDS)
    wait_until_learned(guardian, talks, poll_until)


def answered(talks: Talks) -> bool:
    """Say whether an answer from the resolver's port arrives."""
    talks.asking[53].settimeout(0.2)
    try:
        talks.services[53].sendto(b"answer", talks.asking[53].getsockname()[:2])
        return talks.asking[53].recv(100) == b"answer"
    except TimeoutError:
        return False
    finally:
        talks.asking[53].settimeout(60)


@pytest.mark.one_each
def test_nothing_is_learned_where_the_operator_says_so(
    forwarder: Forwarder, talks: Talks, tmp_path: Path, poll_until
) -> None:
    bench = Bench(forwarder, tmp_path)
    with bench.connect() as guardian:
        wait_until_learned(guardian, talks, poll_until)
        (tmp_path / "guard.toml").write_text("learn_behind = false")
        poll_until(lambda: not learned(guardian), LEARNED_SECONDS)
        rule = Rule(
            "", Kind.NFTABLES, Match(sources=(around(address(forwarder.attacker, talks.family)),)), "x", 60
        )
        rule_id = apply(guardian, rule, force=True)
        assert not answered(talks)
        guardian.demand(Undo((rule_id,)))
        assert answered(talks)
    bench.close()


@pytest.mark.one_each
@pytest.mark.parametrize("kind", [Kind.IPSET, Kind.NFTABLES, Kind.XDP, Kind.TC])
@pytest.mark.parametrize("forwarder", FORWARDERS[1:], indirect=True)  # OSPF does not pass a router
def test_routers_on_a_bridge_go_on_to_talk(
    forwarder: Forwarder, guardian: GuardianClient, kind: Kind, poll_until
) -> None:
    unseen = forwarder.kind == "bridge" and kind is Kind.IPSET
    sources = (around(forwarder.attacker.ipv4),)
    with ExitStack() as stack:
        routers = Routers(forwarder, stack)
        ends = [(one.ipv4, two.ipv4) for one, two in (routers.ends, routers.ends[::-1])]

        def is_learned() -> bool:
            routers.greet()
            return {("router", *pair) for pair in ends} <= learned(guardian)

        poll_until(is_learned, LEARNED_SECONDS)
        rule_id = apply(guardian, Rule("", kind, Match(sources=sources), "block", 600), force=True)
        assert routers.hears(b"link state")
        assert forwarder.passes() == unseen
        guardian.demand(Undo((rule_id,)))
        assert forwarder.passes()
