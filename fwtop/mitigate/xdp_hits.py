"""Which prefixes of compiled rules were hit most: exact counters that the programs keep in a map a rule."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path

from fwtop.model.address import Prefix
from fwtop.model.numbered import numbered
from fwtop.model.rule import Rule
from fwtop.model.xdp import COMPILED_PREFIXES

_PENDING = struct.Struct("<QQ")  # struct pending of bpf/xdp_lists.h: number, packets
_PENDING_BYTES = 64 * _PENDING.size  # a CPU
_COUNTER_BYTES = 8


class PrefixHits:
    """The maps by rule. Descriptors that it takes are closed by it."""

    def __init__(self) -> None:
        self._maps: dict[str, int] = {}
        self._prefix_of: dict[str, Callable[[int], Prefix]] = {}

    def take(self, maps: dict[str, int]) -> None:
        """Use these maps, too."""
        self._close(set(maps))
        self._maps |= maps

    def keep(self, rule_ids: set[str]) -> None:
        """Forget the rules that are not among these."""
        self._close(set(self._maps) - rule_ids)

    def knows(self, rule_id: str) -> bool:
        """Say whether a rule's map is here."""
        return rule_id in self._maps

    def most(self, rule: Rule, cpus: int, top: int) -> dict[str, int]:
        """Return the source prefixes of a rule that most packets hit, with their numbers, the most first."""
        if rule.id not in self._maps:
            return {}
        if rule.id not in self._prefix_of:
            self._prefix_of[rule.id] = numbered(rule.match.sources)
        prefix_of = self._prefix_of[rule.id]
        return {str(prefix_of(number)): packets for number, packets in _top(self._maps[rule.id], cpus, top)}

    def _close(self, rule_ids: set[str]) -> None:
        for rule_id in rule_ids:
            self._prefix_of.pop(rule_id, None)
            descriptor = self._maps.pop(rule_id, None)
            if descriptor is not None:
                os.close(descriptor)


def _top(descriptor: int, cpus: int, top: int) -> list[tuple[int, int]]:
    """Read a map's counters, then what is pending: packets on their way between are in the next reading."""
    start, size = cpus * _PENDING_BYTES, _value_size(descriptor)
    with mmap.mmap(descriptor, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE, access=mmap.ACCESS_READ) as view:
        counters, pending = view[start:size], view[:start]
    if len(counters) > COMPILED_PREFIXES * _COUNTER_BYTES:
        return _top_of_many(counters, pending, top)
    totals = [packets for (packets,) in struct.iter_unpack("<Q", counters)]
    for number, packets in _PENDING.iter_unpack(pending):
        totals[number] += packets
    found = [(number, packets) for number, packets in enumerate(totals) if packets]
    return sorted(found, key=lambda item: -item[1])[:top]


def _top_of_many(counters: bytes, pending: bytes, top: int) -> list[tuple[int, int]]:
    # Imported here: a guardian without a long list needn't carry numpy.
    import numpy as np

    totals = np.frombuffer(counters, np.uint64).copy()
    waiting = np.frombuffer(pending, np.uint64).reshape(-1, 2)
    np.add.at(totals, waiting[:, 0].astype(np.intp), waiting[:, 1])
    top = min(top, len(totals))
    most = np.argpartition(totals, -top)[-top:]
    most = most[np.argsort(totals[most])[::-1]]
    return [(number, packets) for number in most.tolist() if (packets := int(totals[number]))]


def _value_size(descriptor: int) -> int:
    lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("value_size"))
