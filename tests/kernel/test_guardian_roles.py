"""Floods forged in the name of whom this host needs are dropped by every kind of rule, and these are served.

The resolver, the time server, the gateway and the operator's session all are the other end of the cable; what
is forged has its address and other ports. Before, during and after each rule.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from fwtop.kernel.links import RouteMonitor
from fwtop.model.addresses.address import Prefix
from fwtop.model.protocol import Status, Undo
from fwtop.model.rule import Kind, Match, PayloadMatch, RateLimit, Rule
from tests.kernel.guardian_bench import Bench, answers, apply, rules_of
from tests.kernel.wire import arrives, checksummed, inside, mac, send_frames
from tests.kernel.xdp_frames import ipv4, ipv6, tcp, udp

pytestmark = pytest.mark.kernel
SSH_PORT, SERVICE = 2222, 8080
SLOW = RateLimit(1, 1)
# A process by sshd's name and title that holds the session's socket
SSHD = (
    "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'sshd'); print('ready', flush=True); sys.stdin.read()"
)
EVIL = PayloadMatch(b"#evil#")


def forged_rules(address: str) -> dict[str, Rule]:
    """Return a rule of each kind that hits all that comes from an address."""
    sources = (Prefix.parse(address),)
    family = sources[0].family
    udp = Match(protocol=17, family=family)
    return {
        "ipset": Rule("", Kind.IPSET, Match(sources=sources), "x", 600, origin="@list"),
        "hashlimit": Rule("", Kind.HASHLIMIT, udp, "x", 600, limit=SLOW),
        "string": Rule("", Kind.STRING, Match(protocol=17, family=family, payload=(EVIL,)), "x", 600),
        "nftables": Rule("", Kind.NFTABLES, Match(sources=sources), "x", 600, origin="@list"),
        "xdp": Rule("", Kind.XDP, Match(sources=sources), "x", 600, origin="@list"),
        "xdp limit": Rule("", Kind.XDP, udp, "x", 600, limit=SLOW),
        "tc": Rule("", Kind.TC, Match(sources=sources), "x", 600, origin="@list"),
    }


class World:
    """A victim with a resolver, a time server, a gateway and a session, and who forges their names."""

    def __init__(self, bench: Bench, family: int, stack: ExitStack) -> None:
        self.bench, self.family, self._stack = bench, family, stack
        self.kind = socket.AF_INET if family == 4 else socket.AF_INET6
        self.victim = bench.pair.victim.ipv4 if family == 4 else bench.pair.victim.ipv6
        self.peer = bench.attacker(family)
        with inside(bench.netns):
            self._time = self._udp()
            self._time.connect((self.peer, 123))  # as ntpd's: that is how it is found
            self._asking = self._udp((self.victim, 0))
            self._service = self._udp((self.victim, SERVICE))
            listener = stack.enter_context(socket.create_server((self.victim, SSH_PORT), family=self.kind))
        self.session = self._log_in(listener)
        with inside(bench.pair.attacker.netns):
            self._servers = {port: self._udp((self.peer, port)) for port in (53, 123)}
            self._forger = self._udp((self.peer, 4444))

    def _udp(self, address: tuple[str, int] | None = None) -> socket.socket:
        sock = self._stack.enter_context(socket.socket(self.kind, socket.SOCK_DGRAM))
        sock.settimeout(60)
        if address is not None:
            sock.bind(address)
        return sock

    def _log_in(self, listener: socket.socket) -> tuple[socket.socket, socket.socket]:
        with inside(self.bench.pair.attacker.netns):
            client = self._stack.enter_context(socket.create_connection((self.victim, SSH_PORT), timeout=60))
        served, _ = listener.accept()
        served.settimeout(60)
        process = subprocess.Popen(
            ["sshd: root@pts/0", "-c", SSHD, str(served.fileno())],
            executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            pass_fds=[served.fileno()],
        )  # fmt: skip
        self._stack.callback(process.communicate, b"")
        assert process.stdout.readline() == b"ready\n"
        return client, self._stack.enter_context(served)

    def frame(self, body: bytes, protocol: int) -> bytes:
        """Return a frame to the victim from the peer's address, with the checksum that IPv4 wants."""
        make, kind = (ipv4, 0x0800) if self.family == 4 else (ipv6, 0x86DD)
        packet = make(body, protocol, self.peer, self.victim)
        if self.family == 4:
            packet = checksummed(packet[:10] + bytes(2) + packet[12:20], 10) + packet[20:]
        return mac(self.bench.pair.victim) + bytes(6) + kind.to_bytes(2, "big") + packet

    def answered(self) -> None:
        """The real resolver, time server, session and neighbour are served: fails otherwise."""
        for port, asking in ((53, self._asking), (123, self._time)):
            for text in (b"a question", b"another"):
                asking.sendto(text, (self.peer, port))
                got, who = self._servers[port].recvfrom(100)
                self._servers[port].sendto(got + EVIL.data, who)
                assert asking.recv(100) == text + EVIL.data
        client, served = self.session
        client.send(b"#evil# typed")
        assert served.recv(100) == b"#evil# typed"
        served.send(b"shown")
        assert client.recv(100) == b"shown"
        victim = self.bench.pair.victim
        victim.run("ip", "neighbour", "flush", "dev", victim.interface)
        assert answers(self.bench, self.family, 8 if self.family == 4 else 128, wait_s=30)

    def forged_arrives(self, wait_s: float = 0.2) -> list[bool]:
        """Send what is forged, twice (a rate lets one pass), and say what arrived of the second."""
        found = []
        for sender, target in ((self._forger, self._service), (self._servers[53], self._service_low())):
            for serial in (b"first", b"second"):
                sender.sendto(serial + EVIL.data, target.getsockname()[:2])
            found.append(self._got(target, b"second" + EVIL.data, wait_s))
        return found

    def _service_low(self) -> socket.socket:
        """A service on a port that no answer of a resolver goes to."""
        if not hasattr(self, "_low"):
            with inside(self.bench.netns):
                self._low = self._udp((self.victim, 80))
        return self._low

    @staticmethod
    def _got(sock: socket.socket, message: bytes, wait_s: float) -> bool:
        return arrives(sock, message, wait_s)


