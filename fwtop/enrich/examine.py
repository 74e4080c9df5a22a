"""Whether a GeoIP database may replace another: what it holds, its age, and whether it knows the world."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from msgspec import Struct

from fwtop.enrich.mmdb import STALE_DAYS, CorruptDatabaseError, Database, Leaves
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_MOST_RECORDS = 50_000  # that are decoded, evenly spread: databases of cities have millions
_LEAST_COUNTRIES, _LEAST_SYSTEMS = 150, 5_000  # of which the smallest free database has 240 and 80,000
_LEAST_SHARE = 0.5  # of the IPv4 addresses; those that nobody announces are a seventh
_LEAST_AGREED = 0.8  # of the known addresses
_SHRUNK = 0.5  # networks, in proportion to the database that is replaced
_DAY_SECONDS = 86_400
# Addresses of registries and universities: they have been there for decades
_KNOWN = (
    ("8.8.8.8", "US", 15169), ("193.0.6.139", "NL", 3333), ("129.132.1.1", "CH", 559),
    ("133.11.0.1", "JP", 2501), ("200.160.0.8", "BR", 22548), ("130.216.1.1", "NZ", 9431),
    ("137.158.1.1", "ZA", 36982),
    ("2a01:4f8::1", "DE", 24940), ("2001:67c:2e8::1", "NL", 3333), ("2001:200::1", "JP", 2500),
)  # fmt: skip


class Contents(Struct, frozen=True):
    """What a database holds, by a sample of its records."""

    kind: str  # as it says itself
    build_epoch: int
    networks: int
    countries: int
    systems: int
    share: float  # of all IPv4 addresses
    has_ipv6: bool
    known: int  # addresses of which it should know the origin
    agreed: int  # of these


def examine(path: Path) -> Contents:
    """Read a database; raises FwtopError if it is none."""
    try:
        database = Database(path)
    except (CorruptDatabaseError, OSError) as error:
        raise FwtopError(f"it can't be read: {safe_text(error)}") from None
    leaves = list(database.file.leaves())
    records = np.unique(np.concatenate([part.record for part in leaves] or [np.zeros(0, np.int64)]))
    step = -(-len(records) // _MOST_RECORDS) or 1
    origins = database.by_record(records[::step])
    meta = database.file.metadata
    countries, systems = (
        len(np.unique(origins.country[origins.country > 0])),
        len(np.unique(origins.asn[origins.asn > 0])),
    )
    checks = list(_checks(database, countries=countries > 0, systems=systems > 0))
    return Contents(
        safe_text(meta.database_type, limit=60),
        int(meta.build_epoch),
        sum(len(part.length) for part in leaves),
        countries,
        systems,
        sum(_share(part) for part in leaves),
        any(part.family[0] == 6 for part in leaves if len(part.family)),
        len(checks),
        sum(checks),
    )


def _share(leaves: Leaves) -> float:
    four = leaves.length[leaves.family == 4]
    return float(np.sum(0.5 ** four.astype(np.float64)))


def _checks(database: Database, *, countries: bool, systems: bool) -> Iterator[bool]:
    """Yield for each known address whether the database has its origin right."""
    for text, country, asn in _KNOWN:
        address = ipaddress.ip_address(text)
        if address.version == 6 and database.file.metadata.ip_version == 4:
            continue
        value = int(address)
        found = database.columns(
            np.array([address.version], np.uint8),
            np.array([value >> 64], np.uint64),
            np.array([value & (1 << 64) - 1], np.uint64),
        )
        if countries:
            yield int(found.country[0]) == int.from_bytes(country.encode(), "big")
        if systems:
            yield int(found.asn[0]) == asn


def objections(found: Contents, now: float, replaced: Contents | None = None) -> tuple[list[str], list[str]]:
    """Return why a database must not be used, and what only the operator can decide."""
    wrong: list[str] = []
    if not found.countries and not found.systems:
        return ["its records hold neither countries nor AS numbers"], []
    if found.build_epoch > now + 2 * _DAY_SECONDS:
        wrong.append("it is of a day in the future")
    if 0 < found.countries < _LEAST_COUNTRIES:
        wrong.append(f"it knows only {found.countries} countries")
    if 0 < found.systems < _LEAST_SYSTEMS and not found.countries:
        wrong.append(f"it knows only {found.systems:,} networks")
    if found.share < _LEAST_SHARE:
        wrong.append(f"it knows only {found.share:.0%} of the IPv4 addresses")
    if found.agreed < _LEAST_AGREED * found.known:
        wrong.append(f"of {found.known} well-known origins it has {found.agreed} right")
    doubtful: list[str] = []
    age = int((now - found.build_epoch) / _DAY_SECONDS)
    if age > STALE_DAYS:
        doubtful.append(f"it is {age} days old")
    if replaced is not None and found.build_epoch < replaced.build_epoch:
        days = -(-(replaced.build_epoch - found.build_epoch) // _DAY_SECONDS)
        doubtful.append(f"it is {days} days older than the one in place")
    if replaced is not None and found.networks < _SHRUNK * replaced.networks:
        doubtful.append(f"it has {found.networks:,} networks, the one in place {replaced.networks:,}")
    return wrong, doubtful
