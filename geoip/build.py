#!/usr/bin/env python3
"""Build geoip/origin.mmdb.xz: country, AS number and AS name of IPv4 and IPv6 addresses.

From data under free licences only (see README.md beside this file), taken from npm and crates.io by package
name and version, so that the same versions give the same file, byte for byte. Needs npm and cargo. To renew
the data, raise REGISTRIES_NOW, and RENEWED with it; VERSION has ended.
"""

from __future__ import annotations

import csv
import heapq
import ipaddress
import itertools
import lzma
import subprocess
import tarfile
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import maxminddb
import registries
from mmdb_writer import MMDBWriter
from netaddr import IPAddress, IPNetwork, IPSet, iprange_to_cidrs

VERSION = "2.3.2026061719"  # the last of the npm packages, with year, month, day and hour of the data
REGISTRIES_THEN = "1.4.49"  # the crate of the day of VERSION: what has changed since then wins
REGISTRIES_NOW, RENEWED = "1.4.175", datetime(2026, 11, 1, tzinfo=UTC)  # and when it was published
TARGET = Path(__file__).resolve().parent / "origin.mmdb.xz"
DESCRIPTION = (
    f"Country and ASN for fwtop, AS numbers of {VERSION[4:8]}-{VERSION[8:10]}-{VERSION[10:12]}. Sources: "
    "IPtoASN (PDDL 1.0); NRO, Route Views, IP Geolocation by DB-IP (https://db-ip.com), all CC BY 4.0; "
    "merged and modified"
)
# Registries hand out no IPv6 blocks this wide but to whole regions, and the whois data then names the
# registry's seat: 2001:200::/23 is not Australia.
WIDEST_IPV6_WHOIS = 1 << 100  # addresses: a /28
SITE_IPV6 = 1 << 80  # a /48, the smallest network that is routed: what is finer would double the file
_V4_MAX = (1 << 32) - 1

Range = tuple[int, int, str]


def fetch(name: str, folder: Path) -> None:
    """Download one package with the ordinary client and put its files into the folder."""
    spec = f"@ip-location-db/{name}@{VERSION}"
    done = subprocess.run(
        ["npm", "pack", "--silent", spec], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"build.py: npm pack {spec} failed: {done.stderr.strip()[-300:]}")
    with tarfile.open(folder / done.stdout.strip()) as archive:
        for member in archive.getmembers():
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None:
                (folder / Path(member.name).name).write_bytes(content.read())


def csv_ranges(path: Path) -> Iterator[list[str]]:
    """Yield the rows of one CSV file: first and last address as numbers, then values."""
    with path.open(encoding="utf-8", newline="") as lines:
        yield from csv.reader(lines)


def mmdb_ranges(path: Path, family: int) -> Iterator[Range]:
    """Yield the countries of a country database of one family."""
    with maxminddb.open_database(path) as reader:
        for network, record in reader:
            if network.version == family and isinstance(record, dict) and record.get("country_code"):
                low = int(network.network_address)
                yield low, low + network.num_addresses - 1, str(record["country_code"])


def overlay(layers: list[Iterable[Range]]) -> list[Range]:
    """Merge layers of disjoint ranges; where several know a place, the later layer wins."""
    events: dict[int, list[tuple[int, int, str]]] = defaultdict(list)  # address → (layer, last, value)
    cuts: set[int] = set()
    for rank, layer in enumerate(layers):
        for low, high, value in layer:
            events[low].append((-rank, high, value))
            cuts.update((low, high + 1))
    merged: list[Range] = []
    active: list[tuple[int, int, str]] = []
    points = sorted(cuts)
    for low, after in itertools.pairwise(points):
        for event in events.get(low, ()):
            heapq.heappush(active, event)
        while active and active[0][1] < low:
            heapq.heappop(active)
        if not active:
            continue
        value = active[0][2]
        if merged and merged[-1][1] == low - 1 and merged[-1][2] == value:
            merged[-1] = (merged[-1][0], after - 1, value)
        else:
            merged.append((low, after - 1, value))
    return merged


def laid_over(left: Iterable[Range], right: Iterable[Range]) -> Iterator[tuple[int, int, str, str]]:
    """Cut sorted ranges at each other's borders; yield each piece with what both know of it, or ""."""
    sides = list(left), list(right)
    points = sorted({point for ranges in sides for low, high, _ in ranges for point in (low, high + 1)})
    position = [0, 0]
    for low, after in itertools.pairwise(points):
        found = ["", ""]
        for side, ranges in enumerate(sides):
            while position[side] < len(ranges) and ranges[position[side]][1] < low:
                position[side] += 1
            if position[side] < len(ranges) and ranges[position[side]][0] <= low:
                found[side] = ranges[position[side]][2]
        yield low, after - 1, found[0], found[1]


