"""Scenarios: their values, as a file (TOML) holds them, and its reader.

A scenario is a set of attack vectors (template packets with rewriting rules and weights), in addition to the
legitimate clients. All random values are drawn from its seed, so that runs are repeatable. A file with a
mistake is refused whole, in one line.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.files import ConfigText, read_regular_text
from fwtop.model.settings_file import dotted, must, one_of, read, read_by, told
from fwtop.model.traffic.protocols import NUMBERS, TCP_FLAGS
from fwtop.model.wire import of_plain

DIRECTORY = Path(__file__).resolve().parent / "scenarios"
_REFUSED = "the scenario is not used"


def names() -> list[str]:
    """Return the names of the bundled scenarios."""
    return sorted(path.stem for path in DIRECTORY.glob("*.toml"))


def load(name: str) -> Scenario:
    """Read a bundled scenario by name, or a file by a path ending in .toml."""
    if not name.endswith(".toml") and name not in names():
        raise ScenarioError(f"no scenario {name[:60]!r}; 'fwtop lab list' names them")
    path = Path(name) if name.endswith(".toml") else DIRECTORY / f"{name}.toml"
    return _read(read_regular_text(path) or ConfigText(name, "", "there is no such file"), path.stem)


def parse(text: str, name: str) -> Scenario:
    """Parse a scenario; raises ScenarioError."""
    return _read(ConfigText(f"scenario {name}", text), name)


def _read(file: ConfigText, name: str) -> Scenario:
    found = read(Scenario, file)
    if found.mistakes:
        raise ScenarioError(found.lines(_REFUSED)[0])
    scenario = found.value
    for number, vector in enumerate(scenario.vectors):
        if any(prefix.family != vector.family for prefix in vector.source.prefixes):
            raise _wrong(file, number, "source", "must be of the vector's family")
        if scenario.cycle == 0 and vector.active != (0.0, 1.0):
            raise _wrong(file, number, "active", "needs the scenario's 'cycle' (seconds)")
    vectors = (
        replace(vector, name=vector.name or f"vector-{number}")
        for number, vector in enumerate(scenario.vectors, 1)
    )
    return replace(scenario, name=name, vectors=tuple(vectors))


def _wrong(file: ConfigText, number: int, key: str, reason: str) -> ScenarioError:
    place = ("vector", number, key)
    return ScenarioError(told(file, place, f"{dotted(place)} {reason}", _REFUSED))


DEFAULT_PPS = 300_000
HELD = ("slow_headers", "slow_body", "slow_read", "idle", "pool")  # crowds whose connections stay open

_Byte = Annotated[int, Meta(ge=0, le=255)]
_Port = Annotated[int, Meta(ge=0, le=65535)]
_Length = Annotated[int, Meta(ge=0, le=65_000)]


class ScenarioError(FwtopError):
    """An invalid scenario; the message names file, place and what is allowed."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=2)


class Pool(Struct, frozen=True, forbid_unknown_fields=True):
    """Source addresses: `count` random ones, or weighted prefixes; with neither, all public addresses."""

    forged: bool = True
    count: Annotated[int, Meta(ge=0, le=32_768)] = 0
    skew: float = 0.0  # the k-th of them sends in proportion to 1 / k ** skew
    prefixes: tuple[Prefix, ...] = ()
    weights: tuple[float, ...] = ()


class Ports(Struct, frozen=True):
    """A vector's port: any in a range, or each of a list equally often."""

    ports: tuple[int, ...] = ()
    low: int = 0
    high: int = 0


def _one_or_more(kind: Any) -> Callable[[Any], Any]:  # noqa: ANN401 - a type
    return lambda value: msgspec.convert(value if isinstance(value, list) else [value], kind)


def _protocol(value: object) -> int:
    return NUMBERS[value] if isinstance(value, str) and value in NUMBERS else msgspec.convert(value, _Byte)


def _pool(value: object) -> Pool:
    if value == "random":
        return Pool()
    pool = of_plain(Pool, {"forged": False, **value} if isinstance(value, dict) else value)
    if bool(pool.prefixes) == bool(pool.count):
        raise ValueError
    if pool.weights and len(pool.weights) != (pool.count or len(pool.prefixes)):
        raise ValueError
    return pool


def _ports(value: object) -> Ports:
    if value == "random":
        return Ports(low=1024, high=65535)
    if isinstance(value, str):
        low, high = (msgspec.convert(int(part), _Port) for part in value.split("-"))
        if low > high:
            raise ValueError
        return Ports(low=low, high=high)
    return Ports(ports=_one_or_more(Annotated[tuple[_Port, ...], Meta(min_length=1)])(value))


def _flags(value: object) -> int:
    words = set() if value == "none" else set(str(value).split("+"))
    if words - TCP_FLAGS.keys():
        raise ValueError
    return sum(TCP_FLAGS[word] for word in words)


def _drawn(value: object) -> int | None:
    return None if value == "random" else msgspec.convert(value, _Port)


def _range(value: object) -> tuple[int, int]:
    return msgspec.convert(value if isinstance(value, list) else [value, value], tuple[_Byte, _Byte])


def _ttl(value: object) -> tuple[int, int]:
    return RANDOM_TTL if value == "random" else _range(value)