@contextmanager
def world(bench: Bench, family: int) -> Iterator[World]:
    with ExitStack() as stack:
        here = World(bench, family, stack)
        bench.pair.victim.run("ip", f"-{family}", "route", "add", "default", "via", here.peer)
        names = Path("/etc/netns") / bench.netns  # where `ip netns exec` finds it, too
        names.mkdir(parents=True)
        stack.callback(shutil.rmtree, names)
        (names / "resolv.conf").write_text(f"nameserver {here.peer}\n")
        yield here


@pytest.mark.one_each
@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("kind", list(forged_rules("192.0.2.1")))
def test_forged_floods_are_dropped_and_roles_served(bench: Bench, kind: str, family: int) -> None:
    with world(bench, family) as here:
        here.answered()
        assert here.forged_arrives() == [True, True]
        with bench.connect() as guardian:
            rule_id = apply(guardian, forged_rules(here.peer)[kind], force=True)
            here.answered()
            assert here.forged_arrives() == [False, False]
            here.answered()
            roles = {item["role"] for item in guardian.demand(Status()).data["allow"]}
            assert {"ssh", "dns", "ntp", "gateway", "own"} <= roles
            guardian.demand(Undo((rule_id,)))
            here.answered()
            assert here.forged_arrives() == [True, True]


@pytest.mark.parametrize("family", [4, 6])
def test_a_new_gateway_is_noticed_before_the_next_reading(bench: Bench, family: int, poll_until) -> None:
    """The list has just been read, and is not read again by itself for 5 s.

    On a busy machine it may be noticed later, and then one doesn't know by what: it comes and goes again.
    """
    peer, echo = bench.attacker(family), 8 if family == 4 else 128
    route = ("ip", f"-{family}", "route")
    with bench.connect() as guardian:

        def seconds() -> float:
            began = time.monotonic()
            rule_id = apply(guardian, forged_rules(peer)["ipset"])
            assert not answers(bench, family, echo)
            bench.pair.victim.run(*route, "add", "default", "via", peer)
            poll_until(lambda: answers(bench, family, echo, wait_s=0.1))
            bench.pair.victim.run(*route, "delete", "default")
            poll_until(lambda: not answers(bench, family, echo, wait_s=0.3))
            guardian.demand(Undo((rule_id,)))
            return time.monotonic() - began

        poll_until(lambda: seconds() < 4.5)


