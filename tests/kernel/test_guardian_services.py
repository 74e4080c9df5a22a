"""Services as the kernel shows them: who listens, by real cgroups; what DNAT publishes; what a host asks."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from guardian_bench import Bench
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether

from fwtop.guardian.services import _OWN, Services
from fwtop.model.protocol import Survey
from fwtop.model.service import Service
from fwtop.netfilter import ctnetlink
from tests.kernel.conftest import Host
from tests.kernel.forwarding_bench import Forwarder, udp_socket, wired
from tests.kernel.watching import tick, watched
from tests.kernel.wire import inside, mac, send_frames

pytestmark = pytest.mark.kernel
Poll = Callable[..., bool]
FORGED = "198.51.100.77"
ID = "3f2a1b0c9d8e" + "0123456789abcdef" * 3 + "0123"
_SERVER = """
import socket, sys
sys.stdin.readline()
servers = [socket.create_server((sys.argv[1], int(port))) for port in sys.argv[2:]]
print("ready", flush=True)
kept = [server.accept()[0] for server in servers]
sys.stdin.readline()
"""


@pytest.fixture
def router() -> Iterator[Forwarder]:
    """The victim routes between an attacker and a server."""
    with wired("router", "s") as made:
        yield made


@pytest.fixture
def cgroup2() -> Path:
    """Where cgroup v2 is mounted, alone or beside v1."""
    found = re.search(r"^(?:\S+ ){3}/ (\S+) .* - cgroup2 ", Path("/proc/self/mountinfo").read_text(), re.M)
    if found is None:
        pytest.skip("no cgroup v2")
    return Path(found[1])


@contextlib.contextmanager
def serving(host: Host, address: str, *ports: int, cgroup: Path) -> Iterator[int]:
    """Listen in a host's namespace from a process in a cgroup that is made for it; yield its id."""
    command = ["ip", "netns", "exec", host.netns, sys.executable, "-c", _SERVER, address, *map(str, ports)]
    cgroup.mkdir(parents=True)
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        (cgroup / "cgroup.procs").write_text(str(server.pid))
        server.stdin.write("\n")
        server.stdin.flush()
        assert server.stdout.readline()
        yield server.pid
    finally:
        server.kill()
        server.communicate()
        for made in (cgroup, *cgroup.parents):
            if made.name.endswith((".scope", ".service", ".slice")) or made.name.startswith("lxc."):
                made.rmdir()


def read(host: Host, services: Services) -> tuple[list[Service], list[Service]]:
    with inside(host.netns):
        for _ in range(2 + _OWN):  # all questions to the connection table
            services._due = 0.0  # as if the pause were over
            found = services.read()
    return found


def test_unit_and_user_of_who_listens_come_from_its_cgroup(
    router: Forwarder, cgroup2: Path, poll_until: Poll
) -> None:
    unit = cgroup2 / "fwtest.slice" / "web.service"
    services = Services()
    with serving(router.victim, "", 8080, cgroup=unit):
        assert poll_until(lambda: read(router.victim, services)[0] != [], every_s=0.1)
        (found,) = read(router.victim, services)[0]
    assert (found.protocol, found.port, found.addresses) == ("tcp", 8080, ())
    assert (found.unit, found.container, found.user) == ("web.service", "", "root")
    assert found.key.owner == "web.service"
    assert found.name.startswith("python")
    assert read(router.victim, services)[0] == [], "it has ended"


def test_sockets_of_two_addresses_are_two_services_if_two_listen(router: Forwarder, cgroup2: Path) -> None:
    services = Services()
    first, second = (cgroup2 / f"fwtest{number}.service" for number in (1, 2))
    with (
        serving(router.victim, router.victim.ipv4, 8080, cgroup=first),
        serving(router.victim, "127.0.0.1", 8080, cgroup=second),
    ):
        found = {item.unit: item.addresses for item in read(router.victim, services)[0]}
    assert found == {"fwtest1.service": (router.victim.ipv4,), "fwtest2.service": ("127.0.0.1",)}


