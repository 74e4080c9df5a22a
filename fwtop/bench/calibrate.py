"""What a packet costs here, by kind of rule: measured in under a minute, and kept for the proposals.

Nanoseconds of the receiving processor's time for each packet of a flood that a rule of fwtop's own ends, from
the driver on. What a kind needs before the rule can act is in it, because that is what the operator saves by
taking another. Notrack ends nothing: its figure is what the rule adds to a packet.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from fwtop.bench import ways
from fwtop.bench.arena import PAYLOAD_START, SOURCES, Arena, flood_text
from fwtop.bench.frame import Document, Options, Result, progress
from fwtop.bench.text import number
from fwtop.bench.ways import FWTOP_PORT
from fwtop.model.costs import Costs, save_costs
from fwtop.model.errors import FwtopError
from fwtop.model.observation import rfc3339
from fwtop.model.paths import COSTS_FILE
from fwtop.model.rule import Kind
from fwtop.model.text import safe_text

_WAYS = {
    Kind.XDP: ["drop", *FWTOP_PORT, "--via", "xdp"],
    Kind.TC: ["drop", *FWTOP_PORT, "--via", "tc"],
    Kind.NFTABLES: ["drop", *FWTOP_PORT, "--via", "nftables"],
    Kind.IPSET: ["block", SOURCES],
    Kind.HASHLIMIT: ["limit", *FWTOP_PORT, "--per", "24", "--rate", "1000/s"],
    Kind.STRING: ["match", "--string", PAYLOAD_START, *FWTOP_PORT],
    Kind.NOTRACK: ["notrack", *FWTOP_PORT],
}
_SYN_WAYS = {Kind.SYNPROXY: ["synproxy", "--dport", "80"]}
_SYNS = (
    'title = "SYNs as fast as possible"\nseed = 1\nfirewall = "none"\npps = 0\n\n'
    '[[vector]]\nname = "bench"\nkind = "syn_flood"\nprotocol = "tcp"\nflags = "SYN"\n'
    f'source = {{ prefixes = ["{SOURCES}"], forged = false }}\nsport = "random"\ndport = 80\n'
)
_ROUNDS, _SECONDS, _QUICK_SECONDS = 3, 0.35, 0.25
_LEAST_NS = 1.0  # the difference of two measurements can come out below


def run(options: Options) -> Document:
    """Measure every kind that this machine can install; the figures are not kept."""
    notes: list[str] = []
    results = [*_measured(flood_text(), _WAYS, options, notes), *_measured(_SYNS, _SYN_WAYS, options, notes)]
    if not results:
        raise FwtopError(f"no kind of rule could be measured; {'; '.join(notes)}")
    return Document("calibrate", options.choose(_ROUNDS, 1), tuple(results), tuple(notes))


def _measured(
    flood: str, words: Mapping[Kind, list[str]], options: Options, notes: list[str]
) -> Iterator[Result]:
    """Measure the kinds that end one sort of flood, each installed once: taking turns would take minutes."""
    rounds, seconds = options.choose(_ROUNDS, 1), _QUICK_SECONDS if options.quick else _SECONDS
    with Arena(flood) as arena:
        for kind, argv in words.items():
            progress(f"measuring {kind.value}")
            without = _cost_ns(arena, seconds) if kind is Kind.NOTRACK else 0.0
            try:
                with ways.own_rule(arena, argv):
                    costs = [max(_LEAST_NS, _cost_ns(arena, seconds) - without) for _ in range(rounds)]
            except FwtopError as error:  # not possible here: the others can be measured all the same
                notes.append(f"{kind.value} is left out: {safe_text(error)}")
                continue
            yield Result(kind.value, "ns a packet", tuple(costs))
        progress("")


def _cost_ns(arena: Arena, seconds: float) -> float:
    return 1e9 / arena.core_pps(seconds)


def keep(document: Document, path: Path = COSTS_FILE) -> str:
    """Store a document's figures for the proposals of this machine; returns a line on it.

    The lowest of the rounds: whatever else runs on the machine can only add to a cost.
    """
    figures = {result.name: min(result.values) for result in document.results}
    save_costs(Costs(document.machine, document.kernel, rfc3339(time.time()), figures), path)
    shown = ", ".join(f"{kind} {number(round(cost))}" for kind, cost in figures.items())
    return f"kept for proposals on this machine (ns a packet): {shown}"
