"""What a packet costs here, by kind of rule: measured in under a minute, and kept for the proposals.

Nanoseconds of the receiving processor's time for each packet of a flood that a rule of fwtop's own ends, from
the driver on. What a kind needs before the rule can act is in it, because that is what the operator saves by
taking another. Notrack ends nothing: its figure is what the rule adds to a packet.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fwtop.bench import ways
from fwtop.bench.arena import PAYLOAD_START, SOURCES, Arena
from fwtop.bench.frame import Document, Options, Row, measure
from fwtop.bench.text import number
from fwtop.bench.ways import FWTOP_PORT, Way
from fwtop.model.costs import Costs, save_costs
from fwtop.model.errors import FwtopError
from fwtop.model.observation import rfc3339
from fwtop.model.paths import COSTS_FILE
from fwtop.model.rule import Kind

_WAYS = {
    Kind.XDP: ["drop", *FWTOP_PORT, "--via", "xdp"],
    Kind.TC: ["drop", *FWTOP_PORT, "--via", "tc"],
    Kind.NFTABLES: ["drop", *FWTOP_PORT, "--via", "nftables"],
    Kind.IPSET: ["block", SOURCES],
    Kind.HASHLIMIT: ["limit", *FWTOP_PORT, "--per", "24", "--rate", "1000/s"],
    Kind.STRING: ["match", "--string", PAYLOAD_START, *FWTOP_PORT],
    Kind.NOTRACK: ["notrack", *FWTOP_PORT],
}
_ROUNDS, _SECONDS, _QUICK_SECONDS = 3, 0.7, 0.4
_LEAST_NS = 1.0  # the difference of two measurements can come out below


def run(options: Options) -> Document:
    """Measure every kind that this machine can install; the figures are not kept."""
    rounds, seconds = options.choose(_ROUNDS, 1), _QUICK_SECONDS if options.quick else _SECONDS
    notes: list[str] = []
    with Arena() as arena:
        found = ways.usable(arena, {kind.value: words for kind, words in _WAYS.items()}, notes)
        if not found:
            raise FwtopError(f"no kind of rule could be measured; {'; '.join(notes)}")
        rows = [
            Row(kind, "ns a packet", _added(arena, seconds, way) if kind == Kind.NOTRACK.value
                else partial(_cost_ns, arena, seconds, way))
            for kind, way in found.items()
        ]  # fmt: skip
        return Document("calibrate", rounds, measure(rows, rounds), tuple(notes))


def keep(document: Document, path: Path = COSTS_FILE) -> str:
    """Store a document's figures for the proposals of this machine; returns a line on it.

    The lowest of the rounds: whatever else runs on the machine can only add to a cost.
    """
    figures = {result.name: min(result.values) for result in document.results}
    save_costs(Costs(document.machine, document.kernel, rfc3339(time.time()), figures), path)
    shown = ", ".join(f"{kind} {number(round(cost))}" for kind, cost in figures.items())
    return f"kept for proposals on this machine (ns a packet): {shown}"


def _cost_ns(arena: Arena, seconds: float, way: Way) -> float:
    return 1e9 / ways.ending(arena, seconds, way)


def _added(arena: Arena, seconds: float, way: Way) -> Callable[[], float]:
    """Return what measures how much dearer a packet becomes by a rule that lets it pass."""

    def measured() -> float:
        return max(_LEAST_NS, _cost_ns(arena, seconds, way) - 1e9 / arena.core_pps(seconds))

    return measured
