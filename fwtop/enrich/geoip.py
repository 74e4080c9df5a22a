"""Country, autonomous system and city of addresses, from bundled databases or the operator's.

And the reverse: the minimal list of prefixes of a system or a country, for `block asn:N`. And whether a
database may replace another: what it holds, its age, and whether it knows the world.
"""

from __future__ import annotations

import ipaddress
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from fwtop.enrich.mmdb import STALE_DAYS, CorruptDatabaseError, Database, MmdbFile
from fwtop.model.addresses.address import Prefix, asn_of, country_of
from fwtop.model.errors import FwtopError
from fwtop.model.paths import GEOIP_DIRECTORY
from fwtop.model.text import safe_text
from fwtop.model.traffic.packets import U8, U64, Mask, NoOrigin, OriginColumns, OriginLookup, PacketBatch

BUNDLED = GEOIP_DIRECTORY / "origin.mmdb"
# Where geoipupdate and the distributions' packages put databases.
USUAL_PLACES = tuple(map(Path, ("/var/lib/GeoIP", "/usr/share/GeoIP", "/usr/local/share/GeoIP")))
_KNOWN_KINDS = ("asn", "country", "city", "isp", "enterprise", "ipinfo")
_MOST_PACKETS = 4_096  # of a batch: the share of a city needs no more
_MOST_NAMES = 20_000
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


class GeoLookup(Struct, frozen=True):
    """Several databases in order of preference; the first that knows a country or an AS wins."""

    databases: tuple[Database, ...]
    warnings: tuple[str, ...] = ()

    def columns(self, family: U8, hi: U64, lo: U64) -> OriginColumns:
        """Look n addresses up."""
        result = self.databases[0].columns(family, hi, lo)
        for database in self.databases[1:]:
            more = database.columns(family, hi, lo)
            country = np.where(result.country == 0, more.country, result.country)
            result = OriginColumns(country, np.where(result.asn == 0, more.asn, result.asn))
        return result

    def as_name(self, asn: int) -> str | None:
        """Return the sanitised name of an autonomous system that a lookup has returned."""
        for database in self.databases:
            if name := database.name_of(asn):
                return safe_text(name, limit=80)
        return None

    @property
    def stale(self) -> str:
        """The day of the data if that is long ago, else ""."""
        known = (one for one in self.databases if one.is_of("country", "city", "enterprise", "ipinfo"))
        first = next(known, self.databases[0])
        return first.day if first.age_days(time.time()) > STALE_DAYS else ""

    def describe(self) -> str:
        """Return name, age and licence of the databases."""
        return "; ".join(database.describe(time.time()) for database in self.databases)


def open_lookup(path: str | None = None) -> OriginLookup:
    """Open the operator's databases and the bundled one; NoOrigin if there is none.

    `path` is a database or a directory of them, which then are used before the bundled one. Raises
    FwtopError when it can't be used; a damaged one in the usual places only gives a warning.
    """
    databases, warnings = open_databases(path)
    return GeoLookup(databases, warnings) if databases else NoOrigin()


def open_databases(path: str | None = None) -> tuple[tuple[Database, ...], tuple[str, ...]]:
    """Return the databases in order of preference, and why others were skipped."""
    databases = _open_named(path) if path is not None else []
    warnings: list[str] = []
    candidates = [] if path is not None else _found_paths()
    for candidate in [*candidates, *([BUNDLED] if BUNDLED.exists() else [])]:
        try:
            databases.append(Database(candidate, registered=candidate == BUNDLED))
        except (CorruptDatabaseError, OSError) as error:
            warnings.append(f"GeoIP database {safe_text(candidate)} is not used: {_reason(error)}")
    return tuple(databases), tuple(warnings)


def _reason(error: Exception) -> str:
    return safe_text(os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error)


def _open_named(given: str) -> list[Database]:
    """Open a database or all in a directory; raises FwtopError."""
    path = Path(given)
    try:
        found = sorted(path.glob("*.mmdb")) if path.is_dir() else [path]
        databases = [Database(path := one) for one in found]
    except (CorruptDatabaseError, OSError) as error:
        raise FwtopError(
            f"cannot use the GeoIP database {safe_text(path)}: {_reason(error)}; nothing was started; "
            "give another --geoip, or leave it out for the data that fwtop brings"
        ) from error
    if not databases:
        raise FwtopError(f"no .mmdb file in {safe_text(given)}; nothing was started")
    return databases


def _found_paths() -> list[Path]:
    """Return the operator's databases of known kinds that can be read, the newest of each kind first."""
    found: list[tuple[float, str, Path]] = []
    for place in USUAL_PLACES:
        with suppress(OSError):
            found += [
                (-path.stat().st_mtime, path.name, path)
                for path in place.glob("*.mmdb")
                if path.is_file() and any(kind in path.name.lower() for kind in _KNOWN_KINDS)
            ]
    return [path for *_, path in sorted(found)]


class CityLookup:
    """The first database that knows cities."""

    def __init__(self, file: MmdbFile) -> None:
        self._file = file
        self._name = lru_cache(_MOST_NAMES)(lambda record: city_name(file.content(record)))

    def shares(self, batch: PacketBatch, most: int) -> list[tuple[str, float]]:
        """Return the cities that most packets came from, "Amsterdam, NL", with their share of the batch."""
        if len(batch) > _MOST_PACKETS:
            batch = batch.select(np.linspace(0, len(batch) - 1, _MOST_PACKETS).astype(np.intp))
        total = float(batch.weight.sum())
        if total <= 0:
            return []
        records, place = np.unique(
            self._file.records(batch.family, batch.src_hi, batch.src_lo), return_inverse=True
        )
        sums = np.bincount(place, weights=batch.weight, minlength=len(records))
        found: dict[str, float] = {}
        for row in np.argsort(-sums)[: 4 * most]:
            if name := self._name(int(records[row])):
                found[name] = found.get(name, 0.0) + float(sums[row]) / total
        return sorted(found.items(), key=lambda item: -item[1])[:most]


