"""A scenario's values: what is sent to the victim.

A scenario is a set of vectors (template packets with rewriting rules and weights) beside legitimate
clients. Every value that is drawn is drawn from the scenario's seed, so a run can be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fwtop.model.address import Prefix
from fwtop.model.errors import FwtopError

DEFAULT_PPS = 300_000


class ScenarioError(FwtopError):
    """A scenario that can't be used; the line names the file, the place and what it may be."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=2)


@dataclass(frozen=True, slots=True)
class Pool:
    """Where packets claim to come from: prefixes (single addresses too), each with a weight."""

    forged: bool = True
    count: int = 0  # this many public addresses are drawn; 0: see prefixes; with neither: all public ones
    skew: float = 0.0  # the k-th of them sends in proportion to 1 / k ** skew
    prefixes: tuple[Prefix, ...] = ()
    weights: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Ports:
    """A port of a vector: one, any in a range, or each of a list equally often."""

    ports: tuple[int, ...] = ()
    low: int = 0
    high: int = 0

    @property
    def is_range(self) -> bool:
        """Whether each packet draws its own from low to high."""
        return not self.ports


@dataclass(frozen=True, slots=True)
class Vector:
    """One kind of packet of an attack; defaults are those of the simplest flooding tools."""

    name: str
    kind: str  # what fwtop should call it, or "" when it is no attack
    protocol: int
    weight: float = 1.0
    family: int = 4
    source: Pool = field(default_factory=Pool)
    sport: Ports = field(default_factory=lambda: Ports(low=1024, high=65535))
    dport: Ports = field(default_factory=lambda: Ports(ports=(0,)))
    payload: tuple[dict[str, Any], ...] = ()
    length: tuple[int, ...] = ()  # payload lengths, each equally often; empty: as the payload is
    variants: int = 1  # templates drawn from a payload that varies with the seed
    flags: int = 0  # TCP
    window: int | None = None  # None: drawn for each packet
    options: bool = False  # TCP options of a Linux client's SYN
    icmp: tuple[int, int] = (8, 0)  # type and code
    ttl: tuple[int, int] = (48, 60)  # each source keeps one of this range
    ttl_random: bool = False
    id: int | None = None  # None: drawn for each packet
    fragment: bool = False  # cut at 1,480 bytes of IP payload
    only_later: bool = False  # later fragments without a first
    vlan: tuple[int, ...] = ()  # outermost first
    target: str = "address"  # or "network": every address of the victim's network
    active: tuple[float, float] = (0.0, 1.0)  # part of the cycle in which it is sent
    also: tuple[str, ...] = ()  # further names that are right for it, as a carpet of UDP is a UDP flood


@dataclass(frozen=True, slots=True)
class Crowd:
    """Many clients with real connections, from their own kernel's TCP: an attack, or a flash crowd."""

    protocol: str  # "http" or "tls"
    kind: str = ""
    clients: int = 200
    rate: float = 2000.0  # requests a second in all
    paths: tuple[str, ...] = ("/",)  # {random} in one becomes ten hex digits
    host: str = "shop.example"
    agents: tuple[str, ...] = ("Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A whole scenario."""

    name: str
    title: str
    seed: int = 1
    pps: int = DEFAULT_PPS
    firewall: str = "stateful"
    open_ports: tuple[str, ...] = ()  # "udp/27015": accepted by the victim's firewall, without a socket
    cycle: float = 0.0  # seconds; 0: all vectors all the time
    in_order: bool = False  # vectors are sent one after the other as they stand, not mixed
    vectors: tuple[Vector, ...] = ()
    crowds: tuple[Crowd, ...] = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """The attacks that an observer should name."""
        named = [vector.kind for vector in self.vectors] + [crowd.kind for crowd in self.crowds]
        return tuple(dict.fromkeys(kind for kind in named if kind))
