"""Reader of scenario files (TOML). Strict: unknown keys and invalid values raise a one-line error."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from fwtop.lab.traffic.held import PROTOCOLS as HELD
from fwtop.lab.traffic.vectors import Crowd, Pool, Ports, Scenario, ScenarioError, Vector
from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.protocols import NUMBERS, TCP_FLAGS

DIRECTORY = Path(__file__).resolve().parent / "scenarios"
FIREWALLS = ("stateful", "open", "none")
CROWDS = ("http", "tls", *HELD)


def names() -> list[str]:
    """Return the names of the bundled scenarios."""
    return sorted(path.stem for path in DIRECTORY.glob("*.toml"))


def load(name: str) -> Scenario:
    """Read a bundled scenario by name, or a file by a path ending in .toml."""
    path = Path(name) if name.endswith(".toml") else DIRECTORY / f"{name}.toml"
    if not name.endswith(".toml") and name not in names():
        raise ScenarioError(f"no scenario {name[:60]!r}; 'fwtop lab list' names them")
    try:
        return parse(path.read_text(encoding="utf-8"), path.stem)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ScenarioError(f"scenario {path}: can't be read: {reason}") from None


def parse(text: str, name: str) -> Scenario:
    """Parse a scenario; raises ScenarioError."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"scenario {name}: not TOML: {error}") from None
    try:
        vectors = tuple(_vector(item, number) for number, item in enumerate(table.pop("vector", []), 1))
        crowds = tuple(_crowd(item, number) for number, item in enumerate(table.pop("crowd", []), 1))
        table["open_ports"] = tuple(_open_port(port) for port in table.get("open_ports", ()))
        scenario: Scenario = _build(
            Scenario, {**table, "name": name, "vectors": vectors, "crowds": crowds}, ""
        )
        _check(scenario)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ScenarioError(f"scenario {name}: {error}") from None
    return scenario


def _check(scenario: Scenario) -> None:
    _one_of("firewall", scenario.firewall, FIREWALLS)
    if not 0 <= scenario.pps <= 100_000_000:
        raise ValueError(f"pps is {scenario.pps}, but must lie between 0 and 100,000,000")
    for crowd in scenario.crowds:
        _one_of("crowd: protocol", crowd.protocol, CROWDS)
        if not 1 <= crowd.clients <= 4096 or not 0 < crowd.rate <= 50_000:
            raise ValueError("crowd: clients may be 1 to 4096 and rate up to 50,000 a second")
        if not 1 <= crowd.port <= 65535:
            raise ValueError("crowd: port may be 1 to 65535")
        if not 1 <= crowd.connections <= 16_384 or not 0.1 <= crowd.pause <= 3600:
            raise ValueError("crowd: connections may be 1 to 16,384, with a pause of 0.1 to 3600 s")
    if scenario.cycle == 0 and any(vector.active != (0.0, 1.0) for vector in scenario.vectors):
        raise ValueError("a vector's 'active' needs the scenario's 'cycle' (seconds)")


def _one_of(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{what} is {value!r}, but must be one of {', '.join(allowed)}")


_TYPES = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,)}


def _build(cls: type[Any], given: dict[str, Any], where: str) -> Any:  # noqa: ANN401 - a value of `cls`
    """Build a Struct from a table; unknown keys and wrong types raise ValueError."""
    prefix = f"{where}: " if where else ""
    known = cls.__annotations__
    for key, value in given.items():
        if key not in known:
            shown = ", ".join(sorted(name for name in known if name != "name"))
            raise ValueError(f"{prefix}unknown key {key!r} (known: {shown})")
        wanted = _TYPES.get(known[key])
        if wanted is not None and type(value) not in wanted:
            raise ValueError(f"{prefix}{key} must be of type {known[key]}")
    missing = [key for key in ("title", "protocol") if key in known and key not in given]
    if missing:
        raise ValueError(f"{prefix}{missing[0]} is missing")
    return cls(**given)


def _vector(table: dict[str, Any], number: int) -> Vector:
    where = f"vector {number}"
    readers = {
        "protocol": _protocol,
        "source": _pool,
        "sport": _ports,
        "dport": _ports,
        "payload": _payload,
        "length": _lengths,
        "flags": _flags,
        "ttl": _range,
        "icmp": _range,
        "vlan": _lengths,
        "active": _share,
        "also": _texts,
    }
    given: dict[str, Any] = {"name": f"vector-{number}", "kind": "", **table}
    try:
        if given.get("ttl") == "random":
            given |= {"ttl": [32, 32], "ttl_random": True}
        for drawn in ("window", "id"):
            if given.get(drawn) == "random":
                given.pop(drawn)
        for key, reader in readers.items():
            if key in given:
                given[key] = reader(given[key])
        vector: Vector = _build(Vector, given, "")
        _one_of("target", vector.target, ("address", "network"))
        if vector.family not in (4, 6) or not vector.weight > 0 or not 1 <= vector.variants <= 1024:
            raise ValueError("family must be 4 or 6, weight above 0, variants 1 to 1024")
        if any(prefix.family != vector.family for prefix in vector.source.prefixes):
            raise ValueError("source: prefixes are not of the vector's family")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{where}: {error}") from None
    return vector


