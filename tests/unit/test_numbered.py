"""The numbers of a list's counters: one for each prefix within no other, the same for loader and guardian."""

import random

from fwtop.model.addresses.address import Prefix
from fwtop.xdp.maps import disjoint, numbered


def drawn(chance: random.Random, count: int) -> tuple[Prefix, ...]:
    lengths = chance.choices((16, 20, 24, 25, 28, 32), k=count)
    places = [0x0A000000 | chance.randrange(1 << 18) for _ in lengths]
    return tuple(Prefix(4, at >> 32 - n << 32 - n, n) for at, n in zip(places, lengths, strict=True))


def test_wide_prefixes_come_first_and_nested_ones_have_no_number() -> None:
    prefixes = drawn(random.Random(1), 2000)
    wanted = sorted(
        disjoint(prefixes), key=lambda prefix: prefix.length > 24
    )  # stable: by address in both parts
    prefix_of = numbered(prefixes)
    assert [prefix_of(number) for number in range(len(wanted))] == wanted
    assert len(wanted) < len(set(prefixes))


def test_ipv6_comes_behind_ipv4() -> None:
    many = tuple(Prefix(6, n << 80, 48) for n in range(100))
    four = Prefix.parse("192.0.2.0/24"), Prefix.parse("192.0.2.9"), Prefix.parse("10.0.0.1")
    prefix_of = numbered(many + four)
    assert [prefix_of(number) for number in range(3)] == [four[0], four[2], many[0]]
    in_maps = numbered((many[1], *four), in_maps=True)
    assert [in_maps(number) for number in range(3)] == [four[0], four[2], many[1]]
    short = numbered((many[1], *four))
    assert [short(number) for number in range(3)] == [four[2], four[0], many[1]]
