"""Cities of addresses, where the operator has a city database."""

from __future__ import annotations

from typing import Any

import numpy as np

from fwtop.enrich.geoip import Database, open_databases
from fwtop.enrich.mmdb import MmdbFile
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.model.traffic.packets import PacketBatch

_MOST_PACKETS = 4_096  # of a batch: the share of a city needs no more
_MOST_NAMES = 20_000


class CityLookup:
    """The first database that knows cities."""

    def __init__(self, file: MmdbFile) -> None:
        self._file = file
        self._names: dict[int, str] = {}  # by record; an attacker can't make up more than the file holds

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
            name = self._name(int(records[row]))
            if name:
                found[name] = found.get(name, 0.0) + float(sums[row]) / total
        return sorted(found.items(), key=lambda item: -item[1])[:most]

    def _name(self, record: int) -> str:
        name = self._names.get(record)
        if name is None:
            name = city_name(self._file.content(record))
            if len(self._names) < _MOST_NAMES:
                self._names[record] = name
        return name


def open_cities(path: str | None = None) -> CityLookup | None:
    """Open the operator's city database, as `open_lookup` finds it; None if there is none."""
    try:
        databases, _ = open_databases(path)
    except FwtopError:
        return None  # open_lookup reports it
    return next((CityLookup(database.file) for database in databases if _knows_cities(database)), None)


def _knows_cities(database: Database) -> bool:
    kind = str(database.file.metadata.database_type).lower()
    return "city" in kind or "enterprise" in kind


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
