"""Two-way evidence in packets: listening at the ports of bridges and the interfaces of a router.

A conversation is believed when its two directions arrive at different ports. What arrived at one port is
remembered apart from what arrived at others: a flood by one of them pushes out only what came with it.
"""

from __future__ import annotations

import selectors
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass

from fwtop.guardian.allow.behind import Evidence
from fwtop.kernel.interfaces.bridges import list_bridges
from fwtop.kernel.interfaces.links import Link, readable_links
from fwtop.kernel.overhearing import Heard, Overhearing, Wanted
from fwtop.kernel.procfs import read_text
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import (
    ANY_PORT,
    ASKING_PORTS,
    BFD_PORTS,
    BGP_PORT,
    DNS_PORT,
    NTP_PORT,
    ROUTING,
    TCP,
    UDP,
    Conversation,
    Role,
)

_MAX_PORTS = 64
_FORWARDING = ("/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding")
_HEARD_AT_PORT = 1024  # conversations remembered of one direction
_HEARD_SECONDS = 60.0  # between the two directions
_AT_ONCE = 128  # packets of a port in one turn
_BUSY_PPS = 50_000  # of a port: from then on it is listened to for a tenth of the time
_OPEN_SECONDS, _SHUT_SECONDS, _LOOK_SECONDS = 0.2, 1.8, 5.0
_OSPF, _VRRP = ROUTING
_HELLO = {2: (4, 44), 3: (4, 36)}  # OSPF version: where the router's number is, and its neighbours'
_HELLO_TYPE, _ROUTERS = 1, 64
_ALL_ROUTERS = {4: ("224.0.0.5", "224.0.0.6"), 6: ("ff02::5", "ff02::6")}  # RFC 2328, RFC 5340
_VRRP_GROUPS = frozenset(map(Prefix.parse, ("224.0.0.18", "ff02::12")))  # RFC 9568
_FROM_LINK = 255  # the TTL that no router passes on: RFC 9568, 5.1.1.3

_Direction = tuple[Conversation, bool]  # and whether its peer sent this


@dataclass(slots=True)
class _Router:
    """What an OSPF router said of itself."""

    address: Prefix
    port: int  # index of the interface
    neighbours: frozenset[bytes]
    heard_at: float


class Conversations:
    """What was heard at the ports so far."""

    def __init__(self, evidence: Evidence, ssh_ports: Collection[int] = ()) -> None:
        self.ssh_ports = frozenset(ssh_ports)
        self._evidence = evidence
        self._heard: dict[int, OrderedDict[_Direction, float]] = {}
        self._routers: OrderedDict[bytes, _Router] = OrderedDict()

    def hear(self, port: int, heard: Heard, now: float) -> None:
        """Take a packet that arrived at a port, given by index."""
        if heard.protocol == _OSPF:
            self._hear_router(port, heard, now)
        elif heard.protocol == _VRRP:
            self._hear_vrrp(heard, now)
        else:
            for role, conversation, from_peer in directions(heard, self.ssh_ports):
                if self._was_heard_elsewhere(port, (conversation, not from_peer), now):
                    self._evidence.note(role, conversation, now)
                mine = self._heard.setdefault(port, OrderedDict())
                mine.pop((conversation, from_peer), None)
                mine[conversation, from_peer] = now
                if len(mine) > _HEARD_AT_PORT:
                    mine.popitem(last=False)

    def forget_ports(self, there: Collection[int]) -> None:
        """Forget what arrived at ports that are gone."""
        self._heard = {port: heard for port, heard in self._heard.items() if port in there}

    def _was_heard_elsewhere(self, port: int, direction: _Direction, now: float) -> bool:
        others = (heard.get(direction) for other, heard in self._heard.items() if other != port)
        return any(at is not None and now - at <= _HEARD_SECONDS for at in others)

    def _hear_vrrp(self, heard: Heard, now: float) -> None:
        """Only the master speaks. That it is on the link is what its TTL proves."""
        group = _address(heard.destination)
        if heard.ttl == _FROM_LINK and group in _VRRP_GROUPS:
            item = Conversation(_address(heard.source), _VRRP, ANY_PORT, group)
            self._evidence.note(Role.ROUTER, item, now)

    def _hear_router(self, port: int, heard: Heard, now: float) -> None:
        """Believe two OSPF routers when each is among the neighbours that the other's hello names."""
        hello = heard.payload
        places = _HELLO.get(hello[0]) if len(hello) > 1 and hello[1] == _HELLO_TYPE else None
        if places is None or len(hello) < places[1]:
            return
        number, listed = hello[places[0] : places[0] + 4], hello[places[1] :]
        neighbours = frozenset(listed[at : at + 4] for at in range(0, len(listed) - 3, 4))
        mine = _Router(_address(heard.source), port, neighbours, now)
        key = hello[:1] + number
        self._routers.pop(key, None)
        self._routers[key] = mine
        if len(self._routers) > _ROUTERS:
            self._routers.popitem(last=False)
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
                self._evidence.note(Role.ROUTER, Conversation(router, _OSPF, ANY_PORT, target), now)


