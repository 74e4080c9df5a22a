"""The values of a scenario.

A scenario is a set of attack vectors (template packets with rewriting rules and weights), in addition to the
legitimate clients. All random values are drawn from the scenario's seed, so that runs are repeatable.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError

DEFAULT_PPS = 300_000


class ScenarioError(FwtopError):
    """An invalid scenario; the message names file, place and what is allowed."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=2)


class Pool(Struct, frozen=True):
    """Source addresses: `count` random ones, or weighted prefixes; with neither, all public addresses."""

    forged: bool = True
    count: int = 0
    skew: float = 0.0  # the k-th of them sends in proportion to 1 / k ** skew
    prefixes: tuple[Prefix, ...] = ()
    weights: tuple[float, ...] = ()


class Ports(Struct, frozen=True):
    """A vector's port: any in a range, or each of a list equally often."""

    ports: tuple[int, ...] = ()
    low: int = 0
    high: int = 0


class Vector(Struct, frozen=True):
    """One kind of attack packet; the defaults are those of the simplest flooding tools."""

    name: str
    kind: str  # the attack that fwtop should name; "" if it is none
    protocol: int
    weight: float = 1.0
    family: int = 4
    source: Pool = field(default_factory=Pool)
    sport: Ports = field(default_factory=lambda: Ports(low=1024, high=65535))
    dport: Ports = field(default_factory=lambda: Ports(ports=(0,)))
    payload: tuple[dict[str, Any], ...] = ()
    length: tuple[int, ...] = ()  # payload lengths, each equally often; empty: that of the payload
    variants: int = 1  # number of templates drawn from a random payload
    flags: int = 0  # TCP
    window: int | None = None  # None: drawn for each packet
    options: bool = False  # TCP options of a Linux client's SYN
    icmp: tuple[int, int] = (8, 0)  # type and code
    ttl: tuple[int, int] = (48, 60)  # range; constant for each source
    ttl_random: bool = False
    id: int | None = None  # None: drawn for each packet
    fragment: bool = False  # cut at 1,480 bytes of IP payload
    only_later: bool = False  # later fragments without the first
    vlan: tuple[int, ...] = ()  # outermost first
    target: str = "address"  # or "network": every address of the victim's network
    active: tuple[float, float] = (0.0, 1.0)  # section of the cycle in which it is sent
    also: tuple[str, ...] = ()  # other names that are right as well: carpet bombing by UDP is a UDP flood


class Crowd(Struct, frozen=True):
    """Many clients with real TCP connections: an attack or a flash crowd."""

    protocol: str  # "http", "tls"; or one of held.py's, whose connections stay open
    kind: str = ""
    clients: int = 200
    rate: float = 2000.0  # requests per second, in total; connections, where they are held
    connections: int = 400  # that are held at once, by all clients together
    port: int = 80  # where these are held
    pause: float = 5.0  # seconds between two pieces of a request, or of an answer that is read
    paths: tuple[str, ...] = ("/",)  # {random} is replaced by ten hex digits
    host: str = "shop.example"
    agents: tuple[str, ...] = ("Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",)


class Scenario(Struct, frozen=True):
    """A whole scenario."""

    name: str
    title: str
    seed: int = 1
    pps: int = DEFAULT_PPS
    firewall: str = "stateful"
    open_ports: tuple[str, ...] = ()  # "udp/27015": accepted by the victim's firewall, without a socket
    cycle: float = 0.0  # seconds; 0: all vectors are always active
    resolver: bool = False  # the gateway runs a DNS server and is the victim's resolver
    in_order: bool = False  # send the vectors in order instead of mixed
    vectors: tuple[Vector, ...] = ()
    crowds: tuple[Crowd, ...] = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """The attacks that fwtop should name."""
        named = [vector.kind for vector in self.vectors] + [crowd.kind for crowd in self.crowds]
        return tuple(dict.fromkeys(kind for kind in named if kind))