def test_of_routes_only_default_ones_concern_the_allow_list(bench: Bench, poll_until) -> None:
    victim = bench.pair.victim

    def has_its_link_local_address() -> bool:  # which the kernel adds, and reports, when it gets to it
        shown = victim.run("ip", "-6", "address", "show", "dev", victim.interface, "scope", "link").stdout
        return "inet6" in shown and "tentative" not in shown

    poll_until(has_its_link_local_address, 30.0)
    with inside(bench.netns):
        monitor = RouteMonitor()
    try:
        victim.run("ip", "route", "add", "192.0.2.0/24", "via", bench.pair.attacker.ipv4)
        assert not monitor.changed()
        victim.run("ip", "route", "add", "default", "via", bench.pair.attacker.ipv4)
        assert monitor.changed()
        victim.run("ip", "address", "add", "10.77.0.77/24", "dev", victim.interface)
        assert monitor.changed()
        assert not monitor.changed()
    finally:
        monitor.close()


def packets(world: World) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return what a role lets pass, and what is forged: frames by name, all from the same address."""
    own = world.session[0].getsockname()[1]
    ping = 8 if world.family == 4 else 128
    server, client = (67, 68) if world.family == 4 else (547, 546)
    icmp = 1 if world.family == 4 else 58
    echo = bytes([ping, 0, 0, 0, 0, 1, 0, 1])
    passing = [
        ("the session's next segment", 6, tcp(own, SSH_PORT, 0x10)),
        ("the session's end", 6, tcp(own, SSH_PORT, 0x11)),
        ("a new login", 6, tcp(own ^ 1, SSH_PORT, 0x02)),
        ("a new login that goes on", 6, tcp(own ^ 1, SSH_PORT, 0x10)),
        ("an answer of the resolver", 17, udp(53, 40000, b"answer")),
        ("an answer by TCP", 6, tcp(53, 40000, 0x12)),
        ("an answer of the time server", 17, udp(123, 40000, b"time")),
        ("time from peer to peer", 17, udp(123, 123, b"time")),
        ("a lease", 17, udp(server, client, b"lease")),
        ("BFD", 17, udp(50000, 3784, b"alive")),
        ("BGP that opens", 6, tcp(50000, 179, 0x02)),
        ("BGP that goes on", 6, tcp(179, 40000, 0x10)),
        ("an echo request", icmp, echo),
        ("OSPF", 89, bytes(24)),
        ("VRRP", 112, bytes(20)),
    ]
    forged = [
        ("a SYN from the session's port", 6, tcp(own, SERVICE, 0x02)),
        ("a segment from the next port", 6, tcp(own ^ 1, SERVICE, 0x10)),
        ("a SYN to the session's port", 6, tcp(40000, own, 0x02)),
        ("a SYN to the service", 6, tcp(40000, SERVICE, 0x02)),
        ("an ACK to the service", 6, tcp(40000, SERVICE, 0x10)),
        ("a SYN from port 53", 6, tcp(53, 40000, 0x02)),
        ("UDP from port 53 to a service", 17, udp(53, 80, b"forged")),
        ("UDP from port 52", 17, udp(52, 40000, b"forged")),
        ("UDP to port 53", 17, udp(40000, 53, b"forged")),
        ("UDP to port 123", 17, udp(40000, 123, b"forged")),
        ("UDP of the session's port", 17, udp(own, SSH_PORT, b"forged")),
        ("DHCP to another port", 17, udp(server, 40000, b"forged")),
        ("GRE", 47, bytes(24)),
        ("ESP", 50, bytes(24)),
    ]
    return tuple(
        {name: world.frame(body, protocol) for name, protocol, body in chosen} for chosen in (passing, forged)
    )


@pytest.mark.one_each
@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("kind", ["ipset", "nftables", "xdp", "tc"])
def test_every_backend_draws_the_same_line(bench: Bench, kind: str, family: int, poll_until) -> None:
    def drops(*frames: bytes) -> int:
        """Send frames and say how many more were dropped; the last one must be."""
        before = dropped()
        send_frames(bench.pair.attacker, *frames)
        poll_until(lambda: dropped() > before)
        return dropped() - before

    def dropped() -> int:
        return rules_of(guardian)[rule_id]["packets"]

    with world(bench, family) as here:
        passing, forged = packets(here)
        with bench.connect() as guardian:
            rule_id = apply(guardian, forged_rules(here.peer)[kind], force=True)
            assert drops(*passing.values(), forged["GRE"]) == 1, "a role was not served"
            assert drops(*forged.values()) == len(forged), "something forged passed"
