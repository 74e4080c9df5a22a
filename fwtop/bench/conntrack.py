"""What connection tracking and long rule lists cost: the figures of a filtering bridge (Univ. of Washington).

There 190,000 tracked connections made no measurable difference to forwarding, and 500 more rules doubled the
processor time of 11,000 packets a second. Here: packets a second of the receiving core's time, accepted.
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

from fwtop.bench import ways
from fwtop.bench.arena import Arena
from fwtop.bench.frame import Document, Options, Row, measure, until
from fwtop.bench.ways import FWTOP_PORT, Way, ending
from fwtop.lab import network as net
from fwtop.lab.entering import inside
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
    with Arena() as arena:
        tracking = partial(ways.tracking, arena)
        table: list[tuple[str, float | None, Way]] = [
            (_FIRST, None, tracking),
            (f"accept, {_STATES:,} connections tracked", 1.0, partial(_filled, arena)),
            (
                f"accept, tracked, {_RULES} more rules",
                0.5,
                partial(ways.both, tracking, partial(_long_list, arena)),
            ),
            ("accept, not tracked", None, partial(ways.both, tracking, partial(ways.notrack, arena))),
        ]
        own = ways.usable(arena, {"accept, fwtop notrack": ["notrack", *FWTOP_PORT]}, notes)
        table += [(name, None, partial(ways.both, tracking, way)) for name, way in own.items()]
        rows = [
            Row(name, "packets/s and core", partial(ending, arena, seconds, way),
                None if name == _FIRST else _FIRST, published)
            for name, published, way in table
        ]  # fmt: skip
        return Document("conntrack", rounds, measure(rows, rounds), tuple(notes))


@contextlib.contextmanager
def _long_list(arena: Arena) -> Iterator[None]:
    """Have rules that match nothing of the flood before the end of INPUT."""
    rules = "".join(f"-A INPUT -s 203.0.{number // 256}.{number % 256} -j DROP\n" for number in range(_RULES))
    arena.run("iptables-restore", text=f"*filter\n:INPUT ACCEPT [0:0]\n{rules}COMMIT\n")
    try:
        yield
    finally:
        arena.run("iptables", "-F", "INPUT")


@contextlib.contextmanager
def _filled(arena: Arena) -> Iterator[None]:
    """Track so many connections of other ports beside the flood's; they are forgotten afterwards."""
    with ways.tracking(arena):
        arena.run("sysctl", "-q", "-w", "net.netfilter.nf_conntrack_udp_timeout=300")
        _open_connections(arena)
        yield
        arena.run("conntrack", "-F")


def _open_connections(arena: Arena) -> None:
    """Send one datagram each from so many ports and addresses of the lab's own network."""
    with inside(arena.victim), _packet_socket(net.VICTIM_INTERFACE) as far:
        victim = far.getsockname()[4]
    with inside(arena.lab.attacker), _packet_socket(net.ATTACKER_INTERFACE) as end:
        head = victim + end.getsockname()[4] + b"\x08\x00"
        for number in range(_STATES):
            _send(end, head + _datagram(number))
    until(lambda: _count(arena) >= _STATES, _ARRIVAL_SECONDS)
    if (count := _count(arena)) < _STATES * 0.99:
        raise FwtopError(
            f"only {count:,} of {_STATES:,} connections could be tracked (nf_conntrack_max is "
            f"{_KERNEL.joinpath('nf_conntrack_max').read_text().strip()}); the lab is taken down"
        )


def _count(arena: Arena) -> int:
    with inside(arena.victim):
        return int(_KERNEL.joinpath("nf_conntrack_count").read_text())


def _send(end: socket.socket, data: bytes) -> None:
    """Send a frame; where the queue is full, wait until the other side has taken some."""
    for _ in range(_TRIES):
        try:
            end.send(data)
            return
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            time.sleep(0.001)
    raise FwtopError("the victim takes nothing in; the lab is taken down")


def _packet_socket(interface: str) -> socket.socket:
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    end.bind((interface, 0))
    return end


def _datagram(number: int) -> bytes:
    """Build a UDP datagram over IPv4 whose source nobody else has."""
    port, host = _FIRST_PORT + number % 64_000, number // 64_000
    source = socket.inet_aton(f"198.19.1.{host + 1}")
    udp = struct.pack(">HHHH", port, _OTHER_PORT, 8, 0)
    header = struct.pack(">BBHHHBBH", 0x45, 0, 28, 0, 0, 60, 17, 0) + source + socket.inet_aton(net.VICTIM_4)
    total = sum(struct.unpack(">10H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return header[:10] + struct.pack(">H", ~total & 0xFFFF) + header[12:] + udp
