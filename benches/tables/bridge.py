"""A bridge against a router, after a filtering bridge (Univ. of Washington): packets passed on a second.

Asked there: what do 190,000 tracked connections cost, what do 500 rules, is a bridge faster than a router,
with frames of 128 and of 1,518 bytes? (Theirs went in both directions at once; these go in one.)
The victim of the lab becomes either; what it passes on ends in a device of type ifb, which frees what it
sends as a network card does. At a veth pair's end somebody would have to drop it, at the cost of the same
core, and of fwtop's hook for drops. Measured are packets sent per second of the forwarding core's time, with
fwtop's screen watching and without.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial

from benches.connections import RULES, STATES, count, establish, long_list
from fwtop.bench.frame import Document, Options, Row, measure
from fwtop.bench.programs import Terminal, fwtop_argv
from fwtop.bench.testbed import SOURCES, Testbed, flood_text
from fwtop.kernel.namespaces import inside
from fwtop.kernel.procfs import parse_devices, read_text
from fwtop.lab import network as net
from fwtop.model.errors import FwtopError

_OUT, _BRIDGE = "out1", "br0"
_PORT = 443  # of the connections
_PORT_ADDRESS = "02:00:5e:10:00:01"  # of the bridge's port, whose own address goes to the machine behind
_TRACK = "table inet bench { chain only { type filter hook forward priority 0; ct state new accept; }; }\n"
_UNIT = "packets/s and core"
_SIZES = (128, 1_518)  # of frames with their checksum, as they measured; all other rows have the shortest
_AROUND = 46  # Ethernet, IPv4 and UDP headers and the checksum around a payload
_SETTLE_SECONDS, _PATIENCE_SECONDS = 5.0, 20.0
_ROUTER, _PLAIN, _FILTERING = "router", "bridge", "bridge with br_netfilter"
_NETFILTER = {_PLAIN: 0, _FILTERING: 1}
_NOTES = (
    "packets/s and core: packets passed on per second of CPU time of the forwarding thread",
    f"published: {STATES:,} states made no difference, {RULES} rules doubled CPU time at 11,000 packets/s",
)

Load = Callable[[Testbed], contextlib.AbstractContextManager[None]]


def run(options: Options) -> Document:
    """Measure the table."""
    rounds, seconds = options.choose(5, 1), 0.5 if options.quick else 1.0
    rows = [
        Row(name, _UNIT, partial(_passed_on, seconds, kind, load), versus, published)
        for name, kind, load, versus, published in _table()
    ]
    rows += [
        Row(f"{kind}, {size} bytes", _UNIT, partial(_passed_on, seconds, kind, _bare, size), kind)
        for size in _SIZES
        for kind in (_ROUTER, _PLAIN, _FILTERING)
    ]
    return Document("bridge", rounds, measure(rows, rounds), _NOTES)


def _table() -> Iterator[tuple[str, str, Load, str | None, float | None]]:
    for kind, versus in ((_ROUTER, None), (_PLAIN, _ROUTER), (_FILTERING, _ROUTER)):
        yield kind, kind, _bare, versus, None
        if kind != _FILTERING:  # next to each other: other work on the machine changes within a round
            yield f"{kind}, fwtop watching", kind, _watching, kind, None
    for kind in (_ROUTER, _FILTERING):
        yield f"{kind}, {RULES} rules", kind, _ruled, kind, 0.5
        yield f"{kind}, tracking", kind, _tracking, kind, None
        yield f"{kind}, tracking, {STATES:,} connections", kind, _filled, f"{kind}, tracking", 1.0


def _bare(_: Testbed) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def _passed_on(seconds: float, kind: str, load: Load, size: int | None = None) -> float:
    """Return packets passed on per second of the forwarding core's time, of the shortest frames or a size."""
    turn = _routing if kind == _ROUTER else partial(_bridging, netfilter=_NETFILTER[kind])
    with Testbed(None if size is None else flood_text(size - _AROUND)) as testbed:
        _cable(testbed)
        with turn(testbed), load(testbed), testbed.flooded():
            if load is _watching:  # its duty cycle begins under load
                time.sleep(_SETTLE_SECONDS)
            packets, used = _sent(testbed), testbed.lab.receiving_seconds()
            time.sleep(seconds)
            passed = _sent(testbed) - packets
            if passed == 0:
                raise FwtopError(f"the {kind} passed nothing on; the lab is taken down")
            return passed / max(testbed.lab.receiving_seconds() - used, 1e-6)


