"""A scenario as tables for bpf/flood.c: templates, source slots, and the sending order.

`Plan.truth` converts the resulting counts into what was sent by vector, source, port and payload.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fwtop.lab.network import Wire, is_own
from fwtop.lab.scenario import RANDOM_TTL, Pool, Scenario, ScenarioError, Vector
from fwtop.lab.traffic.craft import templates
from fwtop.lab.traffic.frames import DPORT, FRAME_BYTES, SPORT, Template
from fwtop.lab.traffic.pools import Slot, slots
from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.protocols import NAMES, protocol_name

SOURCE = np.dtype(
    [("base", "u1", 16), ("spread", "u1", 16), ("packets", "u8"), ("bytes", "u8"), ("ttl", "u1"),
     ("ttl_spread", "u1"), ("unused", "u1", 6)]
)  # fmt: skip
PACKET = np.dtype(
    [("packets", "u8"), ("bytes", "u8"), ("ip_sum", "u4"), ("l4_sum", "u4"), ("source_first", "u4"),
     ("source_count", "u4"), ("target", "u1", 16), ("target_spread", "u1", 16), ("length", "u2"),
     ("rewrite", "u2"), ("l3", "u2"), ("l4", "u2"), ("checksum", "u2"), ("id_at", "u2"), ("sport", "u2"),
     ("sport_count", "u2"), ("dport", "u2"), ("dport_count", "u2"), ("random_at", "u2"),
     ("random_words", "u2"), ("data", "u1", FRAME_BYTES)]
)  # fmt: skip
STATE = np.dtype(
    [("random", "u8", 2), ("schedule_first", "u4"), ("schedule_count", "u4"), ("position", "u4"),
     ("source", "u4"), ("address", "u1", 16), ("id", "u4"), ("ttl", "u4")]
)  # fmt: skip
TOP = 50
_SLOTS = 4096
_Ranges = dict[tuple[Pool, int, tuple[int, int]], tuple[int, int]]  # pool, family, TTL → first, count
_MAX_TEMPLATES = 65_536


class Phase(Struct, frozen=True):
    """A section of the cycle with its slice of the schedule; with count 0, nothing is sent."""

    start: float  # share of the cycle
    first: int
    count: int


class Plan(Struct, frozen=True):
    """The tables of one run."""

    scenario: Scenario
    templates: tuple[Template, ...]
    owner: tuple[int, ...]  # vector of each template
    slots: tuple[Slot, ...]
    packets: NDArray[np.void]
    sources: NDArray[np.void]
    schedule: NDArray[np.uint32]
    phases: tuple[Phase, ...]

    def phase(self, elapsed: float) -> Phase:
        """Return the phase at `elapsed` seconds after the start."""
        if self.scenario.cycle <= 0:
            return self.phases[0]
        share = elapsed / self.scenario.cycle % 1.0
        return max((phase for phase in self.phases if phase.start <= share), key=lambda phase: phase.start)

    def state(self) -> bytes:
        """Return the program's initial state, seeded."""
        state = np.zeros(1, STATE)
        rng = random.Random(self.scenario.seed ^ 0x5EED)  # noqa: S311
        state["random"] = [[rng.getrandbits(64) | 1, rng.getrandbits(64)]]
        return state.tobytes()

    def truth(self, packets: NDArray[np.void], sources: NDArray[np.void]) -> dict[str, Any]:
        """Convert the kernel's tables after a run into what was sent."""
        counted = [(int(row["packets"]), int(row["bytes"])) for row in packets]
        return {
            "packets": sum(pair[0] for pair in counted),
            "bytes": sum(pair[1] for pair in counted),
            "vectors": self._vectors(counted),
            **self._sources(sources),
            "ports": self._ports(counted),
            "payloads": self._payloads(counted),
            "fragments": sum(
                pair[0] for pair, item in zip(counted, self.templates, strict=True) if item.fragment
            ),
        }

    def _vectors(self, counted: list[tuple[int, int]]) -> list[dict[str, Any]]:
        total = sum(packets for packets, _ in counted)
        rows = []
        for number, vector in enumerate(self.scenario.vectors):
            mine = [pair for pair, owner in zip(counted, self.owner, strict=True) if owner == number]
            packets = sum(pair[0] for pair in mine)
            rows.append(
                {
                    "name": vector.name,
                    "kind": vector.kind,
                    "also": list(vector.also),
                    "protocol": protocol_name(vector.protocol),
                    "family": vector.family,
                    "forged": vector.source.forged,
                    "packets": packets,
                    "bytes": sum(pair[1] for pair in mine),
                    "share": packets / total if total else 0.0,
                }
            )
        return rows

    def _sources(self, sources: NDArray[np.void]) -> dict[str, Any]:
        totals: Counter[Prefix] = Counter()
        sizes: Counter[Prefix] = Counter()
        for slot, row in zip(self.slots, sources, strict=True):
            totals[slot.prefix] += int(row["packets"])
            sizes[slot.prefix] += int(row["bytes"])
        return {
            name: [
                {"key": str(prefix), "packets": packets, "bytes": sizes[prefix]}
                for prefix, packets in totals.most_common()
                if packets and prefix.is_address == single
            ][:TOP]
            for name, single in (("sources", True), ("source_prefixes", False))
        }

    def _ports(self, counted: list[tuple[int, int]]) -> list[dict[str, Any]]:
        totals: dict[tuple[str, str, int | str], list[int]] = {}
        for item, owner, (packets, size) in zip(self.templates, self.owner, counted, strict=True):
            protocol = NAMES.get(self.scenario.vectors[owner].protocol, "")
            if protocol not in ("tcp", "udp") or item.later or not packets:
                continue
            for side, (low, count), bit in (("src", item.sport, SPORT), ("dst", item.dport, DPORT)):
                port: int | str = f"{low}-{low + count - 1}" if item.rewrite & bit else low
                row = totals.setdefault((protocol, side, port), [0, 0])
                row[0] += packets
                row[1] += size
        ranked = sorted(totals.items(), key=lambda entry: -entry[1][0])[:TOP]
        return [
            {"protocol": protocol, "side": side, "port": port, "packets": row[0], "bytes": row[1]}
            for (protocol, side, port), row in ranked
        ]

    def _payloads(self, counted: list[tuple[int, int]]) -> list[dict[str, Any]]:
        totals: Counter[tuple[bytes, int, bool]] = Counter()
        for item, (packets, _) in zip(self.templates, counted, strict=True):
            totals[item.shown, item.shown_at, item.later] += packets
        return [
            {"hex": shown.hex(), "offset": offset, "packets": packets, "later_fragment": later}
            for (shown, offset, later), packets in totals.most_common(TOP)
            if shown and packets
        ]


