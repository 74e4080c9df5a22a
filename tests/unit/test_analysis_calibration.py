"""Confidence is the posterior that was fitted on this corpus, and on no other."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

import numpy as np
import pytest
from msgspec.structs import replace

from benches.accuracy.naming import expected_calibration_error, judged
from benches.accuracy.weighing import Judged, cross_validated, fit, log_loss
from benches.corpus.cases import draw
from benches.corpus.version import version
from benches.tables import fit as table
from fwtop.analysis.attacks import DECLARED
from fwtop.analysis.engine.weights import FEATURES, FITTED, FittedWeights, Weights, calibrated, features_of
from fwtop.bench.frame import Options
from fwtop.model.errors import FwtopError


def test_the_weights_were_fitted_on_this_corpus() -> None:
    assert FITTED.corpus == version(), (
        "the corpus has changed: run 'python -m benches fit' and commit its weights"
    )


def test_a_rule_that_is_surer_is_never_less_probable() -> None:
    assert FITTED.values[FEATURES.index("stated")] >= 0


def test_the_posterior_is_a_logistic_function_within_what_the_corpus_can_tell() -> None:
    plain = Weights("", (1.0, 2.0))
    assert plain.posterior((1.0, 0.0)) == pytest.approx(1 / (1 + math.exp(-1)))
    assert (plain.posterior((1.0, 50.0)), plain.posterior((1.0, -50.0))) == (0.99, 0.02)


def test_findings_get_the_posterior_and_those_without_packets_keep_their_own() -> None:
    outcome = judged(draw("lab: syn_flood", 0), confidence=None)
    finding = outcome.named[0].finding
    state = replace(finding, rows=np.zeros(0, np.intp), state=True)
    one, other = calibrated(outcome.context, [finding, state])
    assert one.confidence == round(FITTED.posterior(features_of(outcome.context, finding)), 3)
    assert other is state


def drawn(count: int, true_odds: float, families: int) -> list[Judged]:
    rng = Random(1)
    made = []
    for number in range(count):
        value = rng.gauss(0, 1)
        right = rng.random() < 1 / (1 + math.exp(-(0.5 + true_odds * value)))
        made.append(Judged(f"family {number % families}", (1.0, value), 0.99, right))
    return made


def test_the_fit_finds_the_odds_that_made_the_findings() -> None:
    constant, slope = fit(drawn(6000, 1.5, 20)).tolist()
    assert constant == pytest.approx(0.5, abs=0.12)
    assert slope == pytest.approx(1.5, abs=0.12)


def test_findings_that_are_all_right_leave_the_engines_odds_as_they_are() -> None:
    rng = Random(2)
    constant, slope = fit(
        [Judged("one", (1.0, rng.gauss(3, 1)), 0.95, right=True) for _ in range(800)]
    ).tolist()
    assert 0 < constant < 3
    assert 1 < slope < 3


def test_what_is_fitted_without_a_family_is_calibrated_on_it() -> None:
    judgements = drawn(6000, 1.5, 20)
    before = [(one.stated, one.right) for one in judgements]
    after = cross_validated(judgements)
    assert len(after) == len(before)
    assert expected_calibration_error(after) < 0.03 < expected_calibration_error(before)
    assert log_loss(after) < log_loss(before)


def test_a_family_is_never_fitted_on_itself() -> None:
    """A family whose findings are all wrong would teach its own feature; held out, nothing warns of it."""
    honest = [Judged(f"family {n % 9}", (1.0, 0.0), 0.9, right=True) for n in range(90)]
    liar = [Judged("liar", (1.0, 1.0), 0.9, right=False) for _ in range(30)]
    found = cross_validated([*honest, *liar])
    assert all(p > 0.5 for p, right in found if not right)


def test_the_table_writes_weights_with_their_provenance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ["lab: syn_flood", "lab: ntp_amplification", "tool: game_queries", "ordinary: background"]
    monkeypatch.setattr(
        table, "cases", lambda each, seed: (draw(one, n, seed) for one in few for n in range(each))
    )
    path = tmp_path / "weights.toml"
    document = table.run(Options(rounds=2, captures=(str(path),)))
    text = path.read_text()
    assert f'version = "{version()}"' in text
    assert "windows = 8\n" in text
    assert all(f"\n{name} = " in text for name in FEATURES)
    assert any(result.name.startswith("truth of groups, fitted") for result in document.results)
    assert len(FittedWeights.parsed(path.read_text()).applied(DECLARED)) == len(DECLARED)
    assert any(result.name.startswith("fitted, family held out") for result in document.results)
    with pytest.raises(FwtopError, match="can't be written; nothing was fitted"):
        table.run(Options(rounds=1, captures=(str(tmp_path / "no" / "file"),)))
