"""Conversations of hosts behind this machine that no rule may cut.

These are SSH sessions, answers of resolvers and time servers, and what routers say to each other.

They are learned from two-way evidence alone: the connection table where it tracks them, else packets in both
directions that arrive at different interfaces, so that nobody on one side can forge both. What is learned is
bounded in number, expires, and passes between one address with its port and one host only.

Anybody can open a TCP connection to an SSH daemon. Those that last longer than it lets a peer be without
logging in go first, so that a crowd of others can't keep the operators' out.

Packets are captured at the ports of bridges and the interfaces of a router. Nothing here looks into one: it
goes, unread, to a process without privileges (dissect/listening.py), which tells the conversations that it
heard both directions of.
"""

from __future__ import annotations

import selectors
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from itertools import product

from fwtop.dissect.findings import FINDING_BYTES, PORT, parse_finding
from fwtop.guardian.limits import Limits
from fwtop.kernel import children
from fwtop.kernel.bridges import list_bridges
from fwtop.kernel.links import Link, readable_links
from fwtop.kernel.packet_sockets import Overhearing, Wanted
from fwtop.kernel.procfs import routed_families
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import (
    BFD_PORTS,
    BGP_PORT,
    DNS_PORT,
    NTP_PORT,
    ROUTING,
    AllowedPeer,
    Conversation,
    Role,
)
from fwtop.model.rule import Rule
from fwtop.model.traffic.protocols import TCP, UDP
from fwtop.netfilter import ctnetlink
from fwtop.netfilter.ctnetlink import ASSURED, DST_NAT, TCP_STATES, Entry

EXPIRE_SECONDS = 1200.0  # without new evidence; NTP asks every 1,024 s at the most seldom (RFC 5905)
LOGIN_SECONDS = 125.0  # sshd_config(5): LoginGraceTime is 120 s
MOST = {Role.SSH: 256, Role.DNS: 512, Role.NTP: 256, Role.ROUTER: 64}  # on the list at once
MOST_OF_HOST = 64  # of a role: more are a resolver's own questions to all the world
_CANDIDATES = 4  # times as many are remembered
_LEAST_PAUSE_SECONDS, _PAUSE = 1.0, 20  # between readings of the table: at most 5 % of a core
_ESTABLISHED = TCP_STATES.index("ESTABLISHED")
WHAT = {
    Role.SSH: "SSH session with {}",
    Role.DNS: "resolver of {}",
    Role.NTP: "time server of {}",
    Role.ROUTER: "router that talks to {}",
}
_MAX_PORTS = 64
_MODULE = "fwtop.dissect.listening"
_AT_ONCE = 128  # packets of a port, or findings, in one turn
_BUSY_PPS = 50_000  # of a port: from then on it is listened to for a tenth of the time
_OPEN_SECONDS, _SHUT_SECONDS, _LOOK_SECONDS = 0.2, 1.8, 5.0


