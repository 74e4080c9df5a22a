"""Entries of the connection table through ctnetlink: a sample of them, those of a service, and deleting some.

Sources: include/uapi/linux/netfilter/nfnetlink_conntrack.h, net/netfilter/nf_conntrack_netlink.c.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import struct
import sys
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import NamedTuple

from fwtop.kernel import netlink
from fwtop.kernel.procfs import read_int
from fwtop.model.traffic.protocols import UDP

SEEN_REPLY, ASSURED, SRC_NAT, DST_NAT = 1 << 1, 1 << 2, 1 << 4, 1 << 5  # enum ip_conntrack_status
TCP_STATES = (
    "NONE", "SYN_SENT", "SYN_RECV", "ESTABLISHED", "FIN_WAIT", "CLOSE_WAIT", "LAST_ACK", "TIME_WAIT", "CLOSE",
    "SYN_SENT2",
)  # fmt: skip
# NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_NEW, _GET and _DELETE
_NEW, _GET, _DELETE = 1 << 8 | 0, 1 << 8 | 1, 1 << 8 | 2
_ORIGINAL, _REPLY, _STATUS, _PROTOCOL_INFO, _TIMEOUT = 1, 2, 3, 4, 7  # CTA_…
_FILTER, _STATUS_MASK = 25, 26
_FILTER_PORT = 1 << 3 | 1 << 5  # protocol and destination port (nf_internals.h)
_FILTER_SOURCE = 1 << 0  # the original source address
_KEPT = frozenset({8, 15, 16, 22, 24})  # mark, both corrections of sequence numbers, labels, SYN proxy
_CONFIRMED, _ESTABLISHED, _LIBERAL = 1 << 3, 3, 0x08  # IPS_CONFIRMED; a TCP state, and a flag of one
COUNT = "/proc/sys/net/netfilter/nf_conntrack_count"
_BATCH = 256  # deletions a system call
_FEW = 4_096  # entries of a table that are sooner read than chosen
_FAMILIES = {2: 4, 10: 6}
_NUMBERS = {4: 2, 6: 10}
# An original tuple: nested IP with source and destination, nested protocol with number and ports.
_TUPLES = {
    family: struct.Struct(f"=4xHHHHHH{size}sHH{size}sHHHHB3xHH2s2xHH2s2x")
    for family, size in ((4, 4), (6, 16))
}


class Entry(NamedTuple):
    """A tracked connection as its first packet had it."""

    family: int
    protocol: int
    source: bytes
    destination: bytes
    sport: int
    dport: int
    status: int = 0
    timeout: int = 0  # seconds left
    tcp_state: int = 0  # index of TCP_STATES
    name: bytes = b""  # CTA_TUPLE_ORIG, which names it to the kernel


def sample(most: int) -> list[Entry]:
    """Return up to `most` entries; raises OSError.

    A dump goes through the hash, whose key is the kernel's secret: what comes first is a uniform sample of
    all, so the cost does not depend on the table's size. It does on other namespaces', whose entries are in
    the same hash and are passed over. Expired entries, which still count, are left out.
    """
    with contextlib.closing(
        netlink.dump(netlink.NETLINK_NETFILTER, _GET, netlink.netfilter_header())
    ) as found:
        return [entry for body in islice(found, most) if (entry := entry_of(body)) is not None]


def entries() -> Iterator[Entry]:
    """Yield all entries, without their state and time: enough to choose some; raises OSError."""
    for body in netlink.dump(netlink.NETLINK_NETFILTER, _GET, netlink.netfilter_header()):
        entry = _tuple_of(body)
        if entry is not None:
            yield entry


def forget(chosen: Iterable[Entry]) -> Iterator[int]:
    """Delete entries, and yield after each batch how many that were; raises OSError.

    One that is gone already is no error.
    """
    with netlink.open_socket(netlink.NETLINK_NETFILTER) as channel:
        rest = iter(chosen)
        while batch := [(_DELETE, _body(entry)) for entry in islice(rest, _BATCH)]:
            try:
                netlink.send_all(channel, batch)
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise
            yield len(batch)


def answered(family: int, protocol: int, dport: int) -> Iterator[tuple[Entry, Entry]]:
    """Yield the entries that were opened to a port and answered: their first packet, and the answer to it.

    The two differ by more than their direction where addresses are translated. The kernel chooses them (since
    Linux 5.8), so the cost is that of a walk through the table. Raises OSError.
    """
    for entry, reply in _both_ways(_service(family, protocol, dport)):
        if entry.status & SEEN_REPLY and (entry.protocol, entry.dport) == (protocol, dport):
            yield entry, reply


def with_status(status: int, most: int) -> Iterator[tuple[Entry, Entry]]:
    """Yield up to `most` entries with all bits of a status: their first packet, and the answer to it.

    The kernel chooses them (since Linux 5.14), before that `most` are looked at. Raises OSError.
    """
    found = islice(_both_ways(netlink.netfilter_header() + _with(status)), most)
    yield from ((entry, reply) for entry, reply in found if entry.status & status == status)


def _both_ways(request: bytes) -> Iterator[tuple[Entry, Entry]]:
    with contextlib.closing(netlink.dump(netlink.NETLINK_NETFILTER, _GET, request)) as found:
        for body in found:
            entry = entry_of(body)
            reply = None if entry is None else _slow_tuple_of(body, entry.family, _REPLY)
            if entry is not None and reply is not None:
                yield entry, reply


def udp_peers(family: int, port: int, most: int) -> list[tuple[str, int]]:
    """Return address and port of those who talk with a UDP service, whoever began; at most `most`.

    Empty where connection tracking can't be read.
    """
    found: list[tuple[str, int]] = []
    wanted, header = port.to_bytes(2, "big"), netlink.netfilter_header(_NUMBERS[family])
    with contextlib.suppress(OSError):
        for body in netlink.dump(netlink.NETLINK_NETFILTER, _GET, header):
            entry = entry_of(body) if wanted in body else None
            if entry is None or entry.protocol != UDP or not entry.status & SEEN_REPLY:
                continue
            # What the far end sends: in the original direction if it began, else in the answers.
            heard = entry if entry.dport == port else _slow_tuple_of(body, family, _REPLY)
            if heard is not None and heard.dport == port:
                found.append((str(ipaddress.ip_address(heard.source)), heard.sport))
                if len(found) == most:
                    break
    return found


def begun_by(own: Iterable[tuple[int, bytes]], most: int) -> Iterator[Entry]:
    """Yield answered entries that these addresses (family, packed) began, at most `most`.

    A small table is read in one walk. Of a large one the kernel chooses those of each IPv4 address (since
    Linux 5.8), with a walk for each: through all buckets, so it takes as long in an empty table. Of IPv6 it
    chooses all others: Linux has the comparison the wrong way round (6.18). Nothing where connection tracking
    can't be read.
    """
    wanted = dict.fromkeys(own)
    addresses = {address for _, address in wanted}
    with contextlib.suppress(OSError):
        requests = [netlink.netfilter_header() + _with(SEEN_REPLY)]
        if read_int(COUNT) > _FEW:
            requests = [_of_source(address) for family, address in wanted if family == 4]
            if any(family == 6 for family, _ in wanted):
                requests.append(netlink.netfilter_header(_NUMBERS[6]) + _with(SEEN_REPLY))
        found = chain.from_iterable(netlink.dump(netlink.NETLINK_NETFILTER, _GET, one) for one in requests)
        begun = (entry_of(body) for body in found if any(address in body for address in addresses))
        chosen = (one for one in begun if one is not None and one.source in addresses)
        yield from islice((one for one in chosen if one.status & SEEN_REPLY), most)


def _of_source(address: bytes) -> bytes:
    """Return a request for the entries that an IPv4 address began."""
    source = netlink.nested(1, netlink.attribute(1, address))
    return netlink.netfilter_header(_NUMBERS[4]) + netlink.nested(_ORIGINAL, source) + _filter(_FILTER_SOURCE)


def _with(status: int) -> bytes:
    """Return what makes the kernel choose entries with all bits of a status (since Linux 5.14)."""
    bits = status.to_bytes(4, "big")
    return netlink.attribute(_STATUS, bits) + netlink.attribute(_STATUS_MASK, bits)


def forget_service(family: int, protocol: int, dport: int) -> None:
    """Delete all entries that were opened to a port; raises OSError.

    EINVAL or EOPNOTSUPP before Linux 6.11, which takes no filter here: nothing was deleted then.
    """
    netlink.request(netlink.NETLINK_NETFILTER, _DELETE, _service(family, protocol, dport))


def find(opened: Entry) -> bytes | None:
    """Return the message about a TCP connection, by how it was opened, None if it is not tracked.

    Raises OSError.
    """
    request = netlink.netfilter_header(_NUMBERS[opened.family]) + _opened(opened)
    try:
        return netlink.get(netlink.NETLINK_NETFILTER, _GET, request)
    except FileNotFoundError:
        return None


def opened_by(answer: Entry) -> Entry | None:
    """Return how a TCP connection was opened, by what answers it: to another port, where that is redirected.

    None if it is not tracked. Raises OSError.
    """
    request = netlink.netfilter_header(_NUMBERS[answer.family]) + _opened(answer, _REPLY)
    try:
        return entry_of(netlink.get(netlink.NETLINK_NETFILTER, _GET, request))
    except FileNotFoundError:
        return None


def assured(opened: Iterable[Entry]) -> list[bool]:
    """Return of each connection, by how it was opened, whether both ends have answered; raises OSError."""
    found = []
    with netlink.open_socket(netlink.NETLINK_NETFILTER) as channel:
        for one in opened:
            request = netlink.netfilter_header(_NUMBERS[one.family]) + _opened(one)
            try:
                entry = entry_of(netlink.ask(channel, _GET, request))
            except FileNotFoundError:
                entry = None
            found.append(entry is not None and bool(entry.status & ASSURED))
    return found


def establish(opened: Entry, before: bytes | None, seconds: int) -> None:
    """Track a TCP connection that is open, from its middle; raises OSError.

    `before` is what `find` returned when it was tracked: a SYN proxy's corrections of numbers and stamps are
    in there. Its windows are not known, so they are not checked.
    """
    kept = [
        netlink.attribute(kind | (netlink.NLA_F_NESTED if kind in (15, 16, 24) else 0), value)
        for kind, value in netlink.attributes(before or b"", netlink.NETFILTER_HEADER_BYTES)
        if kind in _KEPT
    ]
    flags = bytes((_LIBERAL, _LIBERAL))
    state = (
        netlink.attribute(1, bytes([_ESTABLISHED])),
        netlink.attribute(4, flags),
        netlink.attribute(5, flags),
    )
    status = _CONFIRMED | SEEN_REPLY | ASSURED
    answer = opened._replace(
        source=opened.destination, destination=opened.source, sport=opened.dport, dport=opened.sport
    )
    parts = (
        _opened(opened),
        _opened(answer, _REPLY),
        netlink.attribute(_STATUS, status.to_bytes(4, "big")),
        netlink.attribute(_TIMEOUT, seconds.to_bytes(4, "big")),
        netlink.nested(_PROTOCOL_INFO, netlink.nested(1, *state)),
        *kept,
    )
    body = netlink.netfilter_header(_NUMBERS[opened.family]) + b"".join(parts)
    netlink.request(netlink.NETLINK_NETFILTER, _NEW, body, netlink.NLM_F_CREATE | netlink.NLM_F_EXCL)


def _opened(entry: Entry, direction: int = _ORIGINAL) -> bytes:
    """Encode the addresses and ports of one direction."""
    first = 1 if entry.family == 4 else 3
    addresses = netlink.attribute(first, entry.source), netlink.attribute(first + 1, entry.destination)
    ports = (entry.sport.to_bytes(2, "big"), entry.dport.to_bytes(2, "big"))
    numbers = (netlink.attribute(1, bytes([entry.protocol])), *map(netlink.attribute, (2, 3), ports))
    return netlink.nested(direction, netlink.nested(1, *addresses), netlink.nested(2, *numbers))


def _service(family: int, protocol: int, dport: int) -> bytes:
    """Return a request about the entries that were opened to a port."""
    numbers = (netlink.attribute(1, bytes([protocol])), netlink.attribute(3, dport.to_bytes(2, "big")))
    body = netlink.netfilter_header(_NUMBERS[family]) + netlink.nested(_ORIGINAL, netlink.nested(2, *numbers))
    return body + _filter(_FILTER_PORT)


def _filter(fields: int) -> bytes:
    """Return what makes the kernel compare these fields of the original tuple."""
    flags = netlink.attribute(1, fields.to_bytes(4, sys.byteorder)), netlink.attribute(2, bytes(4))
    return netlink.nested(_FILTER, *flags)


def entry_of(body: bytes) -> Entry | None:
    """Decode one message, None for a protocol without ports and addresses of IP."""
    entry = _tuple_of(body)
    if entry is None:
        return None
    status = timeout = state = 0
    for kind, value in netlink.attributes(body, netlink.NETFILTER_HEADER_BYTES):
        if kind == _STATUS:
            status = int.from_bytes(value, "big")
        elif kind == _TIMEOUT:
            timeout = int.from_bytes(value, "big")
        elif kind == _PROTOCOL_INFO:
            inner = dict(netlink.attributes(value)).get(1, b"")  # CTA_PROTOINFO_TCP
            state = dict(netlink.attributes(inner)).get(1, b"\0")[0]
    return entry._replace(status=status, timeout=timeout, tcp_state=state)


def _tuple_of(body: bytes) -> Entry | None:
    family = _FAMILIES.get(body[0]) if body else None
    if family is None:
        return None
    layout = _TUPLES[family]
    if len(body) >= layout.size:
        fields = layout.unpack_from(body)
        kinds = tuple(kind & 0xFF for kind in (fields[1], fields[3], fields[5], fields[8], fields[11]))
        v4 = family == 4
        if kinds == (_ORIGINAL, 1, 1 if v4 else 3, 2 if v4 else 4, 2) and fields[16] & 0xFF == 2:
            name = body[netlink.NETFILTER_HEADER_BYTES : netlink.NETFILTER_HEADER_BYTES + fields[0]]
            sport, dport = (int.from_bytes(fields[at], "big") for at in (17, 20))
            return Entry(family, fields[14], fields[6], fields[9], sport, dport, name=name)
    return _slow_tuple_of(body, family)


def _slow_tuple_of(body: bytes, family: int, direction: int = _ORIGINAL) -> Entry | None:
    """Decode a tuple in whatever order its attributes are: ICMP's, and those of other kernels."""
    for kind, value in netlink.attributes(body, netlink.NETFILTER_HEADER_BYTES):
        if kind != direction:
            continue
        parts = {kind: dict(netlink.attributes(inner)) for kind, inner in netlink.attributes(value)}
        addresses, numbers = parts.get(1, {}), parts.get(2, {})
        source, destination = (addresses.get(key) for key in ((1, 2) if family == 4 else (3, 4)))
        if source is None or destination is None or not numbers.get(1):
            return None
        sport, dport = (int.from_bytes(numbers.get(key, b""), "big") for key in (2, 3))
        name = netlink.nested(direction, value)
        return Entry(family, numbers[1][0], source, destination, sport, dport, name=name)
    return None


def _body(entry: Entry) -> bytes:
    return netlink.netfilter_header(_NUMBERS[entry.family]) + entry.name
