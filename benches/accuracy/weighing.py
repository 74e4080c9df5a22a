"""Fitting on the corpus, cross-validated by family: how strongly features speak, and confidence.

A penalty holds what authors declared; the corpus moves a weight only as far as it says something about it.
Confidence is a logistic regression. Families are dealt to folds: for each fold the hypotheses' weights, then
those of confidence, are fitted on the windows of all other families. Mixtures hold packets of other families,
so they teach nothing here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from benches.accuracy.naming import Outcome, judged
from benches.corpus.cases import MIXTURES, cases, families
from benches.corpus.version import version
from fwtop.analysis.attacks import DECLARED
from fwtop.analysis.engine.compete import Explained, said
from fwtop.analysis.engine.entries import Hypothesis
from fwtop.analysis.engine.weights import FittedWeights, Weights, features_of, is_calibrated

_PURE = 0.9  # of a group's packets have one cause; others teach nothing
_PENALTY = 4.0  # of squared changes: that many groups' worth of evidence moves a weight
_STEPS, _RATE = 400, 0.05
_SHIFT, _LOW, _HIGH = 1.0, 0.4, 2.0  # the furthest that a weight may move
_KEPT = 0.02  # changes that aren't written down
Vector = NDArray[np.float64]


class Case(Struct, frozen=True):
    """One group of the corpus: its family, who competed, what each one's features said, and who is right."""

    family: str
    entries: tuple[Hypothesis, ...]
    said: tuple[tuple[float, ...], ...]  # of each entry, in the order of its evidence
    right: tuple[bool, ...]


def cases_of(outcome: Outcome) -> Iterator[Case]:
    """Yield the groups of a judged window whose truth is clear and where explanations competed."""
    for one in outcome.context.explained:
        right = _right(one, outcome)
        if len(one.ranked) > 1 and any(right) and not all(right):
            entries = tuple(entry for entry, _ in one.ranked)
            spoken = tuple(tuple(says.about(one.group) for says in entry.evidence) for entry in entries)
            yield Case(outcome.case.family, entries, spoken, right)


def _right(one: Explained, outcome: Outcome) -> tuple[bool, ...]:
    labels = outcome.context.traffic.packets.ifindex[one.group.packets.rows]
    counts = np.bincount(labels)
    label = int(counts.argmax())
    if counts[label] < _PURE * len(labels):
        return tuple(False for _ in one.ranked)
    kinds = {
        kind
        for attack in outcome.case.attacks
        if attack.label == label
        for kind in (attack.kind, *attack.also)
    }
    return tuple(
        (said(entry.kind, one.group) in kinds) if kinds else not entry.kind for entry, _ in one.ranked
    )


class Places(Struct, frozen=True):
    """Where each weight stands in the vector: a shift by entry, then a factor by entry and feature."""

    shift: dict[str, int]
    factor: dict[tuple[str, str], int]

    @staticmethod
    def of(cases: Sequence[Case]) -> Places:
        """Number the weights of all entries that compete in the cases."""
        entries = {entry.key: entry for case in cases for entry in case.entries}
        shift = {key: place for place, key in enumerate(sorted(key for key in entries if entries[key].of))}
        names = sorted((key, says.feature.name) for key in shift for says in entries[key].evidence)
        return Places(shift, {name: len(shift) + place for place, name in enumerate(dict.fromkeys(names))})

    @property
    def size(self) -> int:
        """The number of weights."""
        return len(self.shift) + len(self.factor)


def fit_weights(cases: Sequence[Case], places: Places) -> Vector:
    """Return changes of the declared weights that make the truth likelier (Adam, penalised)."""
    x, base, possible, right = _arrays(cases, places)
    change = np.zeros(places.size)
    mean, square = np.zeros_like(change), np.zeros_like(change)
    for step in range(1, _STEPS + 1):
        p, q = _posteriors(x, base, possible, right, change)
        slope = np.einsum("gh,ghw->w", q - p, x) - _PENALTY * change
        mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope**2
        change += _RATE * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-9)
        n = len(places.shift)
        change[:n] = np.clip(change[:n], -_SHIFT, _SHIFT)
        change[n:] = np.clip(change[n:], _LOW - 1, _HIGH - 1)
    return change


