"""Country, autonomous system and city of addresses, from bundled databases or the operator's.

And the reverse: the minimal list of prefixes of a system or a country, for `block asn:N`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from fwtop.enrich.mmdb import STALE_DAYS, CorruptDatabaseError, Database, MmdbFile
from fwtop.model.addresses.address import Prefix, country_of
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
            databases.append(Database(candidate))
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


def prefixes_of_asn(asn: int, path: str | None = None) -> list[Prefix]:
    """Return the prefixes of an autonomous system; FwtopError if no database knows it."""
    return _prefixes(f"AS{asn}", path, lambda origin: origin.asn == asn)


def prefixes_of_country(code: str, path: str | None = None) -> list[Prefix]:
    """Return the prefixes of a country by its ISO 3166-1 code; FwtopError if no database knows it."""
    name = country_of(code)
    number = int.from_bytes(name.encode(), "big")
    return _prefixes(f"country {name}", path, lambda origin: origin.country == number)


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
        origin = database.by_record(leaves.record)
        for row in np.flatnonzero(wanted(origin)):
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
