"""What `fwtop read --explain` prints: each group, its likeliest explanations, and their evidence."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Iterator
from typing import TextIO

from fwtop.analysis.engine.compete import Explained, evidence, said
from fwtop.analysis.engine.entries import Feature, Group, Hypothesis, Needs, in_words
from fwtop.render.numbers import percent

_BEST = 3
_LEAST = 1e-4  # probability
_SIGNS = 8
_WIDTH = 80  # columns
_WHOLE = 1_000  # from which decimals say nothing


def print_explanations(explained: Iterable[Explained], out: TextIO | None = None) -> None:
    """Print all groups, the largest first."""
    groups = sorted(explained, key=lambda one: (-one.group.packets.packets, one.group.cut))
    for one in groups:
        for line in lines(one):
            print(line, file=out or sys.stdout)
    if not groups:
        print("no packets that any hypothesis is about", file=out or sys.stdout)


def lines(one: Explained) -> Iterator[str]:
    """Yield the lines about one group, none wider than a terminal of 80 columns if words allow it."""
    group = one.group
    features = group.packets
    verdict = "attack" if one.is_attack else "ordinary"
    noun = "packet" if round(features.packets) == 1 else "packets"
    ends = f" from {features.senders} to {features.target}" if features.top("family").value else ""
    size = f"{features.packets:,.0f} {noun} ({percent(features.share, None)})"
    yield from _wrapped(f"{in_words(group.cut)}: {size}{ends}: {verdict}", "")
    likely = [
        (entry, share) for entry, share in one.ranked[:_BEST] if share >= _LEAST or entry is one.ranked[0][0]
    ]
    for hypothesis, share in likely:
        kind = f" [{said(hypothesis.kind, group)}]" if hypothesis.kind else ""
        yield f"  {percent(share):>6}  {hypothesis.name}{kind}"
        for line in _evidence(hypothesis, group):
            yield from _wrapped(line, " " * 10)
    # Of what is impossible, the rivals of an attack are ordinary uses and the other way round; nearest first
    rivals = sorted(
        one.ruled_out, key=lambda item: (bool(item[0].kind) == one.is_attack, -item[0].needs.index(item[1]))
    )
    for hypothesis, need in rivals[: max(_BEST - len(likely), 0 if one.is_attack else _BEST)]:
        yield from _wrapped(f"   ruled out: {hypothesis.name}; it requires {_met(need, group)}", "   ")
    yield ""


def _wrapped(line: str, margin: str) -> list[str]:
    """Break a line between words; what follows is indented by two more."""
    return textwrap.wrap(
        line.strip(),
        _WIDTH,
        initial_indent=margin,
        subsequent_indent=f"{margin}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _evidence(one: Hypothesis, group: Group) -> list[str]:
    """Return the sentences, the features with their log-odds, and the requirements that are met."""
    sentences = [line for line in (evidence(one, group) if one.kind else ()) if line]
    weighed = [(says.about(group), says.feature) for says in one.evidence]
    weighed = sorted(((odds, name) for odds, name in weighed if odds), key=lambda item: -abs(item[0]))
    signs = [f"{odds:+.1f} {_value(name, group)}" for odds, name in weighed[:_SIGNS]]
    if one.prior:
        signs.insert(0, f"{one.prior:+.1f} prior{' (proof)' if one.proven else ''}")
    met = [_met(need, group) for need in one.needs]
    return [
        *sentences,
        *([f"log-odds: {', '.join(signs)}"] if signs else []),
        *([f"required: {', '.join(met)}"] if met else []),
    ]


def _value(name: Feature, group: Group) -> str:
    """Write a feature with its value, if that is a number and not a yes or no."""
    value = group[name]
    if name.unit == "yes or no":
        return name.words if value else f"not {name.words}"
    return f"{name.words} {value:,.0f}" if value >= _WHOLE else f"{name.words} {value:.3g}"


def _met(need: Needs, group: Group) -> str:
    """Write a requirement with what was measured."""
    if need.feature.unit == "yes or no":
        return need.words
    value = group[need.feature]
    return f"{need.words} (here {value:,.0f})" if value >= _WHOLE else f"{need.words} (here {value:.3g})"