class Evidence:
    """Conversations by role, with the times of their first and latest evidence. Shared by two threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[Role, dict[Conversation, tuple[float, float]]] = {role: {} for role in MOST}

    def note(self, role: Role, conversation: Conversation, now: float) -> None:
        """Remember two-way evidence; of very many conversations, only that of those already known."""
        with self._lock:
            known = self._seen[role]
            if conversation in known:
                known[conversation] = known[conversation][0], now
            elif len(known) < _CANDIDATES * MOST[role]:
                known[conversation] = now, now

    def listed(self, now: float) -> tuple[tuple[AllowedPeer, ...], int]:
        """Return what is on the list, and how many conversations had no room on it.

        Those that have lasted long go before others, then the older ones: who is on the list stays on it.
        """
        found: list[AllowedPeer] = []
        left_out = 0
        with self._lock:
            for role, known in self._seen.items():
                for item in [item for item, (_, last) in known.items() if now - last > EXPIRE_SECONDS]:
                    del known[item]
                of_host: Counter[Prefix] = Counter()
                taken = 0
                for item in sorted(known, key=lambda item: _rank(known[item])):
                    of_host[item.host] += 1
                    if taken < MOST[role] and of_host[item.host] <= MOST_OF_HOST:
                        why = WHAT[role].format(item.host)
                        found.append(AllowedPeer(item.peer, role, conversation=item, reason=why))
                        taken += 1
                    else:
                        left_out += 1
        return tuple(found), left_out


def _rank(times: tuple[float, float]) -> tuple[bool, float]:
    first, last = times
    return last - first < LOGIN_SECONDS, first


def conversations_of(
    entry: Entry, reply: Entry, role: Role, own: Collection[Prefix]
) -> Iterator[Conversation]:
    """Yield a forwarded connection as its packets look on either side of this machine.

    The two differ where addresses are translated. Nothing of this host's own connections.
    """
    if entry.protocol == TCP and not (entry.status & ASSURED and entry.tcp_state == _ESTABLISHED):
        return
    source, target = (Prefix.of_packed(value) for value in (entry.source, entry.destination))
    if source in own or (target in own and not entry.status & DST_NAT):
        return
    asked, answering = Prefix.of_packed(reply.destination), Prefix.of_packed(reply.source)
    if role is Role.SSH:
        yield Conversation(source, TCP, entry.sport, target)
        yield Conversation(asked, TCP, reply.dport, answering)
    else:
        yield Conversation(target, entry.protocol, entry.dport, source)
        yield Conversation(answering, entry.protocol, reply.sport, asked)


def overruled(learned: Iterable[AllowedPeer], rules: Iterable[Rule]) -> frozenset[AllowedPeer]:
    """Return the entries that rules are about in particular: they name the peer's address and its port.

    Whoever writes such a rule means just that, for instance answers forged in the name of a resolver.
    """
    wanted = {
        (source, part.match.protocol, part.match.sport)
        for rule in rules
        for part in rule.parts or (rule,)
        if part.match.sport is not None and 0 < len(part.match.sources) <= MOST_OF_HOST
        for source in part.match.sources
    }
    return frozenset(
        item
        for item in learned
        if (talk := item.conversation) and (talk.peer, talk.protocol, talk.port) in wanted
    )


def forwarding_links() -> list[Link]:
    """Return where to listen: ports of bridges, and a router's interfaces, whether it tracks or not."""
    links = readable_links()
    ports = [port for bridge in list_bridges(links) for port in bridge.ports]
    if not routed_families():
        return ports
    masters = {link.master for link in links}
    plain = [link for link in links if link.up and not link.loopback and not link.master]
    return ports + [link for link in plain if link.index not in masters]


class _Reader:
    """The process that reads the packets."""

    def __init__(self, ssh_ports: tuple[int, ...]) -> None:
        """Start it; raises OSError."""
        self._process, self.channel = children.start_with_socket(_MODULE, *map(str, ssh_ports))
        self.channel.setblocking(False)

    def pass_on(self, port: int, packet: bytes) -> None:
        """Pass a packet on, or none to say that a port is gone; raises OSError if the process has ended."""
        with suppress(BlockingIOError):  # it can't keep up
            self.channel.send(PORT.pack(port) + packet)

    def note(self, evidence: Evidence) -> None:
        """Take what it found; raises OSError if it has ended or does not keep to the form."""
        for _ in range(_AT_ONCE):
            try:
                message = self.channel.recv(FINDING_BYTES + 1)
                evidence.note(*parse_finding(message), time.monotonic())
            except BlockingIOError:
                return
            except ValueError:
                raise ConnectionError from None

    def close(self) -> None:
        """End it."""
        self.channel.close()
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)


