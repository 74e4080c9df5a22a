"""The cost of connection tracking and long rule lists, after a filtering bridge (Univ. of Washington).

There, 190,000 tracked connections made no measurable difference to forwarding, and 500 more rules doubled the
CPU time of 11,000 packets/s. Measured here: packets accepted per second of the receiving core's time.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fwtop.bench import drop_methods
from fwtop.bench.drop_methods import FWTOP_PORT, DropMethod, throughput
from fwtop.bench.frame import Document, Options, Row, measure, until
from fwtop.bench.testbed import Testbed
from fwtop.kernel.namespaces import inside
from fwtop.lab import network as net
from fwtop.model.errors import FwtopError

_STATES, _RULES = 190_000, 500
_FIRST = "accept, tracked, table empty"
_OTHER_PORT = 9998
_FIRST_PORT = 1024
_ARRIVAL_SECONDS, _TRIES = 2.0, 1000
_KERNEL = Path("/proc/sys/net/netfilter")


def run(options: Options) -> Document:
    """Measure the table."""
    rounds, seconds = options.choose(7, 1), 0.5 if options.quick else 1.0
    notes: list[str] = []
    with Testbed() as testbed:
        tracking = partial(drop_methods.tracking, testbed)
        table: list[tuple[str, float | None, DropMethod]] = [
            (_FIRST, None, tracking),
            (f"accept, {_STATES:,} connections tracked", 1.0, partial(_filled, testbed)),
            (
                f"accept, tracked, {_RULES} more rules",
                0.5,
                partial(drop_methods.all_of, tracking, partial(_long_list, testbed)),
            ),
            (
                "accept, not tracked",
                None,
                partial(drop_methods.all_of, tracking, partial(drop_methods.notrack, testbed)),
            ),
        ]
        own = drop_methods.installable(testbed, {"accept, fwtop notrack": ["notrack", *FWTOP_PORT]}, notes)
        table += [
            (name, None, partial(drop_methods.all_of, tracking, method)) for name, method in own.items()
        ]
        rows = [
            Row(name, "packets/s and core", partial(throughput, testbed, seconds, method),
                None if name == _FIRST else _FIRST, published)
            for name, published, method in table
        ]  # fmt: skip
        return Document("conntrack", rounds, measure(rows, rounds), tuple(notes))


@contextlib.contextmanager
def _long_list(testbed: Testbed) -> Iterator[None]:
    """Add rules to INPUT that the flood doesn't match."""
    rules = "".join(f"-A INPUT -s 203.0.{number // 256}.{number % 256} -j DROP\n" for number in range(_RULES))
    testbed.run("iptables-restore", text=f"*filter\n:INPUT ACCEPT [0:0]\n{rules}COMMIT\n")
    try:
        yield
    finally:
        testbed.run("iptables", "-F", "INPUT")


@contextlib.contextmanager
def _filled(testbed: Testbed) -> Iterator[None]:
    """Fill the connection table with flows other than the flood's; flush it afterwards."""
    with drop_methods.tracking(testbed):
        testbed.run("sysctl", "-q", "-w", "net.netfilter.nf_conntrack_udp_timeout=300")
        _open_connections(testbed)
        yield
        testbed.run("conntrack", "-F")


def _open_connections(testbed: Testbed) -> None:
    """Send one datagram from each of _STATES ports and addresses of the lab's network."""
    with inside(testbed.victim), _packet_socket(net.VICTIM_INTERFACE) as far:
        victim = far.getsockname()[4]
    with inside(testbed.lab.attacker), _packet_socket(net.ATTACKER_INTERFACE) as end:
        head = victim + end.getsockname()[4] + b"\x08\x00"
        for number in range(_STATES):
            _send(end, head + _datagram(number))
    until(lambda: _count(testbed) >= _STATES, _ARRIVAL_SECONDS)
    if (count := _count(testbed)) < _STATES * 0.99:
        raise FwtopError(
            f"only {count:,} of {_STATES:,} connections could be tracked (nf_conntrack_max is "
            f"{_KERNEL.joinpath('nf_conntrack_max').read_text().strip()}); the lab is taken down"
        )


def _count(testbed: Testbed) -> int:
    with inside(testbed.victim):
        return int(_KERNEL.joinpath("nf_conntrack_count").read_text())


def _send(end: socket.socket, data: bytes) -> None:
    """Send a frame; retry while the queue is full."""
    for _ in range(_TRIES):
        try:
            end.send(data)
            return
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            time.sleep(0.001)
    raise FwtopError("the victim's queue stays full; the lab is taken down")


def _packet_socket(interface: str) -> socket.socket:
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    end.bind((interface, 0))
    return end


def _datagram(number: int) -> bytes:
    """Build a UDP datagram over IPv4 whose source address and port are unique to `number`."""
    port, host = _FIRST_PORT + number % 64_000, number // 64_000
    source = socket.inet_aton(f"198.19.1.{host + 1}")
    udp = struct.pack(">HHHH", port, _OTHER_PORT, 8, 0)
    header = struct.pack(">BBHHHBBH", 0x45, 0, 28, 0, 0, 60, 17, 0) + source + socket.inet_aton(net.VICTIM_4)
    total = sum(struct.unpack(">10H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return header[:10] + struct.pack(">H", ~total & 0xFFFF) + header[12:] + udp
