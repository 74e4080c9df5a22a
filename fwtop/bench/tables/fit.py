"""Fits the confidence of findings on the corpus and writes the weights with their provenance."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from fwtop.analysis.calibration import FEATURES, WEIGHTS_FILE, features_of, is_calibrated
from fwtop.bench.accuracy.fitting import FOLDS, Judged, cross_validated, fit, log_loss
from fwtop.bench.accuracy.naming import expected_calibration_error, judged
from fwtop.bench.corpus.cases import SEED, cases
from fwtop.bench.corpus.version import version
from fwtop.bench.frame import Document, Options, Result, progress
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_OTHER = SEED + 1  # hypotheses were mended on the windows of SEED, and look better there than they are
_EACH = 8  # windows of a family: few findings are wrong, so it takes many


def run(options: Options) -> Document:
    """Judge the corpus, fit, cross-validate, and write the weights; `rounds` is the windows of a family."""
    path = Path(options.captures[0]) if options.captures else WEIGHTS_FILE
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise FwtopError(f"{safe_text(path)} can't be written; nothing was fitted")
    each = options.choose(_EACH, 1)
    found: list[Judged] = []
    windows = 0
    for case in cases(each, _OTHER):
        progress(case.name)
        windows += 1
        outcome = judged(case, calibrate=False)
        found += [
            Judged(case.family, features_of(outcome.context, one.finding), one.finding.confidence, one.right)
            for one in outcome.named
            if is_calibrated(one.finding)
        ]
    progress("")
    before = [(one.stated, one.right) for one in found]
    after = cross_validated(found)
    note = _write(path, fit(found).tolist(), windows, found, after)
    results = [
        Result("findings", "findings", (float(len(found)),)),
        Result("of these right", "share", (sum(one.right for one in found) / max(1, len(found)),)),
    ]
    for name, stated in (("as the engine states it", before), ("fitted, family held out", after)):
        results.append(
            Result(f"{name}: expected calibration error", "share", (expected_calibration_error(stated),))
        )
        results.append(Result(f"{name}: log loss", "nats", (log_loss(stated),)))
    return Document("fit", 1, tuple(results), (note,))


def _write(
    path: Path, values: list[float], windows: int, found: list[Judged], after: list[tuple[float, bool]]
) -> str:
    lines = [
        "# Weights of the confidence that fwtop shows. Written by `fwtop bench fit`; don't edit.",
        "[corpus]",
        f'version = "{version()}"',
        f"seed = {_OTHER}",
        f"windows = {windows}",
        f"findings = {len(found)}",
        f"right = {sum(one.right for one in found)}",
        f'fitted = "{datetime.now(UTC):%Y-%m-%d}"',
        f"folds = {FOLDS}  # by family",
        f"held_out_calibration_error = {expected_calibration_error(after):.4f}",
        "",
        "[weights]",
        *(f"{name} = {value:.6f}" for name, value in zip(FEATURES, values, strict=True)),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"the weights are in {safe_text(path)}"
