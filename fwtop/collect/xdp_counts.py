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
from fwtop.collect.xdp_attach import generic_links
from fwtop.collect.xdp_maps import CELL_BYTES, MAX_RULES, SLOT_BYTES, cell_dtype, map_array, slot_dtype
from fwtop.model.counters import Counters, DropCount

_REASON = "XDP_RULE"
_TC = ("tc", "TC_INGRESS")
_FREED = ("XDP", "NOT_SPECIFIED")  # what generic XDP frees is given, by newer and by older kernels
_LOOK_SECONDS = 1.0  # at most this often is asked where generic XDP runs
_Rules = dict[tuple[int, int], NDArray[np.int64]]  # by slot and rule number: packets, bytes


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
        drops = _without(counters.drops, self.packets if self.generic else 0, total - self.packets)
        for rule_id, (packets, size) in self.rules.items():
            share = 0.0 if rule_id in self.at_tc else early
            at_xdp = round(packets * share)
            if at_xdp:
                drops.append(DropCount("xdp", _REASON, at_xdp, round(size * share), rule_id))
            if packets > at_xdp:
                drops.append(DropCount(*_TC, packets - at_xdp, size - round(size * share), rule_id))
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
        self._rules, self._classes, self._lost = self._totals()
        self._generic, self._looked = False, -_LOOK_SECONDS

    def _array(self, name: str, dtype: np.dtype[Any], count: int, size: int) -> NDArray[Any]:
        return np.frombuffer(get_element(self._fds[name], bytes(4), count * size), dtype, count)

    def _totals(self) -> tuple[_Rules, NDArray[np.int64], int]:
        cells = self._array("cells", cell_dtype(), self._cpus, CELL_BYTES)
        table = self._array("slots", slot_dtype(), MAX_RULES, SLOT_BYTES)
        slots = table["number"]
        rules = _pairs(cells["rules"]).sum(axis=0)
        used = np.flatnonzero(slots).tolist()
        self._at_tc = frozenset(str(number) for number in slots[table["at_tc"] != 0].tolist())
        by_rule = {(slot, int(slots[slot])): rules[slot] for slot in used}
        return by_rule, _pairs(cells["classes"]).sum(axis=0), int(cells["lost"].sum())

    def read(self) -> XdpInterval:
        """Return the interval since the last call."""
        rules, classes, lost = self._totals()
        grown: dict[str, tuple[int, int]] = {}
        for key, total in rules.items():
            packets, size = (total - self._rules.get(key, 0)).tolist()
            if packets > 0:
                grown[str(key[1])] = (packets, size)
        if grown and time.monotonic() - self._looked >= _LOOK_SECONDS:
            self._generic, self._looked = bool(generic_links()), time.monotonic()
        interval = XdpInterval(grown, classes - self._classes, lost - self._lost, self._at_tc, self._generic)
        self._rules, self._classes, self._lost = rules, classes, lost
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


def _without(drops: tuple[DropCount, ...], freed: int, at_tc: int) -> list[DropCount]:
    """Take out what the kernel's own drop counter saw of the same packets: generic XDP and tc free them."""
    left: list[DropCount] = []
    for drop in drops:
        same = drop.rule is None and (drop.layer, drop.reason) == _TC
        by_xdp = drop.rule is None and drop.reason.partition(" ")[0] in _FREED
        taken = min(drop.packets, at_tc if same else freed if by_xdp else 0)
        freed -= taken if by_xdp else 0
        if taken < drop.packets:
            size = drop.bytes - drop.bytes * taken // drop.packets
            left.append(replace(drop, packets=drop.packets - taken, bytes=size))
    return left
