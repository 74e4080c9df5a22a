"""Cities of sources, from the databases that operators have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from stored_samples import POISON

from fwtop.enrich.geoip import CityLookup, city_name, open_cities
from fwtop.model.traffic.packets import PacketBatch


class Records:
    """Stands for a database: the record of an address is its last byte."""

    def records(self, family: object, hi: object, lo: np.ndarray) -> np.ndarray:
        return (lo & np.uint64(0xFF)).astype(np.int64)

    def content(self, record: int) -> dict[str, object]:
        names = {1: "Amsterdam", 2: "Berlin", 3: "Amsterdam"}
        return (
            {"city": {"names": {"en": names[record]}}, "country": {"iso_code": "NL"}}
            if record in names
            else {}
        )


def batch(last_bytes: list[int], weights: list[float]) -> PacketBatch:
    packets = PacketBatch.zeros(len(last_bytes), 0)
    packets.weight[:] = weights
    packets.family[:] = 4
    packets.src_lo[:] = last_bytes
    return packets


def test_shares_are_weighted_and_summed_by_name() -> None:
    lookup = CityLookup(Records())  # type: ignore[arg-type]
    found = lookup.shares(batch([1, 2, 3, 9], [10.0, 50.0, 20.0, 20.0]), 5)
    assert found == [("Berlin, NL", 0.5), ("Amsterdam, NL", pytest.approx(0.3))]
    assert lookup.shares(batch([1, 2, 3, 9], [10.0, 50.0, 20.0, 20.0]), 1) == [("Berlin, NL", 0.5)]
    assert lookup.shares(PacketBatch.empty(), 5) == []


def test_a_large_batch_is_sampled_evenly() -> None:
    lookup = CityLookup(Records())  # type: ignore[arg-type]
    many = batch([1, 2] * 20_000, [1.0] * 40_000)
    assert dict(lookup.shares(many, 5)) == {
        "Amsterdam, NL": pytest.approx(0.5, abs=0.05),
        "Berlin, NL": pytest.approx(0.5, abs=0.05),
    }


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ({"city": {"names": {"en": "Utrecht"}}, "country": {"iso_code": "NL"}}, "Utrecht, NL"),
        ({"city": "Utrecht", "country_code": "NL"}, "Utrecht, NL"),
        ({"city": "Utrecht", "country": "NL"}, "Utrecht, NL"),
        ({"city": {"names": {"de": "Wien"}}}, ""),
        ({"city": {"names": "Wien"}}, ""),
        ({"city": 7, "country": 8}, ""),
        ({"country": {"iso_code": "NL"}}, ""),
        ({}, ""),
    ],
)
def test_names_of_every_kind_of_database(content: dict[str, object], name: str) -> None:
    assert city_name(content) == name


def test_names_are_sanitised() -> None:
    assert not any(char in city_name({"city": POISON, "country": POISON}) for char in "\x1b\u202e\r\n")


def test_without_a_city_database_there_are_none(tmp_path: Path) -> None:
    assert open_cities(str(tmp_path)) is None
    assert open_cities(str(tmp_path / "none.mmdb")) is None
