"""Lists too long for counters: other maps, built piece by piece, which must hold exactly what is listed."""

from __future__ import annotations

import random

import pytest
from xdp_frames import ethernet, ipv4, udp
from xdp_programs import Compiled

from fwtop.kernel import bpf
from fwtop.model.addresses import prefix_rows
from fwtop.model.addresses.address import Prefix, format_address
from fwtop.model.addresses.prefix_rows import PrefixRows
from fwtop.model.rule import Match
from fwtop.xdp import lists
from fwtop.xdp.maps import UncountedList4

pytestmark = pytest.mark.kernel
LAST = (1 << 32) - 1
SPREAD = [(7 << 24) + (host << 8) + last for host in range(64) for last in (0, 85, 170, 255)[: host % 5]]


def prefixes() -> PrefixRows:
    """Draw nested, adjacent and lone ones, at both ends of the address space, too."""
    rng = random.Random(6)
    found = [Prefix(4, 0, 25), Prefix(4, LAST, 32), Prefix(4, LAST - 255, 25)]
    found += [Prefix(4, value, 32) for value in SPREAD]
    for number in range(3000):
        length = rng.choice((12, 20, 22, 24, 24, 25, 26, 28, 29, 29, 30, 31, 32, 32, 32, 32, 32))
        value = rng.getrandbits(32) & ~(0xFF << 20) if rng.random() < 0.7 else rng.getrandbits(32)
        found.append(Prefix(4, value >> 32 - length << 32 - length, length))
        if 24 < length < 30:  # others of the same /24, mostly none narrower than a /29
            for _ in range(number % 4):
                other = value >> 8 << 8 | rng.getrandbits(5) << 3
                found.append(Prefix(4, other, 29))
        elif rng.random() < 0.3:  # a neighbour in the same /24
            found.append(Prefix(4, value ^ rng.getrandbits(8), 32))
    return PrefixRows.of(found)


def asked(rows: PrefixRows) -> set[int]:
    """Return addresses at the edges of prefixes, and others of the same /24s."""
    rng = random.Random(7)
    found = set(SPREAD) | {0, LAST}
    for item in rng.sample(list(rows), 300):
        first, last = item.value, item.value | (1 << 32 - item.length) - 1
        found |= {first, last, max(first - 1, 0), min(last + 1, LAST), first ^ rng.getrandbits(8)}
    return found


@pytest.mark.one_each("2", "1048576")
@pytest.mark.parametrize("piece", [1, 2, 97, 1 << 20])
def test_a_list_without_counters_drops_what_is_listed(
    monkeypatch: pytest.MonkeyPatch, piece: int, root_required: None
) -> None:
    rows = prefixes()
    rows = rows if piece > 2 else PrefixRows.of(rows[:400] + rows[-200:])
    monkeypatch.setattr(lists, "COUNTED_PREFIXES", 0)
    monkeypatch.setattr(prefix_rows, "_CHECKED", piece)
    listed = 0
    with Compiled([Match(sources=rows)]) as compiled:
        for address in sorted(asked(rows)):
            source = format_address(4, 0, address)
            wanted = rows.overlapping(Prefix(4, address, 32)) is not None
            packet = ethernet(ipv4(udp(9, 53, b""), 17, source, "198.51.100.9"), 0x0800, ())
            assert compiled.drops(packet) == wanted, source
            listed += wanted
    assert 300 < listed < len(asked(rows)) - 200


def test_a_few_addresses_or_29s_of_a_24_take_four_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "COUNTED_PREFIXES", 0)
    few = ["192.0.1.9", "192.0.2.8/30"]
    coarse = ["192.0.4.0/29", "192.0.4.16/28", "192.0.4.128/25", "192.0.5.248/29"]
    part = ["192.0.3.8/30", "192.0.3.77"]
    found, _ = lists.build_lists(Match(sources=PrefixRows.of(map(Prefix.parse, few + part + coarse))), 0)
    made = found["src", 4]
    assert isinstance(made, UncountedList4)
    assert (made.count, made.small_count) == (1, 4)
    assert [bpf.value_size(item) for item in (made.parts, made.small)] == [32, 20]
    words = bytes([9, 9, 9, 9, 8, 9, 10, 11]) + bytes([0b1101, 0, 255, 255]) + bytes([0, 0, 0, 128])
    assert bpf.get_element(made.small, bytes(4), 20) == words + bytes([0b1100, 0, 0, 0])
    lists.close_lists(found)
