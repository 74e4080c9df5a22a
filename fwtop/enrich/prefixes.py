"""The minimal list of prefixes of an autonomous system or a country, for `block asn:N`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from fwtop.enrich.geoip import Database, open_databases
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.targets import country_of
from fwtop.model.errors import FwtopError
from fwtop.model.traffic.packets import Mask
from fwtop.model.traffic.window import OriginColumns


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
        found = collapse(_matching(database, wanted))
        if found:
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
