"""Fitting confidence on the corpus: a logistic regression, cross-validated by family."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

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
    fold_of = {family: n % FOLDS for n, family in enumerate(sorted({one.family for one in judged}))}
    found: list[tuple[float, bool]] = []
    for fold in range(FOLDS):
        held_out = [one for one in judged if fold_of[one.family] == fold]
        rest = [one for one in judged if fold_of[one.family] != fold]
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
