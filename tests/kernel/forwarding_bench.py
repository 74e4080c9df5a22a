"""A machine in the middle that routes or bridges, with an attacker on one side and a server on the other."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct, field

from tests.kernel.conftest import Host, ip
from tests.kernel.wire import arrives, inside, let_arrive

PORT = 5300
FORWARDERS = ("router", "bridge", "bridge with br_netfilter")
FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
_LENGTHS = {4: 24, 6: 64}


class Forwarder(Struct):
    """Attacker, the machine in the middle (the guardian's bench calls it victim), and a server."""

    kind: str
    attacker: Host
    victim: Host
    server: Host
    receivers: dict[int, socket.socket] = field(default_factory=dict)
    senders: dict[int, socket.socket] = field(default_factory=dict)
    serial: int = 0

    def __post_init__(self) -> None:
        for family in FAMILIES:
            self.receivers[family] = udp_socket(self.server, family, PORT)
            self.senders[family] = udp_socket(self.attacker, family)

    def passes(self, wait_s: float = 0.15, family: int = 4) -> bool:
        """Say whether a datagram of the attacker's reaches the server."""
        self.serial += 1
        message = b"#%d" % self.serial
        self.senders[family].sendto(message, (address(self.server, family), PORT))
        return arrives(self.receivers[family], message, wait_s)

    def flood_passes(self, family: int, wait_s: float = 0.3) -> bool:
        """Say whether a datagram like those of a flood of zeros reaches the server."""
        let_arrive()
        self.receivers[family].settimeout(0)
        with contextlib.suppress(BlockingIOError):
            while self.receivers[family].recv(2048):
                pass
        self.senders[family].sendto(bytes(400), (address(self.server, family), PORT))
        return arrives(self.receivers[family], bytes(400), wait_s)

    def close(self) -> None:
        for sock in (*self.receivers.values(), *self.senders.values()):
            sock.close()


def address(host: Host, family: int) -> str:
    return host.ipv4 if family == 4 else host.ipv6


def udp_socket(host: Host, family: int, port: int = 0) -> socket.socket:
    """Open a datagram socket in a host's namespace, bound to its address."""
    with inside(host.netns):
        sock = socket.socket(FAMILIES[family], socket.SOCK_DGRAM)
    sock.settimeout(60)
    sock.bind((address(host, family), port))
    return sock


def wire(stem: str, kind: str) -> Forwarder:
    routed = kind == "router"
    far = 1 if routed else 2
    attacker = Host(f"{stem}a", "a0", f"10.78.{far}.9", f"fd78:{far}::9")
    middle = Host(f"{stem}m", "out0", "10.78.2.1", "fd78:2::1")
    server = Host(f"{stem}s", "s0", "10.78.2.2", "fd78:2::2")
    for host in (attacker, middle, server):
        ip("netns", "add", host.netns)
        ip("-n", host.netns, "link", "set", "lo", "up")
    for port, end in (("out0", attacker), ("in0", server)):
        peer = ("type", "veth", "peer", "name", end.interface, "netns", end.netns)
        ip("-n", middle.netns, "link", "add", port, *peer)
        _give(end, end.interface, end.ipv4, end.ipv6)
        ip("-n", end.netns, "link", "set", end.interface, "up")
        ip("-n", middle.netns, "link", "set", port, "up")
    inner = "in0" if routed else "br0"
    if routed:
        _give(middle, "out0", "10.78.1.1", "fd78:1::1")
        middle.run("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
    else:
        ip("-n", middle.netns, "link", "add", "br0", "type", "bridge")
        for port in ("out0", "in0"):
            ip("-n", middle.netns, "link", "set", port, "master", "br0")
        ip("-n", middle.netns, "link", "set", "br0", "up")
        shown = int(kind != "bridge")
        middle.run(
            "sysctl", "-qw", *(f"net.bridge.bridge-nf-call-{name}tables={shown}" for name in ("ip", "ip6"))
        )
    _give(middle, inner, middle.ipv4, middle.ipv6)
    if routed:
        for host, subnet in ((attacker, 1), (server, 2)):
            ip("-n", host.netns, "route", "add", "default", "via", f"10.78.{subnet}.1")
            ip("-n", host.netns, "-6", "route", "add", "default", "via", f"fd78:{subnet}::1")
    return Forwarder(kind, attacker, middle, server)


def _give(host: Host, interface: str, ipv4: str, ipv6: str) -> None:
    ip("-n", host.netns, "address", "add", f"{ipv4}/{_LENGTHS[4]}", "dev", interface)
    ip("-n", host.netns, "address", "add", f"{ipv6}/{_LENGTHS[6]}", "dev", interface, "nodad")


@contextmanager
def wired(kind: str, name: str) -> Iterator[Forwarder]:
    """Wire three namespaces, until the block ends."""
    stem = f"fw{name}{os.getpid()}-{FORWARDERS.index(kind)}"
    try:
        made = wire(stem, kind)
        with contextlib.closing(made):
            yield made
    finally:
        for end in "ams":
            with contextlib.suppress(AssertionError):
                ip("netns", "delete", f"{stem}{end}")
