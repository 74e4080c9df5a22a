"""Fits the weights of hypotheses, and the confidence of findings, on the corpus."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benches.accuracy import weighing
from benches.accuracy.naming import expected_calibration_error, judged
from benches.accuracy.weighing import FOLDS, Judged, cross_validated, fit, log_loss
from benches.corpus.cases import SEED, cases
from benches.corpus.version import version
from fwtop.analysis.attacks import DECLARED
from fwtop.analysis.engine.entries import Hypothesis
from fwtop.analysis.engine.weights import FEATURES, WEIGHTS_FILE, FittedWeights
from fwtop.bench.frame import Document, Options, Result, progress
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

LEARNED = SEED + 1  # hypotheses were mended on the windows of SEED, and look better there than they are
LEARNED_EACH = 8  # windows of a family: few findings are wrong, so it takes many


def run(options: Options) -> Document:
    """Judge the corpus, fit, cross-validate, and write the weights; `rounds` is the windows of a family."""
    path = Path(options.captures[0]) if options.captures else WEIGHTS_FILE
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise FwtopError(f"{safe_text(path)} can't be written; nothing was fitted")
    each = options.choose(LEARNED_EACH, 1)
    groups: list[weighing.Case] = []
    windows = 0
    for case in cases(each, LEARNED):
        progress(f"hypotheses: {case.name}")
        windows += 1
        groups += weighing.cases_of(judged(case, confidence=None, hypotheses=DECLARED, explains=True))
    weights = weighing.tables(groups)
    declared, held_out = weighing.held_out(groups)
    found = _findings(each, FittedWeights.parsed("\n".join(weights)).applied(DECLARED))
    progress("")
    before = [(one.stated, one.right) for one in found]
    after = cross_validated(found)
    note = _write(path, found, after, windows=windows, groups=len(groups), weights=weights)
    results = [
        Result("groups", "groups", (float(len(groups)),)),
        Result("truth of groups, as declared: log loss", "nats", (declared,)),
        Result("truth of groups, fitted, family held out: log loss", "nats", (held_out,)),
        Result("findings", "findings", (float(len(found)),)),
        Result("of these right", "share", (sum(one.right for one in found) / max(1, len(found)),)),
    ]
    for name, stated in (("as the engine states it", before), ("fitted, family held out", after)):
        results.append(
            Result(f"{name}: expected calibration error", "share", (expected_calibration_error(stated),))
        )
        results.append(Result(f"{name}: log loss", "nats", (log_loss(stated),)))
    return Document("fit", 1, tuple(results), (note,))


def _findings(each: int, hypotheses: Sequence[Hypothesis]) -> list[Judged]:
    """Judge the corpus again, by the fitted weights."""
    found: list[Judged] = []
    for case in cases(each, LEARNED):
        progress(f"confidence: {case.name}")
        found += Judged.of(judged(case, confidence=None, hypotheses=hypotheses))
    return found


def _write(
    path: Path,
    found: list[Judged],
    after: list[tuple[float, bool]],
    *,
    windows: int,
    groups: int,
    weights: list[str],
) -> str:
    lines = [
        "# Weights of hypotheses and of confidence. Written by `python -m benches fit`; don't edit.",
        "[corpus]",
        f'version = "{version()}"',
        f"seed = {LEARNED}",
        f"windows = {windows}",
        f"groups = {groups}",
        f"findings = {len(found)}",
        f"right = {sum(one.right for one in found)}",
        f'fitted = "{datetime.now(UTC):%Y-%m-%d}"',
        f"folds = {FOLDS}  # by family",
        f"held_out_calibration_error = {expected_calibration_error(after):.4f}",
        "",
        "# Of confidence (fwtop/analysis/engine/weights.py)",
        "[weights]",
        *(f"{name} = {value:.6f}" for name, value in zip(FEATURES, fit(found).tolist(), strict=True)),
        "",
        "# Of hypotheses: shifts of their priors, and factors of what features say",
        *weights,
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"the weights are in {safe_text(path)}"