def _sent(testbed: Testbed) -> int:
    """Return the packets that went out; the device counts what it is given to send as received."""
    with inside(testbed.victim):
        return parse_devices(read_text("/proc/thread-self/net/dev"))[_OUT][1]


def _cable(testbed: Testbed) -> None:
    """Add the wire to the machine behind; the victim's own address is no longer its own."""
    testbed.run("ip", "link", "add", _OUT, "type", "ifb")
    testbed.run("ip", "link", "set", _OUT, "up")
    testbed.run("ip", "address", "del", f"{net.VICTIM_4}/{net.LENGTH_4}", "dev", net.VICTIM_INTERFACE)


@contextlib.contextmanager
def _routing(testbed: Testbed) -> Iterator[None]:
    """Route what is for the victim to the machine behind."""
    testbed.run("sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
    testbed.run("ip", "route", "replace", f"{net.VICTIM_4}/32", "dev", _OUT)
    testbed.run("ip", "route", "replace", SOURCES, "dev", net.VICTIM_INTERFACE)
    neighbour = ["ip", "neigh", "replace", net.VICTIM_4, "lladdr", _PORT_ADDRESS, "dev", _OUT]
    testbed.run(*neighbour, "nud", "permanent")
    try:
        yield
    finally:
        testbed.run("ip", "route", "del", f"{net.VICTIM_4}/32", "dev", _OUT)
        testbed.run("ip", "route", "del", SOURCES, "dev", net.VICTIM_INTERFACE)
        testbed.run("sysctl", "-q", "-w", "net.ipv4.ip_forward=0")


@contextlib.contextmanager
def _bridging(testbed: Testbed, netfilter: int) -> Iterator[None]:
    """Bridge what is for the victim's MAC address to the machine behind."""
    switches = [f"net.bridge.bridge-nf-call-{name}tables={netfilter}" for name in ("ip", "ip6")]
    address = testbed.lab.wire.victim.hex(":")
    testbed.run("ip", "link", "add", _BRIDGE, "type", "bridge")
    try:
        testbed.run("sysctl", "-q", "-w", *switches)
        testbed.run("ip", "link", "set", net.VICTIM_INTERFACE, "address", _PORT_ADDRESS)
        for port in (net.VICTIM_INTERFACE, _OUT):
            testbed.run("ip", "link", "set", port, "master", _BRIDGE)
        testbed.run("ip", "link", "set", _BRIDGE, "up")
        testbed.run("bridge", "fdb", "replace", address, "dev", _OUT, "master", "static")
        yield
    finally:
        testbed.run("ip", "link", "delete", _BRIDGE)
        testbed.run("ip", "link", "set", net.VICTIM_INTERFACE, "address", address)


@contextlib.contextmanager
def _ruled(testbed: Testbed) -> Iterator[None]:
    long_list(testbed, "FORWARD")
    try:
        yield
    finally:
        testbed.run("iptables", "-F", "FORWARD")


@contextlib.contextmanager
def _tracking(testbed: Testbed) -> Iterator[None]:
    testbed.run("nft", "-f", "-", text=_TRACK)
    try:
        yield
    finally:
        testbed.run("nft", "delete", "table", "inet", "bench")
        testbed.run("conntrack", "-F")


@contextlib.contextmanager
def _filled(testbed: Testbed) -> Iterator[None]:
    with _tracking(testbed):
        with inside(testbed.victim):
            establish(STATES, net.VICTIM_4, _PORT)
        if (found := count(testbed)) < STATES:
            raise FwtopError(f"only {found:,} of {STATES:,} connections fit; the lab is taken down")
        yield


@contextlib.contextmanager
def _watching(testbed: Testbed) -> Iterator[None]:
    words = ["watch", "--netns", testbed.victim, "--no-store", "-i", net.VICTIM_INTERFACE]
    with Terminal(fwtop_argv(*words)) as terminal:
        terminal.wait_for(" pps", _PATIENCE_SECONDS)
        yield
