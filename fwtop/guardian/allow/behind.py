"""Conversations of hosts behind this machine that no rule may cut.

These are SSH sessions, answers of resolvers and time servers, and what routers say to each other.

They are learned from two-way evidence alone: the connection table where it tracks them, else packets in both
directions that arrive at different interfaces (overheard.py), so that nobody on one side can forge both.
What is learned is bounded in number, expires, and passes between one address with its port and one host only.

Anybody can open a TCP connection to an SSH daemon. Those that last longer than it lets a peer be without
logging in go first, so that a crowd of others can't keep the operators' out.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from msgspec import Struct

from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import BFD_PORTS, BGP_PORT, DNS_PORT, NTP_PORT, Conversation, Role
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


class Learned(Struct, frozen=True):
    """An entry of the allow-list for those behind."""

    conversation: Conversation
    role: Role

    @property
    def passes(self) -> str:
        """What of it no rule can drop, in words."""
        item = self.conversation
        if item.protocol not in (TCP, UDP):
            return f"protocol {item.protocol} to {item.host}"
        if item.protocol == UDP:
            if item.port in BFD_PORTS:
                return f"UDP of {item.host} to its port {item.port}"
            return f"UDP from port {item.port} to {item.host}"
        if item.port == DNS_PORT:
            return f"TCP from port {item.port} to {item.host}, except new connections"
        return f"TCP between its port {item.port} and {item.host}, except new connections"

    def to_dict(self) -> dict[str, str]:
        """Return it as `fwtop status --json` shows it (docs/JSON.md)."""
        item = self.conversation
        about = {"prefix": str(item.peer), "why": WHAT[self.role].format(item.host), "host": str(item.host)}
        return {**about, "tier": "learned", "role": self.role.value, "passes": self.passes}


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

    def listed(self, now: float) -> tuple[tuple[Learned, ...], int]:
        """Return what is on the list, and how many conversations had no room on it.

        Those that have lasted long go before others, then the older ones: who is on the list stays on it.
        """
        found: list[Learned] = []
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
                        found.append(Learned(item, role))
                        taken += 1
                    else:
                        left_out += 1
        return tuple(found), left_out


def _rank(times: tuple[float, float]) -> tuple[bool, float]:
    first, last = times
    return last - first < LOGIN_SECONDS, first


class TrackedConversations:
    """What the connection table tells, read at most so often that it costs 5 % of a core."""

    def __init__(self) -> None:
        self._next = 0.0

    def note(self, evidence: Evidence, own: Collection[Prefix], ssh_ports: Collection[int]) -> None:
        """Read the table if that is due; without one nothing is noted."""
        began = time.monotonic()
        if began < self._next:
            return
        services = (
            *((TCP, port, Role.SSH) for port in sorted(ssh_ports)),
            (UDP, DNS_PORT, Role.DNS),
            (TCP, DNS_PORT, Role.DNS),
            (UDP, NTP_PORT, Role.NTP),
            (TCP, BGP_PORT, Role.ROUTER),
        )
        try:
            for protocol, port, role in services:
                for family in (4, 6):
                    for entry, reply in ctnetlink.answered(family, protocol, port):
                        for item in conversations_of(entry, reply, role, own):
                            evidence.note(role, item, began)
        except OSError:
            pass  # nothing is tracked here
        ended = time.monotonic()
        self._next = ended + max(_LEAST_PAUSE_SECONDS, _PAUSE * (ended - began))


def conversations_of(
    entry: Entry, reply: Entry, role: Role, own: Collection[Prefix]
) -> Iterator[Conversation]:
    """Yield a forwarded connection as its packets look on either side of this machine.

    The two differ where addresses are translated. Nothing of this host's own connections.
    """
    if entry.protocol == TCP and not (entry.status & ASSURED and entry.tcp_state == _ESTABLISHED):
        return
    source, target = (_address(value) for value in (entry.source, entry.destination))
    if source in own or (target in own and not entry.status & DST_NAT):
        return
    asked, answering = _address(reply.destination), _address(reply.source)
    if role is Role.SSH:
        yield Conversation(source, TCP, entry.sport, target)
        yield Conversation(asked, TCP, reply.dport, answering)
    else:
        yield Conversation(target, entry.protocol, entry.dport, source)
        yield Conversation(answering, entry.protocol, reply.sport, asked)


def overruled(learned: Iterable[Learned], rules: Iterable[Rule]) -> frozenset[Learned]:
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
        if (item.conversation.peer, item.conversation.protocol, item.conversation.port) in wanted
    )


def _address(packed: bytes) -> Prefix:
    return Prefix(4 if len(packed) == 4 else 6, int.from_bytes(packed, "big"), 8 * len(packed))