def surprise(cases: Sequence[Case], places: Places, change: Vector) -> float:
    """Return the mean negative log-probability of the truth, in nats."""
    if not cases:
        return 0.0
    x, base, possible, right = _arrays(cases, places)
    p, _ = _posteriors(x, base, possible, right, change)
    return float(-np.log(np.clip((p * right).sum(1), 1e-6, 1)).mean())


def held_out(cases: Sequence[Case]) -> tuple[float, float]:
    """Return the surprise by declared weights, and by weights that were fitted without the family."""
    places = Places.of(cases)
    fold = fold_of(one.family for one in cases)
    before = after = 0.0
    for number in range(FOLDS):
        out = [one for one in cases if fold[one.family] == number]
        rest = [one for one in cases if fold[one.family] != number]
        before += len(out) * surprise(out, places, np.zeros(places.size))
        after += len(out) * surprise(out, places, fit_weights(rest, places))
    return before / max(1, len(cases)), after / max(1, len(cases))


def tables(cases: Sequence[Case]) -> list[str]:
    """Return the fitted weights as lines of TOML; what hardly moved is left out."""
    places = Places.of(cases)
    change = fit_weights(cases, places)
    factors: dict[str, list[str]] = defaultdict(list)
    for (key, name), place in places.factor.items():
        if abs(change[place]) >= _KEPT:
            factors[key].append(f"{name} = {1 + change[place]:.2f}")
    lines: list[str] = []
    for key, place in places.shift.items():
        if abs(change[place]) >= _KEPT or factors[key]:
            shift, listed = float(change[place]), ", ".join(factors[key])
            lines += ["", f'[hypotheses."{key}"]', f"shift = {shift:.2f}", f"factors = {{ {listed} }}"]
    return lines


def _arrays(
    cases: Sequence[Case], places: Places
) -> tuple[NDArray[np.float64], Vector, NDArray[np.bool_], NDArray[np.bool_]]:
    most = max((len(case.entries) for case in cases), default=1)
    x = np.zeros((len(cases), most, places.size))
    base, possible = np.zeros((len(cases), most)), np.zeros((len(cases), most), np.bool_)
    right = np.zeros_like(possible)
    for g, case in enumerate(cases):
        for h, (entry, spoken) in enumerate(zip(case.entries, case.said, strict=True)):
            possible[g, h], right[g, h] = True, case.right[h]
            base[g, h] = entry.prior + sum(spoken)
            if entry.of is None:
                continue
            x[g, h, places.shift[entry.key]] = 1.0
            for says, odds in zip(entry.evidence, spoken, strict=True):
                x[g, h, places.factor[entry.key, says.feature.name]] += odds
    return x, base, possible, right


def _posteriors(
    x: NDArray[np.float64],
    base: Vector,
    possible: NDArray[np.bool_],
    right: NDArray[np.bool_],
    change: Vector,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return each explanation's probability, and its probability given that one of the right ones is true."""
    odds = np.where(possible, base + x @ change, -np.inf)
    share = np.exp(odds - odds.max(1, keepdims=True))
    p = share / share.sum(1, keepdims=True)
    true = np.where(right, np.maximum(share, 1e-300), 0.0)
    return p, true / true.sum(1, keepdims=True)


_NEWTON_STEPS = 50
_CONFIDENCE_PENALTY = (
    1.0  # of the weights' squared distance from what the engine states: few findings are wrong
)
FOLDS = 10


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
    for _ in range(_NEWTON_STEPS):
        p = _sigmoid(x @ weights)
        gradient = x.T @ (y - p) - _CONFIDENCE_PENALTY * (weights - as_stated)
        curvature = (x * (p * (1 - p))[:, None]).T @ x + _CONFIDENCE_PENALTY * np.eye(x.shape[1])
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


class FoldWeights(Struct, frozen=True):
    """What was fitted without a fold's families."""

    hypotheses: tuple[Hypothesis, ...]
    confidence: Weights


def fold_weights(each: int, seed: int, progress: Callable[[str], None]) -> dict[str, FoldWeights]:
    """Return for each family the weights that know nothing of it, from `each` windows of every other one."""
    names = families()
    fold = fold_of(names)
    single = tuple(name for name in names if name not in MIXTURES)
    groups: list[Case] = []
    for case in cases(each, seed, single):
        progress(f"hypotheses: {case.name}")
        groups += cases_of(judged(case, confidence=None, hypotheses=DECLARED, explains=True))
    fitted = [
        FittedWeights.parsed("\n".join(tables([one for one in groups if fold[one.family] != number])))
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
