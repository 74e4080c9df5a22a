"""Lookups against the reference reader, on databases of every record size and on damaged ones."""

from __future__ import annotations

import ipaddress
import random
import runpy
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import maxminddb
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mmdb_files import record_of, write_records

from fwtop.enrich import geoip, mmdb, special
from fwtop.enrich.mmdb import CorruptDatabaseError, MmdbFile
from fwtop.model import paths
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_rows import PrefixRows
from fwtop.model.errors import FwtopError

NETWORKS = {
    "192.0.2.0/24": ("NL", 64500, "First Example"),
    "192.0.2.128/25": ("DE", 64501, "Second Example"),
    "198.51.100.0/22": ("", 64502, "No Country"),
    "203.0.113.7/32": ("US", 0, ""),
    "2001:db8::/32": ("JP", 64503, "Six"),
    "2001:db8:1::/48": ("NL", 64500, "First Example"),
    "2001:db8:2::5/128": ("BR", 4200000000, "Big"),
}


def write_database(path: Path, networks: dict[str, tuple[str, int, str]], *, record_size: int = 24) -> Path:
    records = {network: record_of(*origin) for network, origin in networks.items()}
    return write_records(path, records, record_size=record_size)


def columns_of(addresses: list[str]):
    parsed = [ipaddress.ip_address(address) for address in addresses]
    values = [int(address) for address in parsed]
    return (
        np.array([address.version for address in parsed], np.uint8),
        np.array([value >> 64 for value in values], np.uint64),
        np.array([value & (1 << 64) - 1 for value in values], np.uint64),
    )


def expected(reader: maxminddb.Reader, address: str) -> tuple[str, int]:
    record = reader.get(address) or {}
    return record.get("country", {}).get("iso_code", ""), record.get("autonomous_system_number", 0)


def found(lookup, addresses: list[str]) -> list[tuple[str, int]]:
    origin = lookup.columns(*columns_of(addresses))
    countries = [int(c).to_bytes(2, "big").decode() if c else "" for c in origin.country]
    return list(zip(countries, origin.asn.tolist(), strict=True))


