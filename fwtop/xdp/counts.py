"""Drops by compiled rules, read from their shared maps in the unprivileged console.

Packets dropped by XDP never reach the counters at tc ingress, so they are added to the arrivals. Those
dropped by rules at tc ingress were counted by the observers, as arrivals and as drops: only the rule is
added.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from fwtop.kernel.bpf import get_element
from fwtop.kernel.drop_reasons import reached_tc
from fwtop.kernel.links import list_links
from fwtop.model.traffic.counters import TC_INGRESS, TRAFFIC_CLASSES, Counters, DropCount
from fwtop.xdp import maps

_REASON = "XDP_RULE"
_TC = ("tc", TC_INGRESS)
_FREED = ("XDP", "NOT_SPECIFIED")  # the drop reason of generic XDP in newer and older kernels
_LOOK_SECONDS = 1.0  # between checks for generic XDP
_Counts = NDArray[np.int64]  # (slots or classes, 2): packets, bytes


class XdpInterval(Struct, frozen=True):
    """Drops since the last reading, by rule and (at XDP only) by protocol class."""

    rules: dict[str, tuple[int, int]]
    classes: NDArray[np.int64]  # (classes, 2): packets, bytes
    lost: int  # samples
    at_tc: frozenset[str] = frozenset()  # rules at tc ingress only
    generic: bool = False  # generic XDP may have dropped some, which the kernel counts, too

    @property
    def packets(self) -> int:
        """Packets dropped by XDP, which tc never saw."""
        return int(self.classes[:, 0].sum())

    def added_to(self, counters: Counters) -> Counters:
        """Return the interval's counters with these drops added."""
        total = sum(packets for packets, _ in self.rules.values())
        if not total:
            return counters
        # A rule may run at XDP on one interface and at tc on another: split its drops
        tried = sum(packets for rule_id, (packets, _) in self.rules.items() if rule_id not in self.at_tc)
        early = min(1.0, self.packets / tried) if tried else 0.0
        at_tc = total - self.packets
        counters = counters if counters.watched == 1 else _with_exact_drops(counters, at_tc)
        late = min(1.0, _bounded_at_tc(counters, at_tc) / at_tc) if at_tc > 0 else 1.0
        code = next((drop.code for drop in counters.drops if _same_at_tc(drop)), None)
        drops = _without(counters.drops, self.packets if self.generic else 0, at_tc)
        for rule_id, (packets, size) in self.rules.items():
            share = 0.0 if rule_id in self.at_tc else early
            at_xdp = round(packets * share)
            if at_xdp:
                drops.append(DropCount("xdp", _REASON, at_xdp, round(size * share), rule_id))
            if packets > at_xdp:
                left, left_size = (packets - at_xdp) * late, (size - round(size * share)) * late
                drops.append(DropCount(*_TC, round(left), round(left_size), rule_id, code=code))
        protocols = dict(counters.protocols)
        for name, (packets, size) in zip(TRAFFIC_CLASSES, self.classes.tolist(), strict=True):
            if packets:
                before = protocols.get(name, (0, 0))
                protocols[name] = (before[0] + packets, before[1] + size)
        return replace(
            counters,
            arrived_packets=counters.arrived_packets + self.packets,
            arrived_bytes=counters.arrived_bytes + int(self.classes[:, 1].sum()),
            drops=tuple(drops),
            protocols=protocols,
            records_lost=counters.records_lost + self.lost,
        )


