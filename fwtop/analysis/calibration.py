"""Confidence as a probability: how often findings like this one were right on the corpus.

The engine states a posterior. A logistic regression, fitted by `python -m benches fit` on the
corpus, turns that and the circumstances of the finding into the posterior that the screen shows.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from fwtop.analysis.context import AnalysisContext, Finding, Trait
from fwtop.analysis.engine.weights import WEIGHTS_FILE

FEATURES = (
    "constant",
    "stated",  # log-odds of the posterior that the engine states
    "samples",  # decimal logarithm of the finding's sampled packets
    "share",  # of all arrived packets
    "sampling",  # decimal logarithm of packets per sample
    "live",  # 1 for a live window, 0 for a capture
    "baseline",  # 1 if normal traffic is known
    "shape",  # 1 if the packets' contents prove the kind
)
_LEAST, _MOST = 0.02, 0.99  # the corpus is too small to tell more


class Weights(Struct, frozen=True):
    """The weights, one for each of FEATURES, and the version of the corpus that they were fitted on."""

    corpus: str
    values: tuple[float, ...]

    def posterior(self, features: Sequence[float]) -> float:
        """Return the probability that a finding with these features is right."""
        odds = sum(weight * value for weight, value in zip(self.values, features, strict=True))
        return min(_MOST, max(_LEAST, 1 / (1 + math.exp(-odds))))


def features_of(context: AnalysisContext, finding: Finding) -> tuple[float, ...]:
    """Return the features of a finding that decide how far it can be trusted."""
    traffic = context.traffic
    stated = min(0.995, max(0.005, finding.confidence))
    return (
        1.0,
        math.log(stated / (1 - stated)),
        math.log10(max(1, len(finding.rows))),
        min(1.0, traffic.share(finding.rows)),
        math.log10(max(1.0, traffic.one_in)),
        float(traffic.live),
        float(context.baseline.ready),
        float(Trait.REFLECTED in finding.traits),
    )


def _weights(path: Path) -> Weights:
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return Weights(table["corpus"]["version"], tuple(float(table["weights"][name]) for name in FEATURES))


FITTED = _weights(WEIGHTS_FILE)  # read with the module: inside the sandbox no file can be opened


def calibrated(
    context: AnalysisContext, findings: Sequence[Finding], weights: Weights = FITTED
) -> list[Finding]:
    """Return the findings with the posterior as confidence.

    Findings without packets of their own, such as a full connection table, keep what their hypothesis states:
    the corpus holds none. So do surges that nothing explains: the corpus knows what its surges are.
    """
    return [
        replace(one, confidence=round(weights.posterior(features_of(context, one)), 3))
        if is_calibrated(one)
        else one
        for one in findings
    ]


def is_calibrated(finding: Finding) -> bool:
    """Check whether the corpus tells how often such findings are right."""
    return len(finding.rows) > 0 and finding.held is None and Trait.UNKNOWN not in finding.traits