def some_addresses(count: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    addresses = []
    for _ in range(count):
        network = ipaddress.ip_network(chance.choice(list(NETWORKS)))
        wider = network.supernet(prefixlen_diff=min(4, network.prefixlen))
        addresses.append(str(wider[chance.randrange(min(wider.num_addresses, 1 << 62))]))
    return [
        *addresses,
        "0.0.0.1",
        "255.255.255.255",
        "::",
        "ffff:" * 7 + "ffff",
        "2001:db8:2::5",
        "203.0.113.7",
    ]


@pytest.fixture(scope="session")
def bundled(tmp_path_factory) -> Path:
    """The data that fwtop brings, unpacked by the code that set-up uses."""
    target = tmp_path_factory.mktemp("geoip") / "origin.mmdb"
    unpack = runpy.run_path(str(paths.ROOT / "scripts/unpack_geoip.py"))["unpack"]
    unpack(paths.GEOIP_DIRECTORY / "origin.mmdb.xz", target)
    return target


@pytest.fixture
def no_own_data(monkeypatch, tmp_path):
    monkeypatch.setattr(geoip, "USUAL_PLACES", (tmp_path / "usual",))
    monkeypatch.setattr(geoip, "BUNDLED", tmp_path / "bundled.mmdb")
    (tmp_path / "usual").mkdir()
    return tmp_path


@pytest.mark.parametrize("record_size", [24, 28, 32])
def test_lookup_agrees_with_the_reference_reader(tmp_path, no_own_data, record_size):
    path = write_database(tmp_path / "a.mmdb", NETWORKS, record_size=record_size)
    addresses = some_addresses(400, seed=record_size)
    with maxminddb.open_database(path) as reader:
        wanted = [expected(reader, address) for address in addresses]
    assert len(set(wanted)) == len(NETWORKS), "every record must be among the expected ones, and the miss"
    assert found(geoip.open_lookup(str(path)), addresses) == wanted


def test_bundled_data_agree_with_the_reference_reader_on_random_addresses(bundled):
    chance = random.Random(7)
    addresses = [str(ipaddress.IPv4Address(chance.getrandbits(32))) for _ in range(1500)]
    addresses += [str(ipaddress.IPv6Address(0x2 << 124 | chance.getrandbits(124))) for _ in range(1500)]
    with maxminddb.open_database(bundled) as reader:
        wanted = [expected(reader, address) for address in addresses]
    assert found(geoip.GeoLookup((mmdb.Database(bundled),)), addresses) == wanted
    assert sum(asn > 0 for _, asn in wanted) > 1000


def test_well_known_addresses_in_the_bundled_data(bundled):
    lookup = geoip.GeoLookup((mmdb.Database(bundled),))
    known = found(lookup, ["8.8.8.8", "193.0.6.139", "2a01:4f8::1", "10.0.0.1", "2001:200::1"])
    assert known == [("US", 15169), ("NL", 3333), ("DE", 24940), ("", 0), ("JP", 2500)]
    assert "Google" in lookup.as_name(15169)
    assert lookup.as_name(64999) is None


def test_special_purpose_addresses_have_no_origin_in_the_bundled_data(bundled, no_own_data, monkeypatch):
    monkeypatch.setattr(geoip, "BUNDLED", bundled)
    addresses = ["198.51.100.1", "203.0.113.7", "192.168.1.1", "172.16.3.4", "2001:db8::1", "8.8.8.8"]
    assert found(geoip.open_lookup(), addresses) == [("", 0)] * 5 + [("US", 15169)]
    blocked = PrefixRows.of(geoip.prefixes_of_origin("country:AU"))
    assert len(blocked) > 10_000
    for network in special.NETWORKS:
        assert blocked.overlapping(Prefix.of(network)) is None, network


def test_an_operators_own_data_may_know_private_addresses(tmp_path, no_own_data):
    path = str(write_database(tmp_path / "own.mmdb", {"10.1.0.0/16": ("DE", 64500, "Our hall")}))
    assert found(geoip.open_lookup(path), ["10.1.2.3"]) == [("DE", 64500)]


def is_special(value: int, family: int) -> bool:
    address = ipaddress.IPv4Address(value) if family == 4 else ipaddress.IPv6Address(value)
    return bool(special.special_purpose(*columns_of([str(address)]))[0])


@pytest.mark.parametrize("network", special.NETWORKS, ids=str)
def test_special_purpose_networks_are_those_that_python_knows(network):
    first, last = int(network[0]), int(network[-1])
    newer = ("3fff::/20", "5f00::/16")  # than the oldest Python that is supported
    one = network[network.num_addresses // 2]
    assert str(network) in newer or not one.is_global or one.is_multicast or one.is_reserved
    assert all(is_special(value, network.version) for value in (first, int(one), last))
    for value in (first - 1, last + 1):
        if 0 <= value < 1 << network.max_prefixlen:
            beside = any(type(one)(value) in network for network in special.NETWORKS)
            assert is_special(value, network.version) == beside, type(one)(value)


@example(ipaddress.ip_address("::ffff:128.0.0.0"))
@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
def test_no_global_address_is_taken_for_a_special_one(address):
    if is_special(int(address), address.version):
        anycast = ("192.0.0.9", "192.0.0.10")  # of whichever server is near: it has no country either
        is_nobodys = address.is_multicast or address.is_reserved or str(address) in anycast
        # RFC 6890 has ::ffff:0:0/96 as reachable by nobody; Python 3.13 goes by the address within.
        is_nobodys |= getattr(address, "ipv4_mapped", None) is not None
        assert is_nobodys or not address.is_global or address in ipaddress.ip_network("3fff::/20")


def test_description_names_data_age_and_attribution(bundled):
    text = geoip.GeoLookup((mmdb.Database(bundled),)).describe()
    for part in ("days old", "PDDL 1.0", "CC BY 4.0", "https://db-ip.com", "Route Views", "NRO"):
        assert part in text


def test_remembered_addresses_have_the_same_origin(bundled, monkeypatch):
    monkeypatch.setattr(mmdb, "_MOST_REMEMBERED", 400)
    monkeypatch.setattr(mmdb, "_KEY_FACTOR", np.uint64(0))  # many addresses share a key
    lookup, fresh = geoip.open_lookup(str(bundled)), geoip.open_lookup(str(bundled))
    many = some_addresses(300, seed=5)
    numbers = random.Random(6)
    for _ in range(20):
        some = numbers.sample(many, 90)
        family, hi, lo = columns_of(some)
        records = [database.file.records(family, hi, lo) for database in fresh.databases]
        wanted = fresh.databases[0].by_record(records[0])
        assert found(lookup, some) == found(fresh, some)
        assert lookup.columns(family, hi, lo).asn.tolist() == wanted.asn.tolist()
        assert lookup.columns(family, hi, lo).country.tolist() == wanted.country.tolist()


def test_records_are_decoded_once(tmp_path):
    database = mmdb.Database(write_database(tmp_path / "a.mmdb", NETWORKS))
    columns = columns_of(some_addresses(500, seed=3))
    first, known = database.columns(*columns), len(database._cache[0])
    again = database.columns(*columns)
    assert np.array_equal(first.asn, again.asn)
    assert np.array_equal(first.country, again.country)
    assert len(database._cache[0]) == known == len(set(NETWORKS.values())) + 1


def test_threads_may_look_up_at_the_same_time(bundled):
    batches = [some_addresses(300, seed) for seed in range(8)]
    alone = mmdb.Database(bundled)
    wanted = [alone.columns(*columns_of(batch)) for batch in batches]
    shared = mmdb.Database(bundled)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda batch: shared.columns(*columns_of(batch)), batches * 3))
    for answer, right in zip(answers, wanted * 3, strict=True):
        assert (answer.country == right.country).all()
        assert (answer.asn == right.asn).all()


