"""Connections that are open when a rule comes: closed, no longer tracked, or kept tracked.

A new rule may close those that it would not have let in, as they already exhaust a server: the kernel resets
them towards both ends (sock_diag(7), SOCK_DESTROY). That can't be undone, so the plan says how many and
whose; nobody on the allow-list is touched.

Entries of connections that a rule exempts from tracking are deleted: no packet finds them any more, yet an
established one stays for five days, and in a full table they keep new clients of other services out.

A SYN proxy makes tracking strict: it takes up no connection in its middle (nf_conntrack_tcp_loose 0), so that
after `conntrack -F` the host's own rules on states would drop what belongs to an operator's session. What the
table has of a session is remembered, and put back when it is gone; TCP bridges the second until then.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from fwtop.guardian.allow.allowlist import AllowList
from fwtop.guardian.allow.found import Session, connections
from fwtop.kernel import netlink, sockets
from fwtop.kernel.procfs import read_int
from fwtop.model.addresses.address import Prefix, listed, of_pairs, of_ports
from fwtop.model.addresses.roles import Role
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule
from fwtop.model.traffic.protocols import TCP
from fwtop.netfilter import ctnetlink
from fwtop.netfilter.ctnetlink import Entry
from fwtop.rules.kinds import of

_MOST = 65_536  # sockets that are looked at
_SECONDS = 2.0
_BETWEEN = 64  # sockets after which urgent requests are served
_NAMED = 3
_MAPPED = bytes(10) + b"\xff\xff"
_IDENTITY = slice(4, 52)  # struct inet_diag_sockid in struct inet_diag_msg
_SENT_AT = 44  # tcpi_last_data_sent in struct tcp_info
_ATTRIBUTES_AT = 72
_Service = tuple[int, int | None, int]  # family, protocol, port
SECONDS = 1.0  # between two looks
_TIMEOUT_SECONDS = 600  # of an entry that was put back, until its next packet


class OpenConnection(Struct, frozen=True):
    """A TCP connection of this host."""

    here: Prefix
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
    if of_pairs(sources):
        here = {item.here: sources.sent_to((item.here,)) for item in found}
        return [item for item in found if here[item.here].overlapping(item.peer) is not None]
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
        if entry.login_port in (0, item.port):
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
    here, peer = (_address(family, body[at : at + 16]) for at in (8, 24))
    return OpenConnection(here, peer, peer_port, port, _idle_ms(body), family, body[_IDENTITY])


def _address(family: int, data: bytes) -> Prefix:
    if family == socket.AF_INET:
        return Prefix.of_packed(data[:4])
    return Prefix.of_packed(data[12:] if data[:12] == _MAPPED else data)


def _idle_ms(body: bytes) -> int:
    info = dict(netlink.attributes(body, _ATTRIBUTES_AT)).get(sockets.TCP_INFO, b"")
    return int(struct.unpack_from("=I", info, _SENT_AT)[0]) if len(info) >= _SENT_AT + 4 else 0


def forget(rule: Rule, serve_urgent: Callable[[], None]) -> int:
    """Delete the entries of a rule's parts that ask for it, and return how many; raises OSError."""
    services = [
        (family, part.match.protocol, part.match.dport)
        for part in rule.parts or (rule,)
        if part.forget and part.match.dport is not None
        for family in part.match.families
    ]
    if not services:
        return 0
    before = read_int(ctnetlink.COUNT)
    slow = {service for service in services if not _at_once(service)}
    if slow:
        chosen = (item for item in ctnetlink.entries() if (item.family, item.protocol, item.dport) in slow)
        for _ in ctnetlink.forget(chosen):
            serve_urgent()
    return max(0, before - read_int(ctnetlink.COUNT))


def _at_once(service: _Service) -> bool:
    """Let the kernel choose them, which takes milliseconds; returns whether it can (Linux 6.11)."""
    family, protocol, port = service
    if protocol is None:
        return False
    try:
        ctnetlink.forget_service(family, protocol, port)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return False
        raise
    return True


class StrictTracking:
    """The sessions to proxied ports, how they were opened, and what the table had of each."""

    def __init__(self) -> None:
        self._opened: dict[Session, Entry] = {}
        self._kept: dict[Session, bytes] = {}
        self._due = 0.0

    def look(self, rules: Iterable[Rule], allow: AllowList, now: float) -> float | None:
        """Put back what the table lost of sessions; return when to look again, None if there are none.

        Raises FwtopError where the table can't be read or written.
        """
        parts = (part for rule in rules for part in (rule.parts or (rule,)))
        ports = {part.match.dport for part in parts if of(part.kind).answers}
        wanted = {
            Session(entry.prefix, entry.port, entry.login_port)
            for entry in allow.entries
            if entry.login_port in ports
        }
        self._kept = {session: kept for session, kept in self._kept.items() if session in wanted}
        if not wanted:
            return None
        if now >= self._due:
            self._due = now + SECONDS
            self._learn(wanted)
            try:
                for session in wanted & self._opened.keys():
                    self._restore(session)
            except OSError as error:
                raise FwtopError(f"sessions are not kept in the connection table: {error.strerror}") from None
        return max(self._due, time.monotonic())

    def _learn(self, wanted: set[Session]) -> None:
        """Find out to which of our addresses sessions go that are new."""
        self._opened = {session: entry for session, entry in self._opened.items() if session in wanted}
        if wanted <= self._opened.keys():
            return
        for own, session in connections({session.local_port for session in wanted}):
            if session in wanted:
                peer, ports = session.peer, (session.peer_port, session.local_port)
                self._opened[session] = Entry(peer.family, TCP, peer.packed, own.packed, *ports)

    def _restore(self, session: Session) -> None:
        opened = self._opened[session]
        found = ctnetlink.find(opened)
        if found is not None:
            self._kept[session] = found
            return
        with contextlib.suppress(FileExistsError):
            ctnetlink.establish(opened, self._kept.get(session), _TIMEOUT_SECONDS)
