"""Weights that were fitted without the families that they are tried on.

Families are dealt to folds. For each fold the hypotheses' weights, then those of confidence, are fitted on
the windows of all other families. Mixtures hold packets of other families, so they teach nothing here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from msgspec import Struct

from benches.accuracy import weighing
from benches.accuracy.fitting import FOLDS, Judged, fit, fold_of
from benches.accuracy.naming import judged
from benches.corpus.cases import MIXTURES, cases, families
from benches.corpus.version import version
from fwtop.analysis.attacks import DECLARED
from fwtop.analysis.engine.entries import Hypothesis
from fwtop.analysis.engine.weights import FittedWeights, Weights


class FoldWeights(Struct, frozen=True):
    """What was fitted without a fold's families."""

    hypotheses: tuple[Hypothesis, ...]
    confidence: Weights


def fold_weights(each: int, seed: int, progress: Callable[[str], None]) -> dict[str, FoldWeights]:
    """Return for each family the weights that know nothing of it, from `each` windows of every other one."""
    names = families()
    fold = fold_of(names)
    single = tuple(name for name in names if name not in MIXTURES)
    groups: list[weighing.Case] = []
    for case in cases(each, seed, single):
        progress(f"hypotheses: {case.name}")
        groups += weighing.cases_of(judged(case, confidence=None, hypotheses=DECLARED, explains=True))
    fitted = [
        FittedWeights.parsed(
            "\n".join(weighing.tables([one for one in groups if fold[one.family] != number]))
        )
        for number in range(FOLDS)
    ]
    entries = [weights.applied(DECLARED) for weights in fitted]
    found: dict[int, list[Judged]] = defaultdict(list)
    for case in cases(each, seed, single):
        progress(f"confidence: {case.name}")
        for number in set(range(FOLDS)) - {fold[case.family]}:
            outcome = judged(case, confidence=None, hypotheses=entries[number])
            found[number] += Judged.of(outcome)
    made = [
        FoldWeights(entries[number], Weights(version(), tuple(fit(found[number]).tolist())))
        for number in range(FOLDS)
    ]
    return {name: made[fold[name]] for name in names}
