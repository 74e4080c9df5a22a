"""What a rehearsal knows of the host: who passes and logs in there, what it asks others, its own rules.

Root knows all of it, a console what root tells it: whom the allow-list names, and where operators log in.
What takes time to read is read when a rule is about it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from msgspec import Struct

from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import AllowedPeer
from fwtop.model.harm import Loss
from fwtop.model.rule import Match
from fwtop.model.traffic.protocols import TCP

SSH_PORT = 22


class Asked(Struct, frozen=True):
    """Conversations that this host began with one peer and port."""

    peer: Prefix
    protocol: int
    port: int  # the peer's
    count: int = 1
    own_port: int = 0  # 0: one that the kernel chose

    @property
    def words(self) -> str:
        """Whom, and how often."""
        often = f" ({self.count:,} connections)" if self.protocol == TCP and self.count > 1 else ""
        return f"{self.peer} {'TCP' if self.protocol == TCP else 'UDP'} port {self.port}{often}"


class Client(Struct, frozen=True):
    """Somebody who has long been a client of a service of this host."""

    address: Prefix
    protocol: int
    port: int


class KnownPeers(Struct, frozen=True):
    """The allow-list, the ports where operators log in, and, in consoles, what the host asks others."""

    entries: tuple[AllowedPeer, ...] = ()
    behind: tuple[AllowedPeer, ...] = ()  # of hosts behind this machine: conversations
    listening: frozenset[int] = frozenset()  # the ports of SSH daemons
    asked: tuple[Asked, ...] = ()

    @property
    def login_ports(self) -> frozenset[int]:
        """Ports where operators log in: those of sessions, of SSH daemons that listen, and 22."""
        return self.listening | {SSH_PORT, *(one.login_port for one in self.entries if one.login_port)}


NO_PEERS = KnownPeers()


class Host(Struct, frozen=True):
    """One host, as far as it is known."""

    allow: KnownPeers = NO_PEERS
    untracked: Callable[[Match, frozenset[int]], Loss | None] = lambda *_: None  # by its own rules
    asked: Callable[[], Sequence[Asked]] = tuple
    mosh_ports: Callable[[], Collection[int]] = tuple
    entries_of: Callable[[str], Sequence[Prefix]] | None = None  # of named lists, where they are known
    clients: Sequence[Client] = ()  # as a console told root, which sees no traffic
