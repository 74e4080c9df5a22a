"""Country and autonomous system of addresses, from the bundled database or the operator's."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fwtop.enrich.mmdb import CorruptDatabaseError, MmdbFile
from fwtop.model.errors import FwtopError
from fwtop.model.paths import GEOIP_DIRECTORY
from fwtop.model.text import safe_text
from fwtop.model.traffic.packets import I64, U8, U16, U32, U64
from fwtop.model.traffic.window import NoOrigin, OriginColumns, OriginLookup

BUNDLED = GEOIP_DIRECTORY / "origin.mmdb"
# Where geoipupdate and the distributions' packages put databases.
USUAL_PLACES = tuple(map(Path, ("/var/lib/GeoIP", "/usr/share/GeoIP", "/usr/local/share/GeoIP")))
_KNOWN_KINDS = ("asn", "country", "city", "isp", "enterprise", "ipinfo")
_WITH_COUNTRIES = ("country", "city", "enterprise", "ipinfo")
STALE_DAYS = 180
_SECONDS_A_DAY = 86_400


_Cache = tuple[I64, U16, U32]


_MOST_REMEMBERED = 16_384  # addresses; walking 128 bits in numpy takes 1 ms, for however few
_MOST_NAMES = 4_096
_RECORDS_OF_A_NAME = 8  # of a system, that are searched for its name
_KEY_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def _positions(cache: _Cache, records: I64) -> NDArray[np.intp]:
    return np.minimum(np.searchsorted(cache[0], records), len(cache[0]) - 1)


def _missed(cache: _Cache, records: I64) -> I64:
    """Return the records that the cache lacks, each once."""
    missed: I64 = records[cache[0][_positions(cache, records)] != records]
    missed.sort()  # np.unique would import numpy.ma: 35 ms the first time
    first = np.append(True, missed[1:] != missed[:-1])[: len(missed)]
    return np.asarray(missed[first], np.int64)


class _Found(Struct, frozen=True):
    """Addresses that were looked up, in ascending order of their keys, and their records.

    Addresses may share a key: one of them is then looked up every time.
    """

    keys: U64
    family: U8
    hi: U64
    lo: U64
    records: I64

    @staticmethod
    def none() -> _Found:
        empty = np.zeros(0, np.uint64)
        return _Found(empty, np.zeros(0, np.uint8), empty, empty, np.zeros(0, np.int64))

    def get(self, keys: U64, family: U8, hi: U64, lo: U64) -> tuple[I64, NDArray[np.bool_]]:
        """Return the records of addresses, and which of them are known."""
        if not len(self.keys):
            return np.zeros(len(keys), np.int64), np.zeros(len(keys), np.bool_)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        known = (self.lo[at] == lo) & (self.hi[at] == hi) & (self.family[at] == family)
        return self.records[at], known

    def with_new(self, new: _Found) -> _Found:
        """Return these and other addresses; too many begin anew."""
        parts = [new] if len(self.keys) + len(new.keys) > _MOST_REMEMBERED else [self, new]
        columns = [
            np.concatenate([getattr(part, name) for part in parts]) for name in _Found.__struct_fields__
        ]
        order = np.argsort(columns[0], kind="stable")
        return _Found(*(column[order] for column in columns))


class Database:
    """One database and a cache of its records, so that each is decoded once.

    Memory is bounded by the number of distinct records in the file (bundled data: 90,000), whatever
    addresses an attacker makes up.
    """

    def __init__(self, path: Path) -> None:
        self.file = MmdbFile(path)
        # Records in order (0: no record), country and AS of each; replaced as a whole, for other threads
        self._cache: _Cache = np.zeros(1, np.int64), np.zeros(1, np.uint16), np.zeros(1, np.uint32)
        self._found = _Found.none()
        self._learning = threading.Lock()
        self._names: dict[int, str] = {}  # of the systems that were asked for

    def columns(self, family: U8, hi: U64, lo: U64) -> OriginColumns:
        """Look n addresses up."""
        return self.by_record(self._records(family, hi, lo))

    def _records(self, family: U8, hi: U64, lo: U64) -> I64:
        """Return the record numbers of addresses; those of the last lookups are remembered."""
        if len(family) > _MOST_REMEMBERED // 4:  # a flood of forged sources: none of them comes again
            return self.file.records(family, hi, lo)
        found = self._found
        keys = hi * _KEY_FACTOR ^ lo
        records, known = found.get(keys, family, hi, lo)
        missed = np.flatnonzero(~known)
        if len(missed):
            records[missed] = self.file.records(family[missed], hi[missed], lo[missed])
            new = _Found(keys[missed], family[missed], hi[missed], lo[missed], records[missed])
            self._found = found.with_new(new)
        return records

    def by_record(self, records: I64) -> OriginColumns:
        """Return the contents of records by number."""
        cache = self._cache
        if len(_missed(cache, records)):
            with self._learning:
                cache = self._cache = self._learned(_missed(self._cache, records))
        at = _positions(cache, records)
        return OriginColumns(cache[1][at], cache[2][at])

    def _learned(self, records: I64) -> _Cache:
        """Return the cache with further records."""
        country, asn = np.zeros(len(records), np.uint16), np.zeros(len(records), np.uint32)
        for place, record in enumerate(records.tolist()):
            content = self.file.content(record)
            country[place] = _country_number(content)
            asn[place] = _system(content)[0]
        self.file.unmap_pages()
        known, countries, numbers = self._cache
        joined = np.concatenate([known, records])
        order = np.argsort(joined)
        return (
            joined[order],
            np.concatenate([countries, country])[order],
            np.concatenate([numbers, asn])[order],
        )

    def name_of(self, asn: int) -> str:
        """Return the raw name of an autonomous system that a lookup has returned; "" if it has none.

        Few are shown of the many that forged sources have, so names are decoded when asked for.
        """
        if name := self._names.get(asn):
            return name
        known, _, numbers = self._cache
        records = known[np.flatnonzero(numbers == asn)[:_RECORDS_OF_A_NAME]].tolist()
        name = next(filter(None, (_system(self.file.content(record))[1] for record in records)), "")
        self.file.unmap_pages()
        if name:
            if len(self._names) >= _MOST_NAMES:
                self._names.clear()
            self._names[asn] = name
        return name

    @property
    def knows_countries(self) -> bool:
        """Whether its type says that it holds countries."""
        kind = str(self.file.metadata.database_type).lower()
        return any(word in kind for word in _WITH_COUNTRIES)

    @property
    def day(self) -> str:
        """The day that the data are of."""
        return time.strftime("%Y-%m-%d", time.gmtime(max(0, min(self.file.metadata.build_epoch, 1 << 35))))

    def age_days(self, now: float) -> int:
        """Return the age of the data."""
        return max(0, int((now - self.file.metadata.build_epoch) / _SECONDS_A_DAY))

    def describe(self, now: float) -> str:
        """Return the name and age of the database."""
        meta, age = self.file.metadata, self.age_days(now)
        text = f"{self.file.path}: {safe_text(meta.database_type, limit=40)} of {self.day} ({age} days old)"
        if age > STALE_DAYS:
            text += ", getting stale"
        licence = meta.description.get("en", "") if isinstance(meta.description, dict) else ""
        return f"{text}. {safe_text(licence, limit=300)}" if licence else text


def _country_number(content: dict[str, Any]) -> int:
    """Return the country of a record of GeoLite2, DB-IP, IPinfo or ip-location-db as a number."""
    for key in ("country", "registered_country", "country_code"):
        found = content.get(key)
        code = found.get("iso_code", "") if isinstance(found, dict) else found
        # In IPinfo Lite, "country" is a name
        if isinstance(code, str) and len(code) == len("NL") and code.isascii() and code.isalpha():
            return int.from_bytes(code.upper().encode(), "big")
    return 0


def _system(content: dict[str, Any]) -> tuple[int, str]:
    """Return the AS number and its raw name of a record, 0 and "" if unknown."""
    number = content.get("autonomous_system_number") or content.get("asn") or 0
    name = content.get("autonomous_system_organization") or content.get("as_name") or ""
    digits = str(number).upper().removeprefix("AS")
    value = int(digits) if digits.isascii() and digits.isdigit() else 0
    return (value if value < 1 << 32 else 0), str(name)


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
        known = (one for one in self.databases if one.knows_countries)
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