def _crowd(table: dict[str, Any], number: int) -> Crowd:
    given = dict(table)
    for key in ("paths", "agents"):
        if key in given:
            given[key] = _texts(given[key], f"crowd {number}: {key}")
    crowd: Crowd = _build(Crowd, given, f"crowd {number}")
    return crowd


def _texts(value: object, what: str = "also") -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(text, str) for text in value):
        raise ValueError(f"{what} must be a list of texts")
    return tuple(value)


def _protocol(value: object) -> int:
    if isinstance(value, int) and 0 <= value <= 255:
        return value
    if isinstance(value, str) and value in NUMBERS:
        return NUMBERS[value]
    raise ValueError(f"protocol is {value!r}, but must be 0 to 255 or one of {', '.join(NUMBERS)}")


def _pool(value: object) -> Pool:
    """Read `"random"`, or a table with `count` and `skew` or with `prefixes` and `weights`."""
    if value == "random":
        return Pool()
    if not isinstance(value, dict):
        raise ValueError('source must be "random" or a table')
    given = {"forged": False, **value}
    given["prefixes"] = tuple(Prefix.parse(text) for text in value.get("prefixes", ()))
    given["weights"] = tuple(float(weight) for weight in value.get("weights", ()))
    pool: Pool = _build(Pool, given, "source")
    if bool(pool.prefixes) == bool(pool.count) or not 0 <= pool.count <= 32_768:
        raise ValueError("source needs either prefixes or a count of 1 to 32,768")
    if pool.weights and len(pool.weights) != len(pool.prefixes or range(pool.count)):
        raise ValueError("source: there must be as many weights as sources")
    return pool


def _ports(value: object) -> Ports:
    """Read a number, a list, `"random"`, or `"low-high"`."""
    if value == "random":
        return Ports(low=1024, high=65535)
    if isinstance(value, str) and value.replace("-", "", 1).isdigit() and "-" in value:
        low, high = (int(part) for part in value.split("-"))
        if 0 <= low <= high <= 65535:
            return Ports(low=low, high=high)
    numbers: list[Any] = value if isinstance(value, list) else [value]
    if numbers and all(type(port) is int and 0 <= port <= 65535 for port in numbers):
        return Ports(ports=tuple(int(port) for port in numbers))
    raise ValueError(f'a port is {value!r}, but must be a number, a list, "random" or "low-high"')


def _payload(value: object) -> tuple[dict[str, Any], ...]:
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(part, dict) and part for part in parts):
        raise ValueError("payload must be a table or a list of tables")
    return tuple(parts)


def _lengths(value: object) -> tuple[int, ...]:
    numbers: list[Any] = value if isinstance(value, list) else [value]
    if not all(type(number) is int and 0 <= number <= 65_000 for number in numbers):
        raise ValueError(f"{value!r} must be a number or a list of numbers from 0 to 65,000")
    return tuple(int(number) for number in numbers)


def _flags(value: object) -> int:
    if value == "none":
        return 0
    words = str(value).split("+")
    if unknown := [word for word in words if word not in TCP_FLAGS]:
        raise ValueError(f"flags: {unknown[0]!r} is not one of {', '.join(TCP_FLAGS)} (joined by +) or none")
    return sum(TCP_FLAGS[word] for word in set(words))


def _range(value: object) -> tuple[int, int]:
    pair: list[Any] = value if isinstance(value, list) else [value, value]
    if len(pair) != 2 or not all(type(number) is int and 0 <= number <= 255 for number in pair):
        raise ValueError(f"{value!r} must be a number or a pair of numbers from 0 to 255")
    return int(pair[0]), int(pair[1])


def _share(value: object) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2 or not 0 <= float(value[0]) < float(value[1]) <= 1:
        raise ValueError(f"active is {value!r}, but must be a pair such as [0, 0.5]")
    return float(value[0]), float(value[1])


def _open_port(value: object) -> str:
    protocol, _, port = str(value).partition("/")
    if protocol not in ("tcp", "udp") or not port.isdigit() or not 0 < int(port) <= 65535:
        raise ValueError(f"open_ports: {value!r} must look like udp/27015")
    return f"{protocol}/{int(port)}"
