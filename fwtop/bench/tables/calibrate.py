"""The cost of a packet on this machine, by kind of rule; measured in under a minute and used by proposals.

Nanoseconds of the receiving CPU for each flood packet that one of fwtop's rules drops, from the driver on.
All processing before the rule is included: that is what another kind of rule could save. Notrack drops
nothing; its figure is what the rule adds to a packet.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from fwtop.bench import drop_methods
from fwtop.bench.drop_methods import FWTOP_PORT
from fwtop.bench.frame import Document, Options, Result, number, progress
from fwtop.bench.testbed import PAYLOAD_START, SOURCES, Testbed, flood_text
from fwtop.model.errors import FwtopError
from fwtop.model.paths import COSTS_FILE
from fwtop.model.text import safe_text
from fwtop.render.observation import rfc3339
from fwtop.rules.costs import Costs, save_costs
from fwtop.rules.kind import RuleKind
from fwtop.rules.kinds import KINDS

_ON_FLOOD = {"port": " ".join(FWTOP_PORT), "sources": SOURCES, "payload": PAYLOAD_START}
_SYNS = (
    'title = "SYNs as fast as possible"\nseed = 1\nfirewall = "none"\npps = 0\n\n'
    '[[vector]]\nname = "bench"\nkind = "syn_flood"\nprotocol = "tcp"\nflags = "SYN"\n'
    f'source = {{ prefixes = ["{SOURCES}"], forged = false }}\nsport = "random"\ndport = 80\n'
)
_ROUNDS, _SECONDS, _QUICK_SECONDS = 3, 0.35, 0.25
_LEAST_NS = 1.0  # the difference of two measurements may be lower, or negative


def run(options: Options) -> Document:
    """Measure every kind that this machine can install; `keep` stores the figures."""
    notes: list[str] = []
    measured = [known for known in KINDS.values() if known.bench]
    results = [
        *_measured(flood_text(), [known for known in measured if not known.answers], options, notes),
        *_measured(_SYNS, [known for known in measured if known.answers], options, notes),
    ]
    if not results:
        raise FwtopError(f"no kind of rule could be measured; {'; '.join(notes)}")
    return Document("calibrate", options.choose(_ROUNDS, 1), tuple(results), tuple(notes))


def _measured(flood: str, kinds: Sequence[RuleKind], options: Options, notes: list[str]) -> Iterator[Result]:
    """Measure kinds against one flood, each installed once: alternating would take minutes."""
    rounds, seconds = options.choose(_ROUNDS, 1), _QUICK_SECONDS if options.quick else _SECONDS
    with Testbed(flood) as testbed:
        for known in kinds:
            kind, argv = known.kind, known.bench.format(**_ON_FLOOD).split()
            progress(f"measuring {kind.value}")
            without = _cost_ns(testbed, seconds) if known.drops_nothing else 0.0
            try:
                with drop_methods.fwtop_rule(testbed, argv):
                    costs = [max(_LEAST_NS, _cost_ns(testbed, seconds) - without) for _ in range(rounds)]
            except FwtopError as error:  # not available here; measure the others
                notes.append(f"{kind.value} is left out: {safe_text(error)}")
                continue
            yield Result(kind.value, "ns a packet", tuple(costs))
        progress("")


def _cost_ns(testbed: Testbed, seconds: float) -> float:
    return 1e9 / testbed.core_pps(seconds)


def keep(document: Document, path: Path = COSTS_FILE) -> str:
    """Store a document's figures for this machine's proposals; return a summary line.

    The minimum over the rounds is stored: other load on the machine can only add to a cost.
    """
    figures = {result.name: min(result.values) for result in document.results}
    save_costs(Costs(document.machine, document.kernel, rfc3339(time.time()), figures), path)
    shown = ", ".join(f"{kind} {number(round(cost))}" for kind, cost in figures.items())
    return f"kept for proposals on this machine (ns a packet): {shown}"