def test_names_are_sanitised(tmp_path):
    path = write_database(tmp_path / "a.mmdb", {"192.0.2.0/24": ("NL", 64500, "Evil\x1b[2J\u202enet")})
    lookup = geoip.GeoLookup((mmdb.Database(path),))
    found(lookup, ["192.0.2.1"])
    assert lookup.as_name(64500) == "Evil·[2J·net"


def test_later_databases_fill_gaps_of_earlier_ones(tmp_path, no_own_data):
    country = write_database(no_own_data / "usual/GeoLite2-Country.mmdb", {"193.0.2.0/24": ("FR", 0, "")})
    bundled = write_database(no_own_data / "bundled.mmdb", {"193.0.0.0/16": ("NL", 64500, "Wide")})
    lookup = geoip.open_lookup()
    assert found(lookup, ["193.0.2.1", "193.0.3.1"]) == [("FR", 64500), ("NL", 64500)]
    assert str(country) in lookup.describe()
    assert str(bundled) in lookup.describe()


def test_records_of_other_publishers_are_read(tmp_path):
    """IPinfo Lite: the country's name beside its code, the AS number as text."""
    lite = {"country": "Canada", "country_code": "CA", "asn": "AS174", "as_name": "Cogent"}
    older = {"country": "JP", "country_name": "Japan", "asn": "AS2519"}
    path = write_records(tmp_path / "ipinfo_lite.mmdb", {"192.0.2.0/24": lite, "198.51.100.0/24": older})
    lookup = geoip.GeoLookup((mmdb.Database(path),))
    assert found(lookup, ["192.0.2.1", "198.51.100.1"]) == [("CA", 174), ("JP", 2519)]


def test_stale_data_are_told_by_the_first_database_that_knows_countries(tmp_path):
    now, record = int(time.time()), {"192.0.2.0/24": record_of("NL", 64500, "First")}
    old = write_records(tmp_path / "old.mmdb", record, kind="GeoLite2-Country", built=now - 200 * 86_400)
    new = write_records(tmp_path / "new.mmdb", record, kind="GeoLite2-ASN", built=now)
    day = time.strftime("%Y-%m-%d", time.gmtime(now - 200 * 86_400))
    assert geoip.GeoLookup((mmdb.Database(new), mmdb.Database(old))).stale == day
    assert geoip.GeoLookup((mmdb.Database(new),)).stale == ""


