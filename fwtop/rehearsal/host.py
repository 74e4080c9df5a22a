"""What a rehearsal knows of the host: who passes and logs in there, what it asks others, its own rules.

Root knows all of it, a console what root tells it: whom the allow-list names, and where operators log in.
What takes time to read is read when a rule is about it.
"""
# ruff: noqa: D102 - protocols say in their own docstrings what their attributes are

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from msgspec import Struct

from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import AllowedPeer, Conversation, Role
from fwtop.model.losses import Loss
from fwtop.model.rule import Match
from fwtop.model.traffic.protocols import TCP

SSH_PORT = 22


class Entry(Protocol):
    """Who is on the allow-list; `port` and `login_port`, the peer's and the one here, are a session's."""

    @property
    def prefix(self) -> Prefix: ...
    @property
    def role(self) -> Role: ...
    @property
    def why(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def login_port(self) -> int: ...


class Behind(Protocol):
    """A conversation of a host behind this machine that passes."""

    @property
    def role(self) -> Role: ...
    @property
    def conversation(self) -> Conversation | None: ...


class Allowed(Protocol):
    """The allow-list, and the ports where operators log in."""

    @property
    def entries(self) -> Sequence[Entry]: ...
    @property
    def behind(self) -> Sequence[Behind]: ...
    @property
    def login_ports(self) -> frozenset[int]: ...


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


class KnownPeers(Struct, frozen=True):
    """The allow-list as consoles get it."""

    peers: tuple[AllowedPeer, ...] = ()
    login_ports: frozenset[int] = frozenset({SSH_PORT})

    @property
    def entries(self) -> tuple[AllowedPeer, ...]:
        """Those of this host."""
        return tuple(peer for peer in self.peers if peer.conversation is None)

    @property
    def behind(self) -> tuple[AllowedPeer, ...]:
        """Those of hosts behind it."""
        return tuple(peer for peer in self.peers if peer.conversation is not None)


NO_PEERS = KnownPeers()


class Host(Struct, frozen=True):
    """One host, as far as it is known."""

    allow: Allowed = NO_PEERS
    untracked: Callable[[Match, frozenset[int]], Loss | None] = lambda *_: None  # by its own rules
    asked: Callable[[], Sequence[Asked]] = tuple
    mosh_ports: Callable[[], Collection[int]] = tuple
    entries_of: Callable[[str], Sequence[Prefix]] | None = None  # of named lists, where they are known