class Listener:
    """A thread that listens where this namespace forwards, for as long as the process runs."""

    def __init__(self, evidence: Evidence) -> None:
        self.ssh_ports: tuple[int, ...] | None = None  # None: it does not listen; another thread sets this
        self._listening_for: tuple[int, ...] | None = None
        self._evidence = evidence
        self._reader: _Reader | None = None
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
                self._take(key.data)
            if self._busy:
                self._shut_for_a_while()

    def _take(self, port: int | None) -> None:
        """Pass on what has arrived at a port, or note what the reader found (None)."""
        if self._reader is None or (port is not None and port not in self._ports):
            return  # closed in this turn
        try:
            if port is None:
                self._reader.note(self._evidence)
            else:
                for packet in self._arrived(port):
                    self._reader.pass_on(port, packet)
        except OSError:
            self._end_reader()

    def _arrived(self, port: int) -> list[bytes]:
        try:
            return list(self._ports[port][1].packets(_AT_ONCE))
        except OSError:  # the interface is gone
            self._close(port)
            return []

    def _look(self, now: float) -> None:
        """Listen at the ports that there are now, and find out which are busy."""
        links = forwarding_links()[:_MAX_PORTS] if self.ssh_ports is not None else []
        if self._reader is not None and (not links or self.ssh_ports != self._listening_for):
            self._end_reader()
        self._listening_for = self.ssh_ports
        with suppress(OSError):  # no process to be had: the next look tries again
            if links and self._reader is None:
                self._reader = _Reader(self._listening_for or ())
                self._selector.register(self._reader.channel, selectors.EVENT_READ, None)
        self._busy = {link.index for link in links if self._is_busy(link, now)}
        for port in set(self._ports) - {link.index for link in links}:
            self._close(port)
            self._forget(port)
        for link in links:
            self._open(link.index, link.name)

    def _end_reader(self) -> None:
        for port in list(self._ports):
            self._close(port)
        if self._reader is not None:
            self._selector.unregister(self._reader.channel)
            self._reader.close()
            self._reader = None

    def _forget(self, port: int) -> None:
        """Have the reader forget what arrived at a port that is gone: another may get its number."""
        with suppress(OSError):  # the next packet shows that the reader has ended
            if self._reader is not None:
                self._reader.pass_on(port, b"")

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
        if port in self._ports or self._reader is None:
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


class Learning:
    """Of one namespace. Owned by the worker's thread; who listens has another."""

    def __init__(self, limits: Callable[[], tuple[Limits, tuple[str, ...]]]) -> None:
        """Begin to listen, unless the operator switched that off."""
        self._limits = limits
        self._evidence = Evidence()
        self._next = 0.0  # when the connection table is read again
        self._listener = Listener(self._evidence)
        self._renew()
        self._listener.start()

    def learn(self, own: Collection[Prefix]) -> tuple[tuple[AllowedPeer, ...], int]:
        """Return what is on the list now, and how many conversations had no room on it."""
        settings = self._renew()
        if not settings.learn_behind:
            return (), 0
        forwards = routed_families() or list_bridges(readable_links())
        if forwards and time.monotonic() >= self._next:
            self._note_tracked(own, settings.ssh_ports_behind)
        return self._evidence.listed(time.monotonic())

    def _note_tracked(self, own: Collection[Prefix], ssh_ports: Collection[int]) -> None:
        """Note what the connection table tells, at most so often that it costs 5 % of a core."""
        began = time.monotonic()
        services = (
            *((TCP, port, Role.SSH) for port in sorted(ssh_ports)),
            (UDP, DNS_PORT, Role.DNS),
            (TCP, DNS_PORT, Role.DNS),
            (UDP, NTP_PORT, Role.NTP),
            (TCP, BGP_PORT, Role.ROUTER),
        )
        with suppress(OSError):  # nothing is tracked here
            for (protocol, port, role), family in product(services, (4, 6)):
                for entry, reply in ctnetlink.answered(family, protocol, port):
                    for item in conversations_of(entry, reply, role, own):
                        self._evidence.note(role, item, began)
        ended = time.monotonic()
        self._next = ended + max(_LEAST_PAUSE_SECONDS, _PAUSE * (ended - began))

    def _renew(self) -> Limits:
        settings = self._limits()[0]
        self._listener.ssh_ports = settings.ssh_ports_behind if settings.learn_behind else None
        return settings