def test_a_directory_can_be_given(tmp_path, no_own_data):
    (tmp_path / "mine").mkdir()
    write_database(tmp_path / "mine/asn.mmdb", {"192.0.2.0/24": ("", 64500, "Own")})
    assert found(geoip.open_lookup(str(tmp_path / "mine")), ["192.0.2.1"]) == [("", 64500)]


@pytest.mark.parametrize("content", [b"", b"not a database", b"\xab\xcd\xefMaxMind.com", None])
def test_a_bad_named_database_is_an_error(tmp_path, no_own_data, content):
    path = tmp_path / "bad.mmdb"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FwtopError) as caught:
        geoip.open_lookup(str(path))
    assert caught.value.code == 1
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bad_found_database_is_skipped_with_a_warning(no_own_data):
    (no_own_data / "usual/GeoLite2-ASN.mmdb").write_bytes(b"damaged")
    write_database(no_own_data / "bundled.mmdb", {"193.0.2.0/24": ("NL", 64500, "First Example")})
    lookup = geoip.open_lookup()
    assert found(lookup, ["193.0.2.1"]) == [("NL", 64500)]
    assert len(lookup.warnings) == 1
    assert "GeoLite2-ASN.mmdb" in lookup.warnings[0]


def test_without_any_data_everything_is_unknown(no_own_data):
    assert found(geoip.open_lookup(), ["8.8.8.8"]) == [("", 0)]


def test_a_damaged_file_never_crashes_a_lookup(tmp_path):
    whole = write_database(tmp_path / "a.mmdb", NETWORKS).read_bytes()
    columns, chance, opened = columns_of(some_addresses(60, seed=1)), random.Random(5), 0
    for round_number in range(250):
        damaged = bytearray(whole)
        if round_number % 3 == 0:
            del damaged[chance.randrange(len(damaged)) :]
        for _ in range(chance.randrange(1, 6)):
            if damaged:
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path = tmp_path / f"damaged{round_number}.mmdb"
        path.write_bytes(damaged)
        try:
            database = mmdb.Database(path)
        except CorruptDatabaseError:
            continue
        opened += 1
        assert len(database.columns(*columns).asn) == len(columns[0])
    assert opened > 20, "too few damaged files got as far as a lookup to prove anything"


def test_leaves_are_the_networks_that_the_reference_reader_lists(tmp_path):
    path = write_database(tmp_path / "a.mmdb", NETWORKS)
    mine = {leaves.prefix(row) for leaves in MmdbFile(path).leaves() for row in range(len(leaves.length))}
    with maxminddb.open_database(path) as reader:
        assert mine == {Prefix.of(network) for network, _ in reader}


def test_prefixes_of_an_as_and_of_a_country(tmp_path, no_own_data):
    path = str(write_database(tmp_path / "a.mmdb", NETWORKS))
    for origin, expected in (
        ("asn:64500", ["192.0.2.0/25", "2001:db8:1::/48"]),
        ("country:nl", ["192.0.2.0/25", "2001:db8:1::/48"]),
        ("country:US", ["203.0.113.7"]),
    ):
        assert [str(p) for p in geoip.prefixes_of_origin(origin, path)] == expected


def test_an_unknown_as_or_country_is_an_error(tmp_path, no_own_data):
    path = str(write_database(tmp_path / "a.mmdb", NETWORKS))
    with pytest.raises(FwtopError, match="no network of AS1 is known") as caught:
        geoip.prefixes_of_origin("asn:1", path)
    assert caught.value.code == 1
    with pytest.raises(FwtopError, match="two letters") as caught:
        geoip.prefixes_of_origin("country:Narnia", path)
    assert caught.value.code == 2


def test_collapse_covers_the_same_addresses_with_the_fewest_prefixes():
    chance = random.Random(11)
    for _ in range(200):
        networks = [
            ipaddress.ip_network((chance.getrandbits(10) << 22, length), strict=False)
            for length in (chance.randrange(10, 25) for _ in range(chance.randrange(1, 40)))
        ]
        mine = geoip.collapse([Prefix.of(network) for network in networks])
        assert mine == [Prefix.of(network) for network in ipaddress.collapse_addresses(networks)]
    assert geoip.collapse([Prefix.parse("0.0.0.0/1"), Prefix.parse("128.0.0.0/1")]) == [Prefix(4, 0, 0)]