def test_what_dnat_publishes_is_the_service_behind_in_its_container(router: Forwarder, cgroup2: Path) -> None:
    dnat = ("-j", "DNAT", "--to-destination", f"{router.server.ipv4}:80")
    router.victim.run("iptables", "-t", "nat", "-A", "PREROUTING", "-p", "tcp", "--dport", "8080", *dnat)
    services = Services()
    container = cgroup2 / f"docker-{ID}.scope"
    with (
        serving(router.server, "", 80, cgroup=container),
        inside(router.attacker.netns),
        socket.create_connection(("10.78.1.1", 8080), timeout=30) as client,
    ):
        found, asks = read(router.victim, services)
        port = client.getsockname()[1]
    assert [(item.protocol, item.port, item.addresses) for item in found] == [
        ("tcp", 80, (router.server.ipv4,))
    ]
    assert found[0].published == (("10.78.1.1", 8080),)
    assert (found[0].container, found[0].user) == ("docker 3f2a1b0c9d8e", "0")
    assert found[0].key.owner == f"docker {found[0].name} 0", "the next container of the image is the same"
    assert not any(item.port in (80, port) for item in asks), "the host asks nothing there"


def test_a_flood_of_forged_handshakes_shows_the_service_that_nobody_used_yet(
    router: Forwarder, cgroup2: Path
) -> None:
    dnat = ("-j", "DNAT", "--to-destination", f"{router.server.ipv4}:80")
    router.victim.run("iptables", "-t", "nat", "-A", "PREROUTING", "-p", "tcp", "--dport", "8080", *dnat)
    forger, services = router.attacker, Services()
    wire = Ether(dst=mac(router.victim), src=mac(forger)) / IP(src=FORGED, dst=router.victim.ipv4)
    with serving(router.server, "", 80, cgroup=cgroup2 / "fwtest.service"):
        send_frames(forger, *(bytes(wire / TCP(sport=port, dport=8080)) for port in range(50_000, 50_100)))
        (found,) = read(router.victim, services)[0]
    assert (found.port, found.published, found.unit) == (80, ((router.victim.ipv4, 8080),), "fwtest.service")


def test_a_guardian_tells_of_a_container_behind_it(
    router: Forwarder, cgroup2: Path, tmp_path: Path, poll_until: Poll
) -> None:
    dnat = ("-j", "DNAT", "--to-destination", f"{router.server.ipv4}:80")
    router.victim.run("iptables", "-t", "nat", "-A", "PREROUTING", "-p", "tcp", "--dport", "8080", *dnat)
    bench = Bench(router, tmp_path)
    container = cgroup2 / "lxc.payload.shop" / "httpd.service"
    with (
        serving(router.server, "", 80, cgroup=container),
        inside(router.attacker.netns),
        socket.create_connection(("10.78.1.1", 8080), timeout=30),
        contextlib.closing(bench),
        bench.connect(role="console") as console,
    ):

        def found() -> list[tuple[str, str, list[Any]]]:
            data = console.demand(Survey()).data.get("services", ())
            return [(item["container"], item["unit"], item["published"]) for item in data]

        wanted = [("lxc shop", "httpd.service", [["10.78.1.1", 8080]])]
        assert poll_until(lambda: found() == wanted, every_s=0.2), found()


