"""What `fwtop read --explain` prints: each group, its likeliest explanations, and their evidence."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TextIO

from fwtop.analysis.engine.compete import Explained, evidence
from fwtop.analysis.engine.group import Group, in_words
from fwtop.analysis.engine.hypothesis import Hypothesis
from fwtop.analysis.engine.words import said
from fwtop.render.numbers import percent

_BEST = 3
_LEAST = 1e-4  # probability
_SIGNS = 8


def print_explanations(explained: Iterable[Explained], out: TextIO | None = None) -> None:
    """Print all groups, the largest first."""
    for one in sorted(explained, key=lambda one: (-one.group.packets.packets, one.group.cut)):
        for line in lines(one):
            print(line, file=out or sys.stdout)


def lines(one: Explained) -> Iterator[str]:
    """Yield the lines about one group."""
    group = one.group
    features = group.packets
    verdict = "attack" if one.is_attack else "ordinary"
    yield (
        f"{in_words(group.cut)}: {features.packets:,.0f} packets ({percent(features.share, None)}) from "
        f"{features.senders} to {features.target}: {verdict}"
    )
    likely = [
        (entry, share) for entry, share in one.ranked[:_BEST] if share >= _LEAST or entry is one.ranked[0][0]
    ]
    for hypothesis, share in likely:
        kind = f" [{said(hypothesis.kind, group)}]" if hypothesis.kind else ""
        yield f"  {percent(share):>6}  {hypothesis.name}{kind}"
        yield from (f"          {line}" for line in _evidence(hypothesis, group))
    # Of what is impossible, the rivals of an attack are ordinary uses and the other way round; nearest first
    rivals = sorted(
        one.ruled_out, key=lambda item: (bool(item[0].kind) == one.is_attack, -item[0].needs.index(item[1]))
    )
    for hypothesis, need in rivals[: max(_BEST - len(likely), 0 if one.is_attack else _BEST)]:
        value = group[need.feature]
        yield f"   never  {hypothesis.name}: needs {need.words}, has {value:.3g}"
    yield ""


def _evidence(one: Hypothesis, group: Group) -> list[str]:
    """Return sentences, features with their log-odds, and what was taken for granted."""
    sentences = [line for line in (evidence(one, group) if one.kind else ()) if line]
    weighed = [(says.about(group), says.feature) for says in one.evidence]
    weighed = sorted(((odds, name) for odds, name in weighed if odds), key=lambda item: -abs(item[0]))
    signs = [f"{odds:+.1f} {name.words} {group[name]:.3g}" for odds, name in weighed[:_SIGNS]]
    if one.prior:
        signs.insert(0, f"{one.prior:+.1f} to begin with")
    met = [f"{need.words} (has {group[need.feature]:.3g})" for need in one.needs]
    return [*sentences, *([", ".join(signs)] if signs else []), *([f"given {', '.join(met)}"] if met else [])]
