"""Close open connections that a new rule would not have let in: those that already exhaust a server.

The kernel resets them towards both ends (sock_diag(7), SOCK_DESTROY). That can't be undone, so the plan says
how many and whose; nobody on the allow-list is touched.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from fwtop.guardian.allow.allowlist import AllowList
from fwtop.kernel import netlink, sockets
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.coverage import listed, of_ports
from fwtop.model.addresses.roles import Role
from fwtop.model.rule import Rule
from fwtop.model.traffic.protocols import TCP

_MOST = 65_536  # sockets that are looked at
_SECONDS = 2.0
_BETWEEN = 64  # sockets after which urgent requests are served
_NAMED = 3
_MAPPED = bytes(10) + b"\xff\xff"
_IDENTITY = slice(4, 52)  # struct inet_diag_sockid in struct inet_diag_msg
_SENT_AT = 44  # tcpi_last_data_sent in struct tcp_info
_ATTRIBUTES_AT = 72


class OpenConnection(Struct, frozen=True):
    """A TCP connection of this host."""

    peer: Prefix
    peer_port: int
    port: int  # here
    idle_ms: int  # since this host sent data
    family: int  # of the socket, AF_INET or AF_INET6
    identity: bytes


def to_close(rule: Rule, allow: AllowList) -> list[OpenConnection]:
    """Return the open connections that the rule would not let in; raises OSError."""
    if not rule.close_open:
        return []
    found = [item for item in _open_connections() if _fits(rule, item) and not _is_allowed(item, allow)]
    if rule.connections is not None:
        return _above(rule, found)
    sources = rule.match.sources
    if of_ports(sources):
        indexes = {port: sources.meeting(TCP, port) for port in {item.port for item in found}}
        return [item for item in found if indexes[item.port].overlapping(item.peer) is not None]
    index = listed(sources)
    return [item for item in found if index.overlapping(item.peer) is not None]


def close(
    found: Sequence[OpenConnection], serve_urgent: Callable[[], None] = lambda: None
) -> tuple[int, str]:
    """Close connections for a bounded time; returns how many were, and what kept others from it."""
    end, closed = time.monotonic() + _SECONDS, 0
    for number, item in enumerate(found):
        if number % _BETWEEN == 0:
            serve_urgent()
        if time.monotonic() > end:
            return closed, f"{len(found) - number:,} were left after {_SECONDS:.0f} s"
        try:
            closed += sockets.destroy(item.identity, item.family)
        except OSError as error:
            return closed, f"the kernel refused the others: {error.strerror or error}"
    return closed, ""


def describe(found: Sequence[OpenConnection]) -> str:
    """Say whose connections these are, those with most first."""
    counts: dict[Prefix, int] = {}
    for item in found:
        counts[item.peer] = counts.get(item.peer, 0) + 1
    most = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    named = ", ".join(f"{peer} ({number:,})" for peer, number in most[:_NAMED])
    more = f" and {len(most) - _NAMED:,} more" if len(most) > _NAMED else ""
    noun = "connection" if len(found) == 1 else "connections"
    return f"{len(found):,} open {noun} of {named}{more}"


def _fits(rule: Rule, item: OpenConnection) -> bool:
    match = rule.match
    wanted = ((match.protocol, TCP), (match.dport, item.port), (match.sport, item.peer_port))
    family = match.family in (None, item.peer.family)
    return family and all(value in (None, own) for value, own in wanted)


def _is_allowed(item: OpenConnection, allow: AllowList) -> bool:
    """Return whether a connection is of somebody on the allow-list, in whatever role."""
    for entry in allow.entries:
        if entry.role is Role.OWN or not entry.prefix.contains(item.peer):
            continue
        if entry.session is None or item.port == entry.session.local_port:
            return True
    return _is_own(item, allow)


def _is_own(item: OpenConnection, allow: AllowList) -> bool:
    local = item.peer.family == 4 and item.peer.value >> 24 == 127
    own = any(entry.role is Role.OWN and entry.prefix.contains(item.peer) for entry in allow.entries)
    return local or own or (item.peer.family == 6 and item.peer.value == 1)


def _above(rule: Rule, found: list[OpenConnection]) -> list[OpenConnection]:
    """Return what each prefix has above the limit: the connections on which this host was silent longest."""
    limit = rule.connections
    if limit is None:
        return []
    of: dict[tuple[int, int], list[OpenConnection]] = {}
    for item in found:
        free = 32 - limit.prefix_v4 if item.peer.family == 4 else 128 - limit.prefix_v6
        of.setdefault((item.peer.family, item.peer.value >> free), []).append(item)
    over: list[OpenConnection] = []
    for items in of.values():
        items.sort(key=lambda item: -item.idle_ms)
        over += items[: max(0, len(items) - limit.most)]
    return over


def _open_connections() -> Iterator[OpenConnection]:
    """Yield the connections that clients opened to ports where this host listens; raises OSError."""
    ports = {item.port for item in sockets.listening_sockets() if item.protocol == "tcp"}
    seen = 0
    for family in (socket.AF_INET, socket.AF_INET6):
        dump = sockets.tcp_dump(family, sockets.OPEN_STATES, _SECONDS, sockets.TCP_INFO)
        with contextlib.closing(dump):
            for data in dump:
                for body in (body for _, body in netlink.messages(data) if len(body) >= _ATTRIBUTES_AT):
                    item = _connection(family, body)
                    if item.port in ports:
                        yield item
                    seen += 1
                if seen >= _MOST:
                    return


def _connection(family: int, body: bytes) -> OpenConnection:
    port, peer_port = struct.unpack_from(">HH", body, 4)
    peer = body[24:40]
    if family == socket.AF_INET:
        found = Prefix(4, int.from_bytes(peer[:4], "big"), 32)
    elif peer[:12] == _MAPPED:
        found = Prefix(4, int.from_bytes(peer[12:], "big"), 32)
    else:
        found = Prefix(6, int.from_bytes(peer, "big"), 128)
    return OpenConnection(found, peer_port, port, _idle_ms(body), family, body[_IDENTITY])


def _idle_ms(body: bytes) -> int:
    info = dict(netlink.attributes(body, _ATTRIBUTES_AT)).get(sockets.TCP_INFO, b"")
    return int(struct.unpack_from("=I", info, _SENT_AT)[0]) if len(info) >= _SENT_AT + 4 else 0
