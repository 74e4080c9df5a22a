"""Long lists come through unchanged, and nothing else does."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fwtop.model.addresses import address as listed
from fwtop.model.addresses import prefix_list
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_rows import PrefixRows
from fwtop.model.protocol import Apply
from fwtop.model.rule import Kind, Match, Rule, families_of


def prefix(family: int, value: int, length: int) -> Prefix:
    bits = 32 if family == 4 else 128
    length = length % (bits + 1)
    return Prefix.of_columns(
        family, value >> 64 if family == 6 else 0, value & (1 << min(bits, 64)) - 1, length
    )


prefixes = st.lists(
    st.builds(prefix, st.sampled_from([4, 6]), st.integers(0, 2**128 - 1), st.integers(0, 128)), max_size=20
)


@given(prefixes)
def test_lists_come_back(listed: list[Prefix]) -> None:
    assert prefix_list.unpack_prefixes(prefix_list.pack_prefixes(listed)) == tuple(listed)
    assert [prefix_list.prefix_text(item) for item in listed] == [str(item) for item in listed]


@given(st.binary(max_size=90))
def test_other_bytes_are_prefixes_or_an_error(data: bytes) -> None:
    try:
        found = prefix_list.unpack_prefixes(data)
    except ValueError:
        return
    assert all(Prefix.parse(str(item)).value == item.value for item in found if item.family == 4)


def test_many_come_back_as_few_do() -> None:
    rng = random.Random(3)
    listed = [prefix(rng.choice([4, 6]), rng.getrandbits(128), rng.randrange(129)) for _ in range(6000)]
    listed += [Prefix(6, 0, 0), Prefix(4, 0, 0), Prefix(6, 2**128 - 1, 128), Prefix(4, 2**32 - 1, 32)]
    ordered = sorted(set(listed))
    found = prefix_list.unpack_prefixes(prefix_list.pack_prefixes(listed))
    assert (found, found[-1], found[7:9]) == (tuple(ordered), ordered[-1], tuple(ordered[7:9]))
    assert list(found) == ordered
    with pytest.raises(IndexError):
        found[len(found)]


def test_what_is_joined_of_several_lists_comes_back() -> None:
    """As of a file with IPv4 and IPv6 in it."""
    rng = random.Random(8)
    listed = [prefix(rng.choice([4, 6]), rng.getrandbits(128), rng.randrange(129)) for _ in range(6000)]
    joined = PrefixRows.union((listed[:3000], PrefixRows.of(listed[2000:])))
    assert prefix_list.unpack_prefixes(prefix_list.pack_prefixes(joined)) == tuple(sorted(set(listed)))
    assert joined.tobytes() == PrefixRows.of(listed).tobytes()


@given(prefixes, prefixes, st.sampled_from([4, 6]))
def test_rows_answer_as_short_lists_do(many: list[Prefix], others: list[Prefix], family: int) -> None:
    short, rows = tuple(many), PrefixRows.of(many)
    assert rows.families == families_of(short)
    assert listed.listed(rows).shortest(family) == listed.listed(short).shortest(family)
    kept = listed.of_family(short, family, others)
    assert listed.of_family(rows, family, others) == tuple(sorted(kept))
    for other in others:
        found = listed.listed(rows).overlapping(other)
        assert (found is None) == (listed.listed(short).overlapping(other) is None)
        assert found is None or (found in short and (found.contains(other) or other.contains(found)))
    both = [rows, tuple(others)]
    assert listed.covered(both, 4) == listed.covered([short, tuple(others)], 4)
    short_six = [tuple(item for item in part if item.length <= 64) for part in (many, others)]
    assert listed.covered([PrefixRows.of(short_six[0]), short_six[1]], 6) == listed.covered(short_six, 6)


@pytest.mark.parametrize(
    "row",
    [
        b"\x05\x20" + bytes(16),
        b"\x04\x21" + bytes(16),
        b"\x06\x81" + bytes(16),
        b"\x04\x18" + bytes(15) + b"\x01",
        b"\x04\x20" + bytes(11) + b"\x01" + bytes(4),
        b"\x06\x40" + bytes(15) + b"\x01",
        b"\x06\x3f" + bytes(7) + b"\x01" + bytes(8),
    ],
)
def test_one_bad_row_among_many_is_an_error(row: bytes) -> None:
    many = b"".join(prefix_list.pack_prefixes([Prefix(4, number, 32)]) for number in range(600))
    assert len(prefix_list.unpack_prefixes(many)) == 600
    with pytest.raises(ValueError, match="not a list"):
        prefix_list.unpack_prefixes(many + row)


MANY = PrefixRows.of(
    [
        prefix(family, number << 80 | number << 8, length)
        for number in range(99)
        for family, length in ((4, 24), (6, 64))
    ]
).tobytes()


@given(st.integers(0, len(MANY) - 1), st.integers(1, 255))
def test_what_was_changed_on_its_way_is_another_list_or_an_error(at: int, change: int) -> None:
    data = bytearray(MANY)
    data[at] ^= change
    try:
        found = PrefixRows.of_bytes(bytes(data))
    except ValueError:
        return
    assert found == PrefixRows.of(list(found))  # valid, sorted, without duplicates
    assert all(Prefix.of_columns(item.family, item.hi, item.lo, item.length) == item for item in found)


@pytest.mark.parametrize("size", range(0, 33, 4))
def test_a_list_cut_off_is_an_error(size: int) -> None:
    with pytest.raises(ValueError, match="not a list"):
        PrefixRows.of_bytes(MANY[:size])
    with pytest.raises(ValueError, match="not a list"):
        PrefixRows.of_bytes(MANY + bytes(size + 1))


def test_long_list_travels_beside_the_message() -> None:
    sources = tuple(Prefix(4, number, 32) for number in range(prefix_list.ATTACH_ABOVE + 1))
    rule = Rule("", Kind.IPSET, Match(sources=sources), "x", 60)
    request, descriptor = prefix_list.detach_sources(Apply({}, 0), rule)
    assert descriptor is not None
    try:
        assert (request.attached, request.rule["match"]["sources"]) == (True, [])
        read = prefix_list.read_sources(descriptor)
        assert read == sources
        again = prefix_list.sealed(read)  # the same file: what a guardian hands on takes no memory twice
        assert os.path.samestat(os.fstat(again), os.fstat(descriptor))
        os.close(again)
        with pytest.raises(OSError):  # noqa: PT011
            os.write(descriptor, b"more")
    finally:
        os.close(descriptor)


def test_short_list_stays_in_it() -> None:
    rule = Rule("", Kind.IPSET, Match(sources=(Prefix.parse("192.0.2.1"),)), "x", 60)
    assert prefix_list.detach_sources(Apply({}, 0), rule) == (Apply(rule.to_dict(), 0), None)
