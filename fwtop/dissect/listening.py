"""Two-way evidence in packets that arrive at the ports of bridges and the interfaces of a router.

The guardian opens the sockets, which takes root, and passes each packet on unread. This process gives root
away and confines itself before it looks at one; of a conversation it tells role, addresses and port only.

A conversation is believed when its two directions arrive at different ports. What arrived at one port is
remembered apart from what arrived at others: a flood by one of them pushes out only what came with it.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

from msgspec import Struct

from fwtop.dissect.findings import PORT, encode_finding
from fwtop.dissect.supervisor import dissector_user
from fwtop.model.addresses import roles
from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.protocols import TCP, UDP
from fwtop.sandbox.confine import Profile, confine, drop_privileges, limit

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_Direction = tuple[roles.Conversation, bool]  # and whether its peer sent this
Note = Callable[[roles.Role, roles.Conversation, float], None]  # the last: monotonic seconds
_LONGEST_MESSAGE = 4096
_MEMORY_BYTES = 256 << 20
_AGAIN_SECONDS = 10.0  # a conversation that goes on is told again after so long
_REMEMBERED = 4096  # conversations told lately
_HEARD_AT_PORT = 1024  # conversations remembered of one direction
_HEARD_SECONDS = 60.0  # between the two directions
_HELLO = {2: (4, 44), 3: (4, 36)}  # OSPF version: where the router's number is, and its neighbours'
_ALL_ROUTERS = {4: ("224.0.0.5", "224.0.0.6"), 6: ("ff02::5", "ff02::6")}  # RFC 2328, RFC 5340
_VRRP_GROUPS = frozenset(map(Prefix.parse, ("224.0.0.18", "ff02::12")))  # RFC 9568
_FROM_LINK = 255  # the TTL that no router passes on: RFC 9568, 5.1.1.3
_OSPF, _VRRP = roles.ROUTING
_HELLO_TYPE, _ROUTERS = 1, 64


def main(arguments: list[str]) -> int:
    """Serve the socket whose descriptor is the first argument; the others are ports of SSH daemons."""
    channel = int(arguments[0])
    os.chdir("/")
    drop_privileges(dissector_user())
    confine(Profile.DISSECTOR)
    limit(_MEMORY_BYTES)
    findings = _FindingsChannel(channel)
    conversations = Conversations(findings.tell, [int(port) for port in arguments[1:]])
    with contextlib.suppress(ConnectionError):  # the guardian has ended
        while message := os.read(channel, _LONGEST_MESSAGE):
            (port,), packet = PORT.unpack_from(message), message[PORT.size :]
            if not packet:
                conversations.forget(port)
            elif (heard := headers_of(packet)) is not None:
                conversations.hear(port, heard, time.monotonic())
    return 0


def _remember(kept: OrderedDict[_Key, _Value], key: _Key, value: _Value, most: int) -> None:
    """Keep a value as the newest; the oldest goes where they are too many."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > most:
        kept.popitem(last=False)


class _FindingsChannel:
    """Writes findings, each conversation's seldom: it has evidence with every packet."""

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._told: OrderedDict[tuple[roles.Role, roles.Conversation], float] = OrderedDict()

    def tell(self, role: roles.Role, conversation: roles.Conversation, now: float) -> None:
        key = role, conversation
        if now - self._told.get(key, -_AGAIN_SECONDS) < _AGAIN_SECONDS:
            return
        _remember(self._told, key, now, _REMEMBERED)
        os.write(self._channel, encode_finding(role, conversation))


class Heard(Struct, frozen=True):
    """The headers of a packet; addresses as on the wire, ports 0 where the protocol has none."""

    family: int
    protocol: int
    source: bytes
    destination: bytes
    sport: int
    dport: int
    ttl: int
    payload: bytes  # of a protocol without ports: what follows the IP header


def headers_of(data: bytes) -> Heard | None:
    """Read a packet from its network header on; None where a header is not whole, or a fragment's."""
    if len(data) >= 20 and data[0] >> 4 == 4:
        if int.from_bytes(data[6:8], "big") & 0x1FFF:
            return None
        family, protocol, ttl, source, target = 4, data[9], data[8], data[12:16], data[16:20]
        rest = data[4 * (data[0] & 15) :]
    elif len(data) >= 40 and data[0] >> 4 == 6:
        family, protocol, ttl, source, target, rest = 6, data[6], data[7], data[8:24], data[24:40], data[40:]
    else:
        return None
    if protocol not in (TCP, UDP):
        return Heard(family, protocol, source, target, 0, 0, ttl, rest)
    if len(rest) < 4:
        return None
    sport, dport = struct.unpack_from(">HH", rest)
    return Heard(family, protocol, source, target, sport, dport, ttl, b"")