def joined(countries: list[Range], systems: list[Range]) -> list[tuple[int, int, str, int]]:
    """Return first, last, country or "", AS number or 0; neighbours with the same values are merged."""
    rows: list[tuple[int, int, str, int]] = []
    for low, high, country, system in laid_over(countries, systems):
        asn = int(system or 0)
        if not country and not asn:
            continue
        if rows and rows[-1][1] == low - 1 and rows[-1][2:] == (country, asn):
            rows[-1] = (rows[-1][0], high, country, asn)
        else:
            rows.append((low, high, country, asn))
    return rows


def changed(then: Iterable[Range], now: Iterable[Range]) -> Iterator[Range]:
    """Yield what has a country now that it did not have then."""
    for low, high, before, after in laid_over(then, now):
        if after and after != before:
            yield low, high, after


def systems_of(path: Path, names: dict[int, Counter[str]]) -> list[Range]:
    """Read the AS ranges of one family, and count the names that each AS goes by."""
    ranges = []
    for low, high, asn, name in csv_ranges(path):
        ranges.append((int(low), int(high), asn))
        names[int(asn)][name.strip()] += 1
    return ranges


def whole_sites(ranges: Iterable[Range]) -> Iterator[Range]:
    """Cut IPv6 ranges to whole /48s, and leave out those that are too wide to be a place."""
    for low, high, value in ranges:
        first, after = -(-low // SITE_IPV6) * SITE_IPV6, (high + 1) // SITE_IPV6 * SITE_IPV6
        if 0 < after - first <= WIDEST_IPV6_WHOIS:
            yield first, after - 1, value


def rows_of(family: int, folder: Path, names: dict[int, Counter[str]]) -> list[tuple[int, int, str, int]]:
    """Return the joined ranges of one family."""
    whois = [
        (int(low), int(high), country)
        for low, high, country in csv_ranges(folder / f"geo-whois-asn-country-ipv{family}-num.csv")
    ]
    news = changed(
        *(registries.ranges(folder / version, family) for version in (REGISTRIES_THEN, REGISTRIES_NOW))
    )
    if family == 6:
        whois, news = list(whole_sites(whois)), whole_sites(news)
    routed = mmdb_ranges(folder / f"iptoasn-country-ipv{family}.mmdb", family)
    systems = systems_of(folder / f"asn-ipv{family}-num.csv", names)
    return joined(overlay([routed, whois, news]), overlay([systems]))


class Writer(MMDBWriter):
    """Writes a database that is of a given day."""

    def _build_meta(self) -> dict[str, object]:
        return super()._build_meta() | {"build_epoch": int(RENEWED.timestamp())}


def build(folder: Path, target: Path) -> None:
    """Write the whole database."""
    for name in ("asn", "geo-whois-asn-country", "iptoasn-country-mmdb"):
        fetch(name, folder)
    for version in (REGISTRIES_THEN, REGISTRIES_NOW):
        registries.fetch(version, folder).rename(folder / version)
    names: dict[int, Counter[str]] = defaultdict(Counter)
    rows = [(4, *row) for row in rows_of(4, folder, names) if row[1] <= _V4_MAX]
    rows += [(6, *row) for row in rows_of(6, folder, names) if row[0] > _V4_MAX]
    chosen = {asn: counter.most_common(1)[0][0] for asn, counter in names.items()}
    networks: dict[tuple[str, int], list[IPNetwork]] = defaultdict(list)
    for family, low, high, country, asn in rows:
        networks[country, asn] += iprange_to_cidrs(IPAddress(low, family), IPAddress(high, family))
    made = Writer(6, "fwtop-Country-ASN", ["en"], DESCRIPTION, ipv4_compatible=True, int_type="u32")
    for (country, asn), cidrs in networks.items():
        made.insert_network(IPSet(cidrs), record(country, asn, chosen.get(asn, "")))
    made.to_db_file(str(target))
    print(f"{len(rows)} ranges, {len(networks)} records, {target.stat().st_size} bytes")


def record(country: str, asn: int, name: str) -> dict[str, object]:
    """Return a record with the keys of GeoLite2 Country and ASN, so that every reader of those reads it."""
    found: dict[str, object] = {"country": {"iso_code": country}} if country else {}
    if asn:
        found["autonomous_system_number"] = asn
    return found | ({"autonomous_system_organization": name} if asn and name else {})


def main() -> None:
    """Build, check a few addresses that everybody knows, write."""
    with tempfile.TemporaryDirectory(prefix="fwtop-geoip-") as name:
        folder = Path(name)
        build(folder, folder / "origin.mmdb")
        with maxminddb.open_database(folder / "origin.mmdb") as reader:
            for address, asn, country in (("8.8.8.8", 15169, "US"), ("2a01:4f8::1", 24940, "DE")):
                record = reader.get(ipaddress.ip_address(address))
                text = str(record)
                if f"'{country}'" not in text or f": {asn}," not in text:
                    raise SystemExit(
                        f"build.py: {address} should be AS{asn}, {country}, and is {text}; nothing written"
                    )
        content = (folder / "origin.mmdb").read_bytes()
    TARGET.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
    print(f"{TARGET.name}: {len(content)} bytes, {TARGET.stat().st_size} packed")


if __name__ == "__main__":
    main()
