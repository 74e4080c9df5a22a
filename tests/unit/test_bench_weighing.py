"""The corpus corrects what authors declare, as far as it has something to say, never by its own family."""

from __future__ import annotations

import numpy as np
import pytest

from benches.accuracy.naming import judged
from benches.accuracy.weighing import (
    Case,
    Places,
    cases_of,
    fit_weights,
    fold_weights,
    held_out,
    surprise,
    tables,
)
from benches.corpus.cases import draw
from fwtop.analysis.attacks.syn_flood import unanswered_syns
from fwtop.analysis.engine.entries import Hypothesis
from fwtop.analysis.engine.weights import FittedWeights
from fwtop.analysis.measures.general import rate, sources

FLOOD = Hypothesis(
    "flood", unanswered_syns, 1.0, kind="syn_flood", evidence=(rate.above(10, 2.0), sources.above(5, 2.0))
)
CALM = Hypothesis("calm", unanswered_syns, 1.0)


def case(number: int, *, flood: bool, fast: bool, many: bool = False) -> Case:
    said = ((2.0 * fast, 2.0 * many), ())
    return Case(f"family {number % 20}", (FLOOD, CALM), said, (flood, not flood))


def corpus() -> list[Case]:
    """Return windows in which a rate tells everything, and nothing is known of sources."""
    return [case(n, flood=n % 2 == 0, fast=n % 2 == 0) for n in range(200)]


def test_what_tells_gains_weight_and_what_the_corpus_never_shows_keeps_its_own() -> None:
    cases = corpus()
    places = Places.of(cases)
    change = fit_weights(cases, places)
    assert change[places.factor[FLOOD.key, "rate"]] > 0.3
    assert change[places.factor[FLOOD.key, "sources"]] == pytest.approx(0, abs=1e-6)
    assert surprise(cases, places, change) < surprise(cases, places, np.zeros(places.size))


def test_what_misleads_loses_weight_but_never_turns_round() -> None:
    cases = [case(n, flood=n % 2 == 0, fast=n % 2 == 0, many=n % 2 == 1) for n in range(2000)]
    places = Places.of(cases)
    factor = 1 + fit_weights(cases, places)[places.factor[FLOOD.key, "sources"]]
    assert 0 < factor < 0.6


def test_a_family_is_judged_by_weights_that_never_saw_it() -> None:
    """What helps in one family only can't help it when that family is left out."""
    liar = [Case("liar", (FLOOD, CALM), ((2.0, 0.0), ()), (False, True)) for _ in range(100)]
    declared, fitted = held_out([*corpus(), *liar])
    cases = [*corpus(), *liar]
    places = Places.of(cases)
    assert surprise(cases, places, fit_weights(cases, places)) < fitted
    assert declared > 0


@pytest.mark.matrix  # a developers' table
def test_what_a_family_holds_never_changes_the_weights_that_judge_it(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["lab: syn_flood", "lab: icmp_flood", "ordinary: browsing"]
    monkeypatch.setattr("benches.accuracy.weighing.families", lambda: names)

    def weights(number: int) -> dict[str, object]:
        """Fit on one window of each family, of the first family on that of a number."""
        drawn = [draw(name, number if name == names[0] else 0) for name in names]
        monkeypatch.setattr("benches.accuracy.weighing.cases", lambda *_: iter(drawn))
        found = fold_weights(1, 13, lambda _: None)
        return {
            name: (one.confidence, [(entry.key, entry.prior, entry.evidence) for entry in one.hypotheses])
            for name, one in found.items()
        }

    one, other = weights(0), weights(3)
    assert one[names[0]] == other[names[0]]
    assert one[names[1]] != other[names[1]]


def test_the_file_gives_the_entries_their_fitted_weights() -> None:
    text = "\n".join(tables(corpus()))
    flood, calm = FittedWeights.parsed(text).applied((FLOOD, CALM))
    assert flood.evidence[0].at_high > 2.5
    assert flood.evidence[1] == FLOOD.evidence[1]
    assert flood.prior + calm.prior == pytest.approx(2.0, abs=0.03)  # what one gains the other loses
    assert [one.prior for one in FittedWeights.parsed("").applied((FLOOD,))] == [1.0]


def test_groups_learn_their_truth_from_the_labels() -> None:
    found = list(cases_of(judged(draw("lab: syn_flood", 1), explains=True)))
    ((one,),) = [[one for one in found if one.entries[0].of is unanswered_syns]]
    truth = {entry.name: right for entry, right in zip(one.entries, one.right, strict=True)}
    assert truth["SYN flood"]
    assert not truth["nothing unusual"]
    assert one.family == "lab: syn_flood"
