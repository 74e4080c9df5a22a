"""How often each source prefix of a compiled rule was hit: one map a rule. Layout: bpf/xdp_lists.h."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Rule
from fwtop.xdp.maps import COMPILED_PREFIXES, PENDING_BYTES, disjoint, map_array, numbered

if TYPE_CHECKING:  # also imported where it is used: a guardian without a long list doesn't load numpy
    import numpy as np
    from numpy.typing import NDArray

    from fwtop.model.addresses.prefix_rows import PrefixRows

_PENDING = struct.Struct("<QQ")  # struct pending of bpf/xdp_lists.h: number, packets
_COUNTER_BYTES = 8


class PrefixHits:
    """Counters by source prefix, a map for each rule. Owns the descriptors that it takes."""

    def __init__(self) -> None:
        self._maps: dict[str, int] = {}
        self._prefix_of: dict[str, Callable[[int], Prefix]] = {}

    def take(self, maps: dict[str, int]) -> None:
        """Add maps by rule id."""
        self._close(set(maps))
        self._maps |= maps

    def keep(self, rule_ids: set[str]) -> None:
        """Close the maps of all other rules."""
        self._close(set(self._maps) - rule_ids)

    def knows(self, rule_id: str) -> bool:
        """Return whether there is a map for a rule."""
        return rule_id in self._maps

    def most(self, rule: Rule, cpus: int, top: int) -> dict[str, int]:
        """Return the packets of a rule's `top` busiest source prefixes, busiest first."""
        if rule.id not in self._maps:
            return {}
        if rule.id not in self._prefix_of:
            self._prefix_of[rule.id] = numbered(rule.match.sources, in_maps=rule.list_name is not None)
        prefix_of = self._prefix_of[rule.id]
        return {str(prefix_of(number)): packets for number, packets in _top(self._maps[rule.id], cpus, top)}

    def release(self, rule_ids: Iterable[str]) -> dict[str, int]:
        """Return the maps of rules, the caller's then."""
        found = {rule_id: self._maps.pop(rule_id) for rule_id in rule_ids if rule_id in self._maps}
        for rule_id in found:
            self._prefix_of.pop(rule_id, None)
        return found

    def carry_over(self, old: int, before: Rule, after: Rule, cpus: int) -> None:
        """Add the counters of a rule's former list to those of the prefixes that are also in the new one."""
        import numpy as np

        from fwtop.model.addresses.list_rows import chosen, positions

        (was, counted), (rows, counted_after) = _numbering(before), _numbering(after)
        totals = _totals(*_read(old, cpus))
        hit = np.flatnonzero(totals[: len(counted)])
        marked = np.zeros(len(was), np.bool_)
        marked[counted[hit]] = True
        packets_of = np.zeros(len(was), np.uint64)
        packets_of[counted[hit]] = totals[hit]
        at = positions(rows, chosen(was, marked))
        number_of = np.full(len(rows), -1, np.int64)
        counted = counted_after
        number_of[counted] = np.arange(len(counted))
        stays = at >= 0
        numbers, packets = number_of[at[stays]], packets_of[marked][stays]
        kept = numbers >= 0
        size = _value_size(self._maps[after.id])
        with map_array(self._maps[after.id], size, writable=True) as view:
            counters = np.frombuffer(view, np.uint64, offset=cpus * PENDING_BYTES, count=len(counted))
            counters[numbers[kept]] += packets[kept]
            del counters

    def _close(self, rule_ids: set[str]) -> None:
        for rule_id in rule_ids:
            self._prefix_of.pop(rule_id, None)
            descriptor = self._maps.pop(rule_id, None)
            if descriptor is not None:
                os.close(descriptor)


def _numbering(rule: Rule) -> tuple[PrefixRows, NDArray[np.int32]]:
    """Return a rule's prefixes, and for each number of a counter the place of its prefix among them."""
    import numpy as np

    from fwtop.model.addresses.prefix_rows import PrefixRows

    sources = rule.match.sources
    if rule.list_name is not None or len(sources) > COMPILED_PREFIXES:
        rows = PrefixRows.of(sources)
        return rows, rows.counter_rows()
    compiled = disjoint(sources)
    rows = PrefixRows.of(compiled)
    place = {prefix: at for at, prefix in enumerate(rows)}
    return rows, np.array([place[prefix] for prefix in compiled], np.int32)


def _top(descriptor: int, cpus: int, top: int) -> list[tuple[int, int]]:
    """Read a map's counters, then the pending ones; packets moved in between are in the next reading."""
    counters, pending = _read(descriptor, cpus)
    if len(counters) > COMPILED_PREFIXES * _COUNTER_BYTES:
        return _top_of_many(counters, pending, top)
    totals = [packets for (packets,) in struct.iter_unpack("<Q", counters)]
    for number, packets in _PENDING.iter_unpack(pending):
        totals[number] += packets
    found = [(number, packets) for number, packets in enumerate(totals) if packets]
    return sorted(found, key=lambda item: -item[1])[:top]


def _read(descriptor: int, cpus: int) -> tuple[bytes, bytes]:
    """Return a map's counters, and those pending on each CPU."""
    start, size = cpus * PENDING_BYTES, _value_size(descriptor)
    with mmap.mmap(descriptor, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE, access=mmap.ACCESS_READ) as view:
        return view[start:size], view[:start]


def _totals(counters: bytes, pending: bytes) -> NDArray[np.uint64]:
    import numpy as np

    totals = np.frombuffer(counters, np.uint64).copy()
    waiting = np.frombuffer(pending, np.uint64).reshape(-1, 2)
    np.add.at(totals, waiting[:, 0].astype(np.intp), waiting[:, 1])
    return totals


def _top_of_many(counters: bytes, pending: bytes, top: int) -> list[tuple[int, int]]:
    import numpy as np

    totals = _totals(counters, pending)
    top = min(top, len(totals))
    most = np.argpartition(totals, -top)[-top:]
    most = most[np.argsort(totals[most])[::-1]]
    return [(number, packets) for number in most.tolist() if (packets := int(totals[number]))]


def _value_size(descriptor: int) -> int:
    lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("value_size"))
