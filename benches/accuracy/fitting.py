"""Fitting confidence on the corpus: a logistic regression, cross-validated by family."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from benches.accuracy.naming import Outcome
from fwtop.analysis.engine.weights import features_of, is_calibrated

_STEPS = 50
_PENALTY = 1.0  # of the weights' squared distance from what the engine states: few findings are wrong
FOLDS = 10
Vector = NDArray[np.float64]


class Judged(Struct, frozen=True):
    """One finding of the corpus: its family, features, what the engine stated, and whether it was right."""

    family: str
    features: tuple[float, ...]
    stated: float
    right: bool

    @staticmethod
    def of(outcome: Outcome) -> list[Judged]:
        """Return the findings of a judged window whose confidence is fitted."""
        return [
            Judged(
                outcome.case.family,
                features_of(outcome.context, one.finding),
                one.finding.confidence,
                one.right,
            )
            for one in outcome.named
            if is_calibrated(one.finding)
        ]


def fold_of(families: Iterable[str]) -> dict[str, int]:
    """Deal families to folds: neighbours, which are alike, to different ones."""
    return {family: place % FOLDS for place, family in enumerate(sorted(set(families)))}


def fit(judged: Sequence[Judged]) -> Vector:
    """Return the weights by Newton's method.

    Where hardly any finding is wrong, they stay near those that leave the engine's odds, the second feature,
    as they are: findings that are all right must not make every confidence 1.
    """
    x = np.array([one.features for one in judged])
    y = np.array([one.right for one in judged], np.float64)
    as_stated = np.eye(x.shape[1])[1]
    weights = as_stated
    for _ in range(_STEPS):
        p = _sigmoid(x @ weights)
        gradient = x.T @ (y - p) - _PENALTY * (weights - as_stated)
        curvature = (x * (p * (1 - p))[:, None]).T @ x + _PENALTY * np.eye(x.shape[1])
        step = np.linalg.solve(curvature, gradient)
        weights = weights + step
        if float(np.abs(step).max()) < 1e-9:
            break
    return np.asarray(weights)


def cross_validated(judged: Sequence[Judged]) -> list[tuple[float, bool]]:
    """Return the probability of each finding by weights that were fitted without its family."""
    fold = fold_of(one.family for one in judged)
    found: list[tuple[float, bool]] = []
    for number in range(FOLDS):
        held_out = [one for one in judged if fold[one.family] == number]
        rest = [one for one in judged if fold[one.family] != number]
        if not held_out or not rest:
            continue
        weights = fit(rest)
        p = _sigmoid(np.array([one.features for one in held_out]) @ weights)
        found += [(float(value), one.right) for value, one in zip(p, held_out, strict=True)]
    return found


def log_loss(stated: Sequence[tuple[float, bool]]) -> float:
    """Return the mean surprise of the truth in nats; lower is better."""
    p = np.clip(np.array([value for value, _ in stated]), 0.005, 0.995)
    right = np.array([right for _, right in stated])
    return float(-np.where(right, np.log(p), np.log(1 - p)).mean()) if len(stated) else 0.0


def _sigmoid(odds: Vector) -> Vector:
    return np.asarray(1 / (1 + np.exp(-np.clip(odds, -30, 30))))