class _Router(Struct):
    """What an OSPF router said of itself."""

    address: Prefix
    port: int  # index of the interface
    neighbours: frozenset[bytes]
    heard_at: float


class Conversations:
    """What was heard at the ports so far."""

    def __init__(self, note: Note, ssh_ports: Collection[int] = ()) -> None:
        """`note` is called with each new evidence; `ssh_ports` are those of SSH daemons."""
        self._note = note
        self._ssh_ports = frozenset(ssh_ports)
        self._heard: dict[int, OrderedDict[_Direction, float]] = {}
        self._routers: OrderedDict[bytes, _Router] = OrderedDict()

    def hear(self, port: int, heard: Heard, now: float) -> None:
        """Take a packet that arrived at a port, given by index."""
        if heard.protocol == _OSPF:
            self._hear_router(port, heard, now)
        elif heard.protocol == _VRRP:
            self._hear_vrrp(heard, now)
        else:
            for role, conversation, from_peer in directions(heard, self._ssh_ports):
                if self._was_heard_elsewhere(port, (conversation, not from_peer), now):
                    self._note(role, conversation, now)
                mine = self._heard.setdefault(port, OrderedDict())
                _remember(mine, (conversation, from_peer), now, _HEARD_AT_PORT)

    def forget(self, port: int) -> None:
        """Forget what arrived at a port that is gone."""
        self._heard.pop(port, None)

    def _was_heard_elsewhere(self, port: int, direction: _Direction, now: float) -> bool:
        others = (heard.get(direction) for other, heard in self._heard.items() if other != port)
        return any(at is not None and now - at <= _HEARD_SECONDS for at in others)

    def _hear_vrrp(self, heard: Heard, now: float) -> None:
        """Only the master speaks. That it is on the link is what its TTL proves."""
        group = Prefix.of_packed(heard.destination)
        if heard.ttl == _FROM_LINK and group in _VRRP_GROUPS:
            item = roles.Conversation(Prefix.of_packed(heard.source), _VRRP, roles.ANY_PORT, group)
            self._note(roles.Role.ROUTER, item, now)

    def _hear_router(self, port: int, heard: Heard, now: float) -> None:
        """Believe two OSPF routers when each is among the neighbours that the other's hello names."""
        hello = heard.payload
        places = _HELLO.get(hello[0]) if len(hello) > 1 and hello[1] == _HELLO_TYPE else None
        if places is None or len(hello) < places[1]:
            return
        number, listed = hello[places[0] : places[0] + 4], hello[places[1] :]
        neighbours = frozenset(listed[at : at + 4] for at in range(0, len(listed) - 3, 4))
        mine = _Router(Prefix.of_packed(heard.source), port, neighbours, now)
        _remember(self._routers, hello[:1] + number, mine, _ROUTERS)
        for other in neighbours:
            known = self._routers.get(hello[:1] + other)
            if known is None or known.port == port or number not in known.neighbours:
                continue
            if now - known.heard_at <= _HEARD_SECONDS:
                self._note_routers(heard.family, mine.address, known.address, now)

    def _note_routers(self, family: int, one: Prefix, two: Prefix, now: float) -> None:
        groups = [Prefix.parse(text) for text in _ALL_ROUTERS[family]]
        for router, other in ((one, two), (two, one)):
            for target in (other, *groups):
                self._note(roles.Role.ROUTER, roles.Conversation(router, _OSPF, roles.ANY_PORT, target), now)


def directions(
    heard: Heard, ssh_ports: Collection[int]
) -> Iterator[tuple[roles.Role, roles.Conversation, bool]]:
    """Yield the conversations that a packet belongs to, each with its role and whether its peer sent it."""
    source, target = Prefix.of_packed(heard.source), Prefix.of_packed(heard.destination)
    sport, dport = heard.sport, heard.dport
    if heard.protocol == TCP:
        if dport in ssh_ports:
            yield roles.Role.SSH, roles.Conversation(source, TCP, sport, target), True
        elif sport in ssh_ports:
            yield roles.Role.SSH, roles.Conversation(target, TCP, dport, source), False
        services = {roles.DNS_PORT: roles.Role.DNS, roles.BGP_PORT: roles.Role.ROUTER}
    else:
        services = {roles.DNS_PORT: roles.Role.DNS, roles.NTP_PORT: roles.Role.NTP}
        if dport in roles.BFD_PORTS:  # both ends ask, and nobody answers from that port
            yield roles.Role.ROUTER, roles.Conversation(target, UDP, dport, source), False
            yield roles.Role.ROUTER, roles.Conversation(source, UDP, dport, target), True
    if dport in services:
        yield services[dport], roles.Conversation(target, heard.protocol, dport, source), False
    is_service = sport == roles.DNS_PORT and dport < roles.ASKING_PORTS
    if sport in services and not is_service:
        yield services[sport], roles.Conversation(source, heard.protocol, sport, target), True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
