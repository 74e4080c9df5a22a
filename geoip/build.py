#!/usr/bin/env python3
"""Build geoip/origin.mmdb.xz: country, AS number and AS name of IPv4 and IPv6 addresses.

From data under free licences only (see README.md beside this file), taken from the npm registry by package
name and version, so that the same versions give the same file, byte for byte. Needs npm. To renew the
data, raise VERSION.
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
from mmdb_writer import DataSection, Tree, database

VERSION = "2.3.2026061719"  # the publisher's, with year, month, day and hour of the data
TARGET = Path(__file__).resolve().parent / "origin.mmdb.xz"
DESCRIPTION = (
    "Country and ASN for fwtop. Sources: IPtoASN (PDDL 1.0); NRO, Route Views, IP Geolocation by DB-IP "
    "(https://db-ip.com), all CC BY 4.0; merged and modified"
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


def joined(countries: list[Range], systems: list[Range]) -> list[tuple[int, int, str, int]]:
    """Cut both lists at each other's borders: first, last, country or "", AS number or 0."""
    points = sorted({p for low, high, _ in (*countries, *systems) for p in (low, high + 1)})
    rows: list[tuple[int, int, str, int]] = []
    position = [0, 0]
    for low, after in itertools.pairwise(points):
        found = ["", ""]
        for side, ranges in enumerate((countries, systems)):
            while position[side] < len(ranges) and ranges[position[side]][1] < low:
                position[side] += 1
            if position[side] < len(ranges) and ranges[position[side]][0] <= low:
                found[side] = ranges[position[side]][2]
        country, asn = found[0], int(found[1] or 0)
        if not country and not asn:
            continue
        if rows and rows[-1][1] == low - 1 and rows[-1][2:] == (country, asn):
            rows[-1] = (rows[-1][0], after - 1, country, asn)
        else:
            rows.append((low, after - 1, country, asn))
    return rows


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
    if family == 6:
        whois = list(whole_sites(whois))
    routed = mmdb_ranges(folder / f"iptoasn-country-ipv{family}.mmdb", family)
    systems = systems_of(folder / f"asn-ipv{family}-num.csv", names)
    return joined(overlay([routed, whois]), overlay([systems]))


def build(folder: Path) -> bytes:
    """Return the whole database."""
    for name in ("asn", "geo-whois-asn-country", "iptoasn-country-mmdb"):
        fetch(name, folder)
    names: dict[int, Counter[str]] = defaultdict(Counter)
    rows = [row for row in rows_of(4, folder, names) if row[1] <= _V4_MAX]
    rows += [row for row in rows_of(6, folder, names) if row[0] > _V4_MAX]
    section = DataSection()
    chosen = {asn: counter.most_common(1)[0][0] for asn, counter in names.items()}
    offsets = [section.record(country, asn, chosen.get(asn, "")) for _, _, country, asn in rows]
    tree = Tree([row[0] for row in rows], [row[1] for row in rows], offsets)
    moment = datetime.strptime(VERSION.rsplit(".", maxsplit=1)[-1], "%Y%m%d%H").replace(tzinfo=UTC)
    print(f"{len(rows)} ranges, {len(tree.nodes)} nodes, {len(section.data)} bytes of records")
    return database(
        tree, section, build_epoch=int(moment.timestamp()), kind="fwtop-Country-ASN", description=DESCRIPTION
    )


def main() -> None:
    """Build, check a few addresses that everybody knows, write."""
    with tempfile.TemporaryDirectory(prefix="fwtop-geoip-") as name:
        folder = Path(name)
        content = build(folder)
        (folder / "origin.mmdb").write_bytes(content)
        with maxminddb.open_database(folder / "origin.mmdb") as reader:
            for address, asn, country in (("8.8.8.8", 15169, "US"), ("2a01:4f8::1", 24940, "DE")):
                record = reader.get(ipaddress.ip_address(address))
                text = str(record)
                if f"'{country}'" not in text or f": {asn}," not in text:
                    raise SystemExit(
                        f"build.py: {address} should be AS{asn}, {country}, and is {text}; nothing written"
                    )
    TARGET.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
    print(f"{TARGET.name}: {len(content)} bytes, {TARGET.stat().st_size} packed")


if __name__ == "__main__":
    main()
