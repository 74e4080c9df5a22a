"""What the corpus taught: weights of the entries, and confidence as a probability.

An entry's author says in which direction a feature speaks and about how strongly. `python -m benches fit`
multiplies each strength by a factor, and shifts its prior, as far as the corpus asks. The engine then states
a posterior; a logistic regression, fitted on the corpus as well, turns that and the circumstances of the
finding into the confidence that the screen shows: how often findings like this one were right.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from fwtop.analysis.context import AnalysisContext, Finding, Trait
from fwtop.analysis.engine.entries import Hypothesis

WEIGHTS_FILE = Path(__file__).parents[1] / "weights.toml"


class FittedWeights(Struct, frozen=True):
    """Shifts and factors by entry; what isn't listed is as declared."""

    shifts: Mapping[str, float]  # of log-odds, by entry
    factors: Mapping[str, Mapping[str, float]]  # by entry and feature

    @staticmethod
    def parsed(text: str) -> FittedWeights:
        """Read the tables of the file's text."""
        table = tomllib.loads(text).get("hypotheses", {})
        shifts = {name: float(entry["shift"]) for name, entry in table.items()}
        return FittedWeights(shifts, {name: entry["factors"] for name, entry in table.items()})

    def applied(self, entries: Iterable[Hypothesis]) -> tuple[Hypothesis, ...]:
        """Return the entries with fitted weights."""
        return tuple(self._fitted(one) for one in entries)

    def _fitted(self, one: Hypothesis) -> Hypothesis:
        factors = self.factors.get(one.key, {})
        evidence = tuple(
            replace(
                says,
                at_low=round(says.at_low * factors.get(says.feature.name, 1.0), 2),
                at_high=round(says.at_high * factors.get(says.feature.name, 1.0), 2),
            )
            for says in one.evidence
        )
        return replace(one, prior=round(one.prior + self.shifts.get(one.key, 0.0), 2), evidence=evidence)


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


# Read with the module: inside the sandbox no file can be opened
WEIGHTS_TEXT = WEIGHTS_FILE.read_text(encoding="utf-8")
_TABLE = tomllib.loads(WEIGHTS_TEXT)
FITTED = Weights(_TABLE["corpus"]["version"], tuple(float(_TABLE["weights"][name]) for name in FEATURES))


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
