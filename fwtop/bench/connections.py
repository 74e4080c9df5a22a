"""Many tracked connections, and a long list of rules: what a filtering machine carries beside its traffic."""

from __future__ import annotations

import errno
import socket
import struct
import time
from pathlib import Path

from fwtop.bench.frame import until
from fwtop.bench.testbed import Testbed
from fwtop.kernel.namespaces import inside
from fwtop.lab import network as net
from fwtop.model.errors import FwtopError

STATES, RULES = 190_000, 500  # of the University of Washington's filtering bridge
_OTHER_PORT = 9998
_FIRST_PORT = 1024
_ARRIVAL_SECONDS, _TRIES = 2.0, 1000
_KERNEL = Path("/proc/sys/net/netfilter")


def long_list(testbed: Testbed, chain: str) -> None:
    """Put RULES rules that the flood doesn't match into a chain of table filter."""
    rules = "".join(
        f"-A {chain} -s 203.0.{number // 256}.{number % 256} -j DROP\n" for number in range(RULES)
    )
    testbed.run("iptables-restore", text=f"*filter\n:{chain} ACCEPT [0:0]\n{rules}COMMIT\n")


def open_connections(testbed: Testbed, to: bytes) -> None:
    """Send one datagram from each of STATES ports and addresses of the lab's network to a MAC address."""
    with inside(testbed.lab.attacker), _packet_socket(net.ATTACKER_INTERFACE) as end:
        head = to + end.getsockname()[4] + b"\x08\x00"
        for number in range(STATES):
            _send(end, head + _datagram(number))
    until(lambda: count(testbed) >= STATES, _ARRIVAL_SECONDS)
    if (found := count(testbed)) < STATES * 0.99:
        raise FwtopError(
            f"only {found:,} of {STATES:,} connections could be tracked (nf_conntrack_max is "
            f"{_KERNEL.joinpath('nf_conntrack_max').read_text().strip()}); the lab is taken down"
        )


def count(testbed: Testbed) -> int:
    """Return the connections that the victim tracks."""
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