def directions(heard: Heard, ssh_ports: Collection[int]) -> Iterator[tuple[Role, Conversation, bool]]:
    """Yield the conversations that a packet belongs to, each with its role and whether its peer sent it."""
    source, target = _address(heard.source), _address(heard.destination)
    sport, dport = heard.sport, heard.dport
    if heard.protocol == TCP:
        if dport in ssh_ports:
            yield Role.SSH, Conversation(source, TCP, sport, target), True
        elif sport in ssh_ports:
            yield Role.SSH, Conversation(target, TCP, dport, source), False
        services = {DNS_PORT: Role.DNS, BGP_PORT: Role.ROUTER}
    else:
        services = {DNS_PORT: Role.DNS, NTP_PORT: Role.NTP}
        if dport in BFD_PORTS:  # both ends ask, and nobody answers from that port
            yield Role.ROUTER, Conversation(target, UDP, dport, source), False
            yield Role.ROUTER, Conversation(source, UDP, dport, target), True
    if dport in services:
        yield services[dport], Conversation(target, heard.protocol, dport, source), False
    is_service = sport == DNS_PORT and dport < ASKING_PORTS
    if sport in services and not is_service:
        yield services[sport], Conversation(source, heard.protocol, sport, target), True


def forwards_by_route() -> bool:
    """Return whether this namespace is a router."""
    return any(read_text(path).strip() == "1" for path in _FORWARDING)


def forwarding_links() -> list[Link]:
    """Return where to listen: ports of bridges, and a router's interfaces, whether it tracks or not."""
    links = readable_links()
    ports = [port for bridge in list_bridges(links) for port in bridge.ports]
    if not forwards_by_route():
        return ports
    masters = {link.master for link in links}
    plain = [link for link in links if link.up and not link.loopback and not link.master]
    return ports + [link for link in plain if link.index not in masters]


class Listener:
    """A thread that listens where this namespace forwards, for as long as the process runs."""

    def __init__(self, evidence: Evidence) -> None:
        self.ssh_ports: tuple[int, ...] | None = None  # None: it does not listen; another thread sets this
        self._listening_for: tuple[int, ...] | None = None
        self._conversations = Conversations(evidence)
        self._ports: dict[int, tuple[str, Overhearing]] = {}
        self._received: dict[int, tuple[float, int]] = {}  # by port: when, packets since it exists
        self._busy: set[int] = set()
        self._selector = selectors.DefaultSelector()

    def start(self) -> None:
        """Begin to listen, here and now in this thread's namespace."""
        threading.Thread(target=self._run, name="listener", daemon=True).start()

    def _run(self) -> None:
        look_at = 0.0
        while True:
            now = time.monotonic()
            if now >= look_at:
                self._look(now)
                look_at = now + _LOOK_SECONDS
            if self._busy:
                time.sleep(_OPEN_SECONDS)
            for key, _ in self._selector.select(0 if self._busy else _LOOK_SECONDS):
                self._read(key.data, time.monotonic())
            if self._busy:
                self._shut_for_a_while()

    def _read(self, port: int, now: float) -> None:
        try:
            for heard in self._ports[port][1].packets(_AT_ONCE):
                self._conversations.hear(port, heard, now)
        except OSError:
            self._close(port)

    def _look(self, now: float) -> None:
        """Listen at the ports that there are now, and find out which are busy."""
        links = forwarding_links()[:_MAX_PORTS] if self.ssh_ports is not None else []
        there = {link.index for link in links}
        kept = there if self.ssh_ports == self._listening_for else set()
        for port in set(self._ports) - kept:
            self._close(port)
        self._listening_for = self.ssh_ports
        self._conversations.ssh_ports = frozenset(self._listening_for or ())
        self._conversations.forget_ports(there)
        self._busy = {link.index for link in links if self._is_busy(link, now)}
        for link in links:
            self._open(link.index, link.name)

    def _is_busy(self, link: Link, now: float) -> bool:
        before, packets = self._received.get(link.index, (now, link.stats.packets))
        self._received[link.index] = now, link.stats.packets
        return link.stats.packets - packets > _BUSY_PPS * max(now - before, 1.0)

    def _shut_for_a_while(self) -> None:
        """Take the sockets away from busy ports: there each packet would pay for them."""
        shut = {port: self._ports[port][0] for port in self._busy if port in self._ports}
        for port in shut:
            self._close(port)
        time.sleep(_SHUT_SECONDS)
        for port, name in shut.items():
            self._open(port, name)

    def _open(self, port: int, name: str) -> None:
        if port in self._ports:
            return
        with suppress(OSError):  # it is gone again
            ssh_ports = self._listening_for or ()
            tcp, udp = (*ssh_ports, DNS_PORT, BGP_PORT), (DNS_PORT, NTP_PORT, *BFD_PORTS)
            channel = Overhearing(name, Wanted(ROUTING, tcp, udp))
            self._ports[port] = name, channel
            self._selector.register(channel, selectors.EVENT_READ, port)

    def _close(self, port: int) -> None:
        _, channel = self._ports.pop(port)
        self._selector.unregister(channel)
        channel.close()


def _address(packed: bytes) -> Prefix:
    return Prefix(4 if len(packed) == 4 else 6, int.from_bytes(packed, "big"), 8 * len(packed))