RANDOM_TTL = (32, 159)  # drawn for each packet; any other range for each source
_PortForm = read_by(_ports, 'a port, a list of ports, "random" or "low-high"')
_Lengths = Annotated[
    tuple[int, ...],
    read_by(_one_or_more(tuple[_Length, ...]), "a number or a list of numbers from 0 to 65,000"),
]
_Texts = Annotated[tuple[str, ...], Meta(min_length=1)]
_Pieces = tuple[Annotated[dict[str, Any], Meta(min_length=1)], ...]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Section = Annotated[tuple[_Share, _Share], must("a pair such as [0, 0.5]", lambda pair: pair[0] < pair[1])]
_OpenPort = Annotated[str, Meta(pattern="^(tcp|udp)/[1-9][0-9]{0,4}$")]
_OpenPorts = must(
    'a list of ports like "udp/27015"', lambda ports: all(int(port[4:]) <= 65535 for port in ports)
)
_RANGE_WORDS = "a number or a pair of numbers from 0 to 255"
_SOURCE_WORDS = (
    '"random", or a table with a count of 1 to 32,768 and perhaps skew, or with prefixes; if with weights, '
    "as many as sources"
)
_Drawn = read_by(_drawn, '"random" or a number from 0 to 65535')


class Vector(Struct, frozen=True):
    """One kind of attack packet; the defaults are those of the simplest flooding tools."""

    protocol: Annotated[int, read_by(_protocol, f"0 to 255 or one of {', '.join(NUMBERS)}")]
    name: str = ""
    kind: str = ""  # the attack that fwtop should name; "" if it is none
    weight: Annotated[float, Meta(gt=0)] = 1.0
    family: Annotated[int, must("4 or 6", (4, 6).__contains__)] = 4
    source: Annotated[Pool, read_by(_pool, _SOURCE_WORDS)] = field(default_factory=Pool)
    sport: Annotated[Ports, _PortForm] = field(default_factory=lambda: Ports(low=1024, high=65535))
    dport: Annotated[Ports, _PortForm] = field(default_factory=lambda: Ports(ports=(0,)))
    payload: Annotated[
        tuple[dict[str, Any], ...], read_by(_one_or_more(_Pieces), "a table or a list of tables")
    ] = ()
    length: _Lengths = ()  # payload lengths, each equally often; empty: that of the payload
    variants: Annotated[int, Meta(ge=1, le=1024)] = 1  # number of templates drawn from a random payload
    flags: Annotated[int, read_by(_flags, f"{', '.join(TCP_FLAGS)} (joined by +) or none")] = 0  # TCP
    window: Annotated[int | None, _Drawn] = None  # None: drawn for each packet
    options: bool = False  # TCP options of a Linux client's SYN
    icmp: Annotated[tuple[int, int], read_by(_range, _RANGE_WORDS)] = (8, 0)  # type and code
    ttl: Annotated[tuple[int, int], read_by(_ttl, f'"random", {_RANGE_WORDS}')] = (48, 60)
    id: Annotated[int | None, _Drawn] = None  # None: drawn for each packet
    fragment: bool = False  # cut at 1,480 bytes of IP payload
    only_later: bool = False  # later fragments without the first
    vlan: _Lengths = ()  # outermost first
    target: Literal["address", "network"] = "address"  # the network: every address of the victim's
    active: _Section = (0.0, 1.0)  # section of the cycle in which it is sent
    also: _Texts = ()  # other names that are right as well: carpet bombing by UDP is a UDP flood


class Crowd(Struct, frozen=True):
    """Many clients with real TCP connections: an attack or a flash crowd."""

    protocol: Annotated[str, one_of(("http", "tls", *HELD))]
    kind: str = ""
    clients: Annotated[int, Meta(ge=1, le=4096)] = 200
    # requests per second, in total; connections, where they are held
    rate: Annotated[float, Meta(gt=0, le=50_000)] = 2000.0
    connections: Annotated[int, Meta(ge=1, le=16_384)] = 400  # that are held at once, by all clients together
    port: Annotated[int, Meta(ge=1, le=65535)] = 80  # where these are held
    # seconds between two pieces of a request, or of an answer that is read
    pause: Annotated[float, Meta(ge=0.1, le=3600)] = 5.0
    paths: _Texts = ("/",)  # {random} is replaced by ten hex digits
    host: str = "shop.example"
    agents: _Texts = ("Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",)


class Scenario(Struct, frozen=True):
    """A whole scenario."""

    title: str
    name: str = ""
    seed: int = 1
    pps: Annotated[int, Meta(ge=0, le=100_000_000)] = DEFAULT_PPS
    firewall: Literal["stateful", "open", "none"] = "stateful"
    # accepted by the victim's firewall, without a socket
    open_ports: Annotated[tuple[_OpenPort, ...], _OpenPorts] = ()
    cycle: Annotated[float, Meta(ge=0)] = 0.0  # seconds; 0: all vectors are always active
    resolver: bool = False  # the gateway runs a DNS server and is the victim's resolver
    in_order: bool = False  # send the vectors in order instead of mixed
    vectors: tuple[Vector, ...] = field(default=(), name="vector")
    crowds: tuple[Crowd, ...] = field(default=(), name="crowd")

    @property
    def kinds(self) -> tuple[str, ...]:
        """The attacks that fwtop should name."""
        named = [vector.kind for vector in self.vectors] + [crowd.kind for crowd in self.crowds]
        return tuple(dict.fromkeys(kind for kind in named if kind))
