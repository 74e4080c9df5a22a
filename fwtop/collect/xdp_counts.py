"""What compiled XDP rules dropped, read from their shared maps by an unprivileged console.

Packets that end in XDP never reach the counters at tc ingress: they are added to what arrived here. Rules at
tc ingress (where XDP was taken) are different: the observers before them saw the packets arrive and be
dropped, and only whose rule it was is to be added.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fwtop.collect.bpf_objects import get_element
from fwtop.collect.cell import CLASSES
from fwtop.collect.reasons import reached_tc
from fwtop.collect.xdp_attach import generic_links
from fwtop.collect.xdp_maps import CELL_BYTES, MAX_RULES, SLOT_BYTES, cell_dtype, map_array, slot_dtype
from fwtop.model.counters import Counters, DropCount

_REASON = "XDP_RULE"
_TC = ("tc", "TC_INGRESS")
_FREED = ("XDP", "NOT_SPECIFIED")  # what generic XDP frees is given, by newer and by older kernels
_LOOK_SECONDS = 1.0  # at most this often is asked where generic XDP runs
_Counts = NDArray[np.int64]  # (slots or classes, 2): packets, bytes


@dataclass(frozen=True, slots=True)
class XdpInterval:
    """What was dropped since the last reading: by rule, by protocol class (at XDP only), samples lost."""

    rules: dict[str, tuple[int, int]]
    classes: NDArray[np.int64]  # (classes, 2): packets, bytes
    lost: int
    at_tc: frozenset[str] = frozenset()  # rules that are not for XDP
    generic: bool = False  # some of them may have been freed by generic XDP, which the kernel counts, too

    @property
    def packets(self) -> int:
        """Packets that XDP dropped, which tc never saw."""
        return int(self.classes[:, 0].sum())

    def added_to(self, counters: Counters) -> Counters:
        """Return an interval's counters with these drops in them."""
        total = sum(packets for packets, _ in self.rules.values())
        if not total:
            return counters
        # Rules on several interfaces may be at XDP on one and at tc on another: split by what each had
        tried = sum(packets for rule_id, (packets, _) in self.rules.items() if rule_id not in self.at_tc)
        early = min(1.0, self.packets / tried) if tried else 0.0
        at_tc = total - self.packets
        counters = counters if counters.watched == 1 else _with_room(counters, at_tc)
        late = min(1.0, _most_at_tc(counters, at_tc) / at_tc) if at_tc > 0 else 1.0
        drops = _without(counters.drops, self.packets if self.generic else 0, at_tc)
        for rule_id, (packets, size) in self.rules.items():
            share = 0.0 if rule_id in self.at_tc else early
            at_xdp = round(packets * share)
            if at_xdp:
                drops.append(DropCount("xdp", _REASON, at_xdp, round(size * share), rule_id))
            if packets > at_xdp:
                left, left_size = (packets - at_xdp) * late, (size - round(size * share)) * late
                drops.append(DropCount(*_TC, round(left), round(left_size), rule_id))
        protocols = dict(counters.protocols)
        for name, (packets, size) in zip(CLASSES, self.classes.tolist(), strict=True):
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
    """The shared maps; `fds` are those of xdp_maps.console_descriptors and stay the caller's.

    What is for reading only is read by a system call: the kernel maps arrays for writers only.
    """

    def __init__(self, fds: dict[str, int], *, cpus: int) -> None:
        self._fds = fds
        self._cpus = cpus
        self._control_map = map_array(fds["control"], 4, writable=True)
        self._control = np.frombuffer(self._control_map, np.dtype("<u4"), 1)
        self._at_tc: frozenset[str] = frozenset()
        self._numbers, self._rules, self._classes, self._lost = self._totals()
        self._generic, self._looked = False, -_LOOK_SECONDS

    def _array(self, name: str, dtype: np.dtype[Any], count: int, size: int) -> NDArray[Any]:
        return np.frombuffer(get_element(self._fds[name], bytes(4), count * size), dtype, count)

    def _totals(self) -> tuple[NDArray[Any], _Counts, _Counts, int]:
        """Return the rules' numbers by slot, what each slot and each protocol class counted, samples lost."""
        cells = self._array("cells", cell_dtype(), self._cpus, CELL_BYTES)
        table = self._array("slots", slot_dtype(), MAX_RULES, SLOT_BYTES)
        numbers = table["number"]
        self._at_tc = frozenset(str(number) for number in numbers[table["at_tc"] != 0].tolist())
        rules, classes = (_pairs(cells[name]).sum(axis=0) for name in ("rules", "classes"))
        return numbers, rules, classes, int(cells["lost"].sum())

    def read(self) -> XdpInterval:
        """Return the interval since the last call."""
        numbers, rules, classes, lost = self._totals()
        grown = grown_by_rule(numbers, rules, self._numbers, self._rules)
        if grown and time.monotonic() - self._looked >= _LOOK_SECONDS:
            self._generic, self._looked = bool(generic_links()), time.monotonic()
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
    """Return packets and bytes that each rule hit between two readings, by its number as text.

    A slot counts from nothing when another rule takes it (`occupy` of xdp_pins). What a rule hit just before
    it gave its slot up is still its own.
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


def _with_room(counters: Counters, at_tc: int) -> Counters:
    """Let exact drops at tc replace what windows of time saw: a rule that just came or went is not in it.

    All else that arrived is scaled to what is left of it.
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


def _most_at_tc(counters: Counters, at_tc: int) -> int:
    """Return how many packets rules can have dropped at tc: the counters are read one after the other.

    What a rule's counter was behind in the interval before, the kernel's own has told then.
    """
    seen = sum(drop.packets for drop in counters.drops if _same_at_tc(drop))
    return seen if seen and counters.watched == 1 else min(at_tc, counters.arrived_packets)


def _same_at_tc(drop: DropCount) -> bool:
    return drop.rule is None and (drop.layer, drop.reason) == _TC


def _scaled(drop: DropCount, factor: float) -> DropCount:
    return replace(drop, packets=round(drop.packets * factor), bytes=round(drop.bytes * factor))


def _without(drops: tuple[DropCount, ...], freed: int, at_tc: int) -> list[DropCount]:
    """Take out what the kernel's own drop counter saw of the same packets: generic XDP and tc free them."""
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