def build_plan(scenario: Scenario, wire: Wire) -> Plan:
    """Build the tables of a scenario; raises ScenarioError."""
    made: list[Template] = []
    owner: list[int] = []
    groups: list[list[list[int]]] = []
    table: list[Slot] = []
    ranges: _Ranges = {}
    where: list[tuple[int, int]] = []
    for number, vector in enumerate(scenario.vectors):
        rng = random.Random(f"{scenario.seed}/{number}")  # noqa: S311
        span = _source_range(vector, table, ranges, rng)
        try:
            new = templates(vector, wire, table[span[0]].prefix, rng)
        except (ValueError, KeyError, TypeError) as error:
            raise ScenarioError(f"scenario {scenario.name}: vector {vector.name}: {error}") from None
        groups.append(_groups(new, len(made)))
        made += new
        owner += [number] * len(new)
        where += [span] * len(new)
    if len(made) > _MAX_TEMPLATES:
        raise ScenarioError(f"scenario {scenario.name}: {len(made)} packets to send are more than 65,536")
    schedule, phases = _schedule(scenario, groups)
    return Plan(
        scenario, tuple(made), tuple(owner), tuple(table), packet_rows(made, where),
        source_rows(table, ranges), schedule, phases,
    )  # fmt: skip


def _source_range(
    vector: Vector,
    table: list[Slot],
    ranges: _Ranges,
    rng: random.Random,
) -> tuple[int, int]:
    low, high = vector.ttl
    key = (vector.source, vector.family, vector.ttl)
    if key not in ranges:
        new = slots(vector.source, vector.family, (low, low if vector.ttl == RANDOM_TTL else high), rng)
        ranges[key] = (len(table), len(new))
        table += new
    return ranges[key]