def open_cities(path: str | None = None) -> CityLookup | None:
    """Open the operator's city database, as `open_lookup` finds it; None if there is none."""
    try:
        databases, _ = open_databases(path)
    except FwtopError:
        return None  # open_lookup reports it
    return next((CityLookup(one.file) for one in databases if one.is_of("city", "enterprise")), None)


def city_name(content: dict[str, Any]) -> str:
    """Return the city and country of a record of GeoLite2, DB-IP, IPinfo or ip-location-db, sanitised."""
    city = content.get("city") or ""
    if isinstance(city, dict):
        names = city.get("names")
        city = names.get("en", "") if isinstance(names, dict) else ""
    country = content.get("country") or content.get("country_code") or ""
    if isinstance(country, dict):
        country = country.get("iso_code", "")
    if not isinstance(city, str) or not city:
        return ""
    shown = safe_text(city, limit=60)
    return f"{shown}, {safe_text(country, limit=2)}" if isinstance(country, str) and country else shown


def prefixes_of_origin(origin: str, path: str | None = None) -> list[Prefix]:
    """Return the prefixes of an AS (asn:N) or a country (country:CC); FwtopError if no database knows any."""
    kind, _, name = origin.partition(":")
    if kind == "asn":
        asn = asn_of(name)
        return _prefixes(f"AS{asn}", path, lambda found: found.asn == asn)
    code = country_of(name)
    number = int.from_bytes(code.encode(), "big")
    return _prefixes(f"country {code}", path, lambda found: found.country == number)


def _prefixes(what: str, path: str | None, wanted: Callable[[OriginColumns], Mask]) -> list[Prefix]:
    """Return the prefixes from the first database that has any."""
    databases, _ = open_databases(path)
    if not databases:
        raise FwtopError(
            "there is no GeoIP data here; nothing was changed; run 'make setup', or give --geoip FILE"
        )
    for database in databases:
        if found := collapse(_matching(database, wanted)):
            return found
    raise FwtopError(f"no network of {what} is known; nothing was changed")


def _matching(database: Database, wanted: Callable[[OriginColumns], Mask]) -> Iterable[Prefix]:
    for leaves in database.file.leaves():
        for row in np.flatnonzero(wanted(database.of_leaves(leaves))):
            yield leaves.prefix(int(row))


def collapse(prefixes: Iterable[Prefix]) -> list[Prefix]:
    """Return the minimal sorted list of prefixes that covers the same addresses."""
    ranges: list[list[int]] = []  # family, first, last
    for prefix in sorted(prefixes):
        last = prefix.value | ((1 << (prefix.bits - prefix.length)) - 1)
        if ranges and ranges[-1][0] == prefix.family and prefix.value <= ranges[-1][2] + 1:
            ranges[-1][2] = max(ranges[-1][2], last)
        else:
            ranges.append([prefix.family, prefix.value, last])
    return [prefix for family, first, last in ranges for prefix in _cover(family, first, last)]


def _cover(family: int, first: int, last: int) -> Iterable[Prefix]:
    """Split an address range into the fewest aligned blocks."""
    bits = 32 if family == 4 else 128
    while first <= last:
        aligned = (first & -first).bit_length() - 1 if first else bits
        size = min(aligned, (last - first + 1).bit_length() - 1)
        yield Prefix(family, first, bits - size)
        first += 1 << size


class Contents(Struct, frozen=True):
    """What a database holds, by a sample of its records."""

    kind: str  # as it says itself
    build_epoch: int
    networks: int
    countries: int
    systems: int
    share: float  # of all IPv4 addresses
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
    countries = len(np.unique(origins.country[origins.country > 0]))
    systems = len(np.unique(origins.asn[origins.asn > 0]))
    checks = list(_checks(database, countries=countries > 0, systems=systems > 0))
    return Contents(
        safe_text(meta.database_type, limit=60),
        int(meta.build_epoch),
        sum(len(part.length) for part in leaves),
        countries,
        systems,
        float(sum(np.sum(0.5 ** part.length[part.family == 4].astype(np.float64)) for part in leaves)),
        len(checks),
        sum(checks),
    )


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
    if not found.countries and not found.systems:
        return ["its records hold neither countries nor AS numbers"], []
    few_systems = 0 < found.systems < _LEAST_SYSTEMS and not found.countries
    wrong = {
        "it is of a day in the future": found.build_epoch > now + 2 * _DAY_SECONDS,
        f"it knows only {found.countries} countries": 0 < found.countries < _LEAST_COUNTRIES,
        f"it knows only {found.systems:,} networks": few_systems,
        f"it knows only {found.share:.0%} of the IPv4 addresses": found.share < _LEAST_SHARE,
        f"of {found.known} well-known origins it has {found.agreed} right": (
            found.agreed < _LEAST_AGREED * found.known
        ),
    }
    before, age = replaced or found, int((now - found.build_epoch) / _DAY_SECONDS)
    days = -(-(before.build_epoch - found.build_epoch) // _DAY_SECONDS)
    doubtful = {
        f"it is {age} days old": age > STALE_DAYS,
        f"it is {days} days older than the one in place": found.build_epoch < before.build_epoch,
        f"it has {found.networks:,} networks, the one in place {before.networks:,}": (
            found.networks < _SHRUNK * before.networks
        ),
    }
    return [text for text, true in wrong.items() if true], [text for text, true in doubtful.items() if true]
