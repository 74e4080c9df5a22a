"""Lists too long for counters: the same maps as those of a counted list, built piece by piece."""

from __future__ import annotations

import random

import numpy as np
import pytest

from fwtop.kernel import bpf
from fwtop.model.addresses import prefix_rows
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_rows import PrefixRows
from fwtop.model.rule import Match
from fwtop.xdp import lists
from fwtop.xdp.rule import List4

pytestmark = pytest.mark.kernel
RANK_BYTES = 4 << 19


def prefixes() -> PrefixRows:
    """Draw nested, adjacent and lone ones, at both ends of the address space, too."""
    rng = random.Random(6)
    found = [Prefix(4, 0, 25), Prefix(4, (1 << 32) - 1, 32), Prefix(4, (1 << 32) - 256, 25)]
    for _ in range(3000):
        length = rng.choice((12, 20, 22, 24, 24, 25, 26, 28, 31, 32, 32, 32, 32, 32))
        value = rng.getrandbits(32) & ~(0xFF << 20) if rng.random() < 0.7 else rng.getrandbits(32)
        found.append(Prefix(4, value >> 32 - length << 32 - length, length))
    return PrefixRows.of(found)


def contents(made: List4) -> tuple[np.ndarray, bytes, bytes, int]:
    """Return the /24s' states, all listed ones alike, the ranks, the bits of parts and their number."""
    blocks, parts = (
        bpf.get_element(found, bytes(4), bpf.value_size(found)) for found in (made.blocks, made.parts)
    )
    pairs = np.frombuffer(blocks[:-RANK_BYTES], np.uint8)
    states = np.stack([pairs >> shift & 3 for shift in (0, 2, 4, 6)], axis=1).reshape(-1)
    states[states == 3] = 1
    return states, blocks[-RANK_BYTES:], parts, made.count


@pytest.mark.parametrize("piece", [1, 2, 97, 1 << 20])
def test_a_list_without_counters_holds_the_same(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    match = Match(sources=prefixes() if piece > 2 else prefixes()[:200] + prefixes()[-200:])
    counted, numbers = lists.build_lists(match, 0)
    monkeypatch.setattr(lists, "COUNTED_PREFIXES", 0)
    monkeypatch.setattr(prefix_rows, "_CHECKED", piece)
    plain, none = lists.build_lists(match, 0)
    assert (numbers > 0, none) == (True, 0)
    mine, others = (made["src", 4] for made in (plain, counted))
    assert isinstance(mine, List4)
    assert isinstance(others, List4)
    for found, wanted in zip(contents(mine), contents(others), strict=True):
        assert np.array_equal(found, wanted)
    lists.close_lists(plain)
    lists.close_lists(counted)