def _groups(new: list[Template], first: int) -> list[list[int]]:
    """Keep the fragments of one packet together."""
    groups: list[list[int]] = []
    for number, item in enumerate(new, first):
        if item.continues and groups:
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


def _schedule(
    scenario: Scenario, groups: list[list[list[int]]]
) -> tuple[NDArray[np.uint32], tuple[Phase, ...]]:
    if scenario.in_order:
        order = [number for vector in groups for group in vector for number in group]
        return np.array(order or [0], np.uint32), (Phase(0.0, 0, len(order)),)
    edges = sorted({0.0} | {edge for vector in scenario.vectors for edge in vector.active if edge < 1})
    slots_all: list[int] = []
    phases = []
    for edge in edges:
        active = [
            (vector.weight, groups[number])
            for number, vector in enumerate(scenario.vectors)
            if vector.active[0] <= edge < vector.active[1]
        ]
        order = _mix(active, random.Random(f"{scenario.seed}/{edge}"))  # noqa: S311
        phases.append(Phase(edge, len(slots_all), len(order)))
        slots_all += order
    return np.array(slots_all or [0], np.uint32), tuple(phases)


def _mix(active: list[tuple[float, list[list[int]]]], rng: random.Random) -> list[int]:
    """Mix vectors so that their shares of the packets are their weights' shares."""
    total = sum(weight for weight, _ in active)
    room = max(_SLOTS, 2 * sum(len(vector) for _, vector in active))
    order: list[list[int]] = []
    for weight, vector in active:
        mean = sum(len(group) for group in vector) / len(vector)
        copies = max(1, round(room * weight / total / mean))
        order += [vector[number % len(vector)] for number in range(copies)]
    rng.shuffle(order)
    return [number for group in order for number in group]


def _address_bytes(value: int, family: int) -> NDArray[np.uint8]:
    size = 4 if family == 4 else 16
    return np.frombuffer(value.to_bytes(size, "big").ljust(16, b"\0"), np.uint8)


def _spread(prefix: Prefix) -> NDArray[np.uint8]:
    return _address_bytes((1 << (prefix.bits - prefix.length)) - 1, prefix.family)


def packet_rows(made: list[Template], where: list[tuple[int, int]]) -> NDArray[np.void]:
    """Encode templates for the kernel's table; a destination outside the lab raises ScenarioError."""
    rows = np.zeros(max(1, len(made)), PACKET)
    for row, item, (first, count) in zip(rows, made, where, strict=False):
        if not is_own(item.target):
            raise ScenarioError(f"refused: {item.target} is not an address of the lab's own networks")
        for name in ("ip_sum", "l4_sum", "rewrite", "l3", "l4", "checksum", "id_at", "random_at"):
            row[name] = getattr(item, name)
        row["source_first"], row["source_count"] = first, count
        row["target"] = _address_bytes(item.target.value, item.target.family)
        row["target_spread"] = _spread(item.target)
        row["length"] = len(item.data)
        row["sport"], row["sport_count"] = item.sport[0], min(item.sport[1], 65_535)
        row["dport"], row["dport_count"] = item.dport[0], min(item.dport[1], 65_535)
        row["random_words"] = item.random_size // 8
        row["data"][: len(item.data)] = np.frombuffer(item.data, np.uint8)
    return rows


def source_rows(table: list[Slot], ranges: _Ranges) -> NDArray[np.void]:
    """Encode source slots for the kernel's table."""
    rows = np.zeros(max(1, len(table)), SOURCE)
    for row, slot in zip(rows, table, strict=False):
        row["base"] = _address_bytes(slot.prefix.value, slot.prefix.family)
        row["spread"] = _spread(slot.prefix)
        row["ttl"] = slot.ttl
    for (_, _, ttl), (first, count) in ranges.items():
        if ttl == RANDOM_TTL:
            rows["ttl_spread"][first : first + count] = ttl[1] - ttl[0]
    return rows