def test_connections_to_a_container_are_assured_and_forged_segments_are_not(
    router: Forwarder, cgroup2: Path
) -> None:
    dnat = ("-j", "DNAT", "--to-destination", f"{router.server.ipv4}:80")
    router.victim.run("iptables", "-t", "nat", "-A", "PREROUTING", "-p", "tcp", "--dport", "8080", *dnat)
    forger, victim = router.attacker, socket.inet_pton(socket.AF_INET, router.victim.ipv4)
    forged = [("S", 50_001), ("A", 50_002), ("PA", 50_003)]
    with (
        serving(router.server, router.server.ipv4, 80, cgroup=cgroup2 / "fwtest.service"),
        inside(forger.netns),
        socket.create_connection((router.victim.ipv4, 8080), timeout=30) as client,
    ):
        wire = Ether(dst=mac(router.victim), src=mac(forger)) / IP(src=FORGED, dst=router.victim.ipv4)
        segments = [wire / TCP(sport=port, dport=8080, flags=flags) for flags, port in forged]
        send_frames(forger, *map(bytes, segments))
        mine, port = client.getsockname()
        asked = [(mine, port), *((FORGED, port) for _, port in forged), (mine, 50_004)]
        opened = [
            ctnetlink.Entry(4, 6, socket.inet_pton(socket.AF_INET, source), victim, sport, 8080)
            for source, sport in asked
        ]
        with inside(router.victim.netns):
            assert 50_001 in [one.sport for one in ctnetlink.entries()], "the forged SYN was seen"
            assert ctnetlink.assured(opened) == [True, False, False, False, False]


def test_the_first_window_asks_who_completed_handshakes(
    router: Forwarder, cgroup2: Path, tmp_path: Path
) -> None:
    """It is all that `fwtop snapshot` has, and no attack has a name before it."""
    router.victim.run("iptables", "-A", "INPUT", "-m", "conntrack", "--ctstate", "NEW", "-j", "ACCEPT")
    with (
        serving(router.victim, "", 8080, cgroup=cgroup2 / "fwtest.service"),
        contextlib.closing(Bench(router, tmp_path)) as bench,
        watched(bench) as session,
        inside(router.attacker.netns),
        socket.create_connection((router.victim.ipv4, 8080), timeout=30),
    ):
        tick(bench, session)
        judged = session._advisor.judged
    assert judged is not None
    assert judged.context.tracked is not None
    assert len(set(judged.context.tracked.assured.tolist())) == 1


def test_a_redirected_port_belongs_to_the_local_service(router: Forwarder, cgroup2: Path) -> None:
    redirect = ("-p", "tcp", "--dport", "443", "-j", "REDIRECT", "--to-ports", "8443")
    router.victim.run("iptables", "-t", "nat", "-A", "PREROUTING", *redirect)
    with (
        serving(router.victim, "", 8443, cgroup=cgroup2 / "fwtest.service"),
        inside(router.attacker.netns),
        socket.create_connection(("10.78.1.1", 443), timeout=30),
    ):
        (found,) = read(router.victim, Services())[0]
    assert (found.port, found.published, found.unit) == (8443, (("10.78.1.1", 443),), "fwtest.service")


def test_what_the_host_asks_is_told_and_who_asks_the_host_is_not(router: Forwarder, cgroup2: Path) -> None:
    router.victim.run("iptables", "-A", "INPUT", "-m", "conntrack", "--ctstate", "NEW", "-j", "ACCEPT")
    victim, server = router.victim, router.server
    with contextlib.ExitStack() as stack:
        stack.enter_context(serving(server, server.ipv4, 5432, cgroup=cgroup2 / "fwtest.service"))
        resolver, mine = udp_socket(server, 4, 53), udp_socket(victim, 4, 40_053)
        served, attacker = udp_socket(victim, 4, 53), udp_socket(router.attacker, 4, 53)
        for one in (resolver, mine, served, attacker):
            stack.enter_context(one)
        mine.sendto(b"?", (server.ipv4, 53))
        resolver.sendto(b"!", resolver.recvfrom(9)[1])
        attacker.sendto(b"?", (victim.ipv4, 53))
        served.sendto(b"!", served.recvfrom(9)[1])
        attacker.sendto(b"forged", (victim.ipv4, 40_999))
        with inside(victim.netns):
            stack.enter_context(socket.create_connection((server.ipv4, 5432), timeout=30))
        asks = read(victim, Services())[1]
    assert {(item.protocol, *item.addresses, item.port) for item in asks} == {
        ("udp", server.ipv4, 53),
        ("tcp", server.ipv4, 5432),
    }
