"""Many tracked connections, and a long list of rules: what a filtering machine carries beside its traffic."""

from __future__ import annotations

import errno
import socket
import struct
from itertools import islice
from pathlib import Path

from fwtop.bench.testbed import Testbed
from fwtop.kernel import netlink
from fwtop.kernel.namespaces import inside
from fwtop.netfilter.ctnetlink import ASSURED, SEEN_REPLY, TCP_STATES

STATES, RULES = 190_000, 500  # of the University of Washington's filtering bridge
_FIRST_PORT = 1024
_KERNEL = Path("/proc/sys/net/netfilter")
_NEW, _CREATE, _BATCH = 1 << 8, 0x600, 256  # IPCTNL_MSG_CT_NEW; NLM_F_CREATE and NLM_F_EXCL; entries a call
_SOURCES, _SOURCES_COUNT = 0xC6136400, 16_384  # 198.19.100.0 and on
_CONFIRMED = 1 << 3  # enum ip_conntrack_status
_KEPT_SECONDS = 432_000  # nf_conntrack_tcp_timeout_established


def long_list(testbed: Testbed, chain: str) -> None:
    """Put RULES rules that the flood doesn't match into a chain of table filter."""
    rules = "".join(
        f"-A {chain} -s 203.0.{number // 256}.{number % 256} -j DROP\n" for number in range(RULES)
    )
    testbed.run("iptables-restore", text=f"*filter\n:{chain} ACCEPT [0:0]\n{rules}COMMIT\n")


def establish(size: int, to: str, port: int) -> None:
    """Enter so many established connections to a port into this namespace's table, or until it is full.

    They are of 16,384 addresses, and are not there: nobody will send another packet of them. Raises OSError.
    """
    target = socket.inet_aton(to)
    numbers = iter(range(size))
    with netlink.open_socket(netlink.NETLINK_NETFILTER) as channel:
        while batch := [(_NEW, _entry(number, target, port)) for number in islice(numbers, _BATCH)]:
            try:
                netlink.send_all(channel, batch, _CREATE)
            except OSError as error:
                if error.errno == errno.ENOMEM:
                    return
                raise


def _entry(number: int, target: bytes, port: int) -> bytes:
    """Encode an entry of nfnetlink_conntrack.h: both tuples, its status, timeout and TCP's state."""
    source = struct.pack(">I", _SOURCES + number % _SOURCES_COUNT)
    client, service = (_FIRST_PORT + number // _SOURCES_COUNT).to_bytes(2, "big"), port.to_bytes(2, "big")
    attribute, nested = netlink.attribute, netlink.nested
    body = netlink.netfilter_header(socket.AF_INET)
    opener, other = (source, client), (target, service)
    for kind, (this, that) in ((1, (opener, other)), (2, (other, opener))):  # CTA_TUPLE_ORIG, _REPLY
        ends = nested(1, attribute(1, this[0]), attribute(2, that[0]))
        ports = nested(2, attribute(1, b"\6"), attribute(2, this[1]), attribute(3, that[1]))
        body += nested(kind, ends, ports)
    body += attribute(3, (SEEN_REPLY | ASSURED | _CONFIRMED).to_bytes(4, "big"))
    body += attribute(7, _KEPT_SECONDS.to_bytes(4, "big"))
    return body + nested(4, nested(1, attribute(1, bytes([TCP_STATES.index("ESTABLISHED")]))))


def count(testbed: Testbed) -> int:
    """Return the connections that the victim tracks."""
    with inside(testbed.victim):
        return int(_KERNEL.joinpath("nf_conntrack_count").read_text())