class XdpCounts:
    """Reads the shared maps; `fds` come from maps.console_descriptors and stay the caller's.

    Read-only maps are read by a system call: the kernel lets only writers mmap an array.
    """

    def __init__(self, fds: dict[str, int], *, cpus: int) -> None:
        self._fds = fds
        self._cpus = cpus
        self._control_map = maps.map_array(fds["control"], 4, writable=True)
        self._control = np.frombuffer(self._control_map, np.dtype("<u4"), 1)
        self._at_tc = self._counting = frozenset[str]()
        self._numbers, self._rules, self._classes, self._lost = self._totals()
        self._generic, self._looked = False, -_LOOK_SECONDS

    def _array(self, name: str, dtype: np.dtype[Any], count: int, size: int) -> NDArray[Any]:
        return np.frombuffer(get_element(self._fds[name], bytes(4), count * size), dtype, count)

    def _totals(self) -> tuple[NDArray[Any], _Counts, _Counts, int]:
        """Return rule numbers by slot, counts by slot and by protocol class, and lost samples."""
        counters = self._array("counters", maps.counters_dtype(), self._cpus, maps.COUNTERS_BYTES)
        table = self._array("slots", maps.slot_dtype(), maps.MAX_RULES, maps.SLOT_BYTES)
        numbers = table["number"]
        self._at_tc, self._counting = (
            frozenset(map(str, numbers[table["flags"] & flag != 0].tolist()))
            for flag in (maps.AT_TC, maps.COUNTS_ONLY)
        )
        rules, classes = (_pairs(counters[name]).sum(axis=0) for name in ("rules", "classes"))
        return numbers, rules, classes, int(counters["lost"].sum())

    def read(self) -> XdpInterval:
        """Return the interval since the last call."""
        numbers, rules, classes, lost = self._totals()
        grown = grown_by_rule(numbers, rules, self._numbers, self._rules)
        grown = {rule: count for rule, count in grown.items() if rule not in self._counting}
        if grown and time.monotonic() - self._looked >= _LOOK_SECONDS:
            self._generic, self._looked = any(link.generic_xdp for link in list_links()), time.monotonic()
        interval = XdpInterval(grown, classes - self._classes, lost - self._lost, self._at_tc, self._generic)
        self._numbers, self._rules, self._classes, self._lost = numbers, rules, classes, lost
        return interval

    def set_one_in(self, n: int) -> None:
        """Sample 1 in n of the dropped packets from now on."""
        self._control[0] = n

    def close(self) -> None:
        """Unmap."""
        del self._control
        self._control_map.close()


def _pairs(counts: NDArray[Any]) -> NDArray[np.int64]:
    return np.stack([counts["packets"], counts["bytes"]], axis=-1).astype(np.int64)


def grown_by_rule(
    numbers: NDArray[Any], counts: _Counts, numbers_before: NDArray[Any], counts_before: _Counts
) -> dict[str, tuple[int, int]]:
    """Return packets and bytes that each rule dropped between two readings, by rule id.

    A slot's counters restart when another rule takes it (`assign_slots`). Drops just before a rule left its
    slot still count for it.
    """
    grown: dict[str, tuple[int, int]] = {}
    taken = (numbers != numbers_before) & (numbers != 0)
    more = counts - np.where(taken[:, np.newaxis], 0, counts_before)
    for slot in np.flatnonzero(more[:, 0] > 0).tolist():
        number = int(numbers[slot]) or int(numbers_before[slot])
        if number:
            packets, size = more[slot].tolist()
            grown[str(number)] = packets, size
    return grown


def _with_exact_drops(counters: Counters, at_tc: int) -> Counters:
    """Replace the drops at tc that windows saw by exact ones, and scale everything else to the remainder.

    The windows miss drops of a rule that was just installed or removed.
    """
    seen = sum(drop.packets for drop in counters.drops if _same_at_tc(drop))
    rest = counters.arrived_packets - seen
    if at_tc <= seen or rest <= 0:
        return counters
    factor = max(0.0, (counters.arrived_packets - at_tc) / rest)
    accepted = counters.accepted_packets
    return replace(
        counters,
        accepted_packets=None if accepted is None else round(accepted * factor),
        drops=tuple(
            drop if _same_at_tc(drop) or not reached_tc(drop) else _scaled(drop, factor)
            for drop in counters.drops
        ),
    )


def _bounded_at_tc(counters: Counters, at_tc: int) -> int:
    """Bound the packets that rules dropped at tc, as the counters are read one after the other.

    If a rule's counter lagged in the interval before, the kernel's own counter had those packets already.
    """
    seen = sum(drop.packets for drop in counters.drops if _same_at_tc(drop))
    return seen if seen and counters.watched == 1 else min(at_tc, counters.arrived_packets)


def _same_at_tc(drop: DropCount) -> bool:
    return drop.rule is None and (drop.layer, drop.reason) == _TC


def _scaled(drop: DropCount, factor: float) -> DropCount:
    return replace(drop, packets=round(drop.packets * factor), bytes=round(drop.bytes * factor))


def _without(drops: tuple[DropCount, ...], freed: int, at_tc: int) -> list[DropCount]:
    """Subtract what the kernel counted of the same packets, as freed by generic XDP or tc."""
    left: list[DropCount] = []
    for drop in drops:
        same = _same_at_tc(drop)
        by_xdp = drop.rule is None and drop.reason.partition(" ")[0] in _FREED
        taken = min(drop.packets, at_tc if same else freed if by_xdp else 0)
        freed -= taken if by_xdp else 0
        if taken < drop.packets:
            size = drop.bytes - drop.bytes * taken // drop.packets
            left.append(replace(drop, packets=drop.packets - taken, bytes=size))
    return left
