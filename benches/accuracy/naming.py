"""How well the judgement names the attacks of the corpus: precision, recall, confusion, calibration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from benches.corpus.cases import Attack, LabelledWindow
from fwtop.analysis.attacks import HYPOTHESES
from fwtop.analysis.classify import find_attacks
from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.context import AnalysisContext, Finding, make_context
from fwtop.analysis.engine.entries import Hypothesis
from fwtop.analysis.engine.weights import FITTED, Weights, calibrated
from fwtop.report.document import Markup, tag

NOTHING, ORDINARY = "nothing", "ordinary"
_MOST = 0.5  # of a finding's packets belong to what it is about
_SEEN_SAMPLES, _SEEN_SHARE = 60, 0.05  # an attack that must be named, at least
_SURGE = "unknown_flood"
_ASSERTED = AdviseConfig().spoof_threshold
BINS = 10


class Named(Struct, frozen=True):
    """One finding, and whether the corpus agrees; `true` is the kind of most of its packets."""

    finding: Finding
    right: bool
    true: str
    forged: bool | None = None  # whether their sources are; None if most belong to no attack


class Outcome(Struct, frozen=True):
    """What the judgement said about one case."""

    case: LabelledWindow
    context: AnalysisContext
    named: tuple[Named, ...]
    met: tuple[tuple[Attack, str], ...]  # attacks that had to be named, and the name that each got

    @property
    def false_alarms(self) -> int:
        """Findings that are about ordinary packets."""
        return sum(not one.right and one.true == ORDINARY for one in self.named)

    @property
    def surprise(self) -> str:
        """What was expected and what was said instead; empty if all is right."""
        wrong = [one for one in self.named if not one.right]
        missed = [attack.kind for attack, name in self.met if name != attack.kind]
        if not (wrong or missed):
            return ""
        traffic = self.context.traffic
        said = ", ".join(f"{one.finding.kind} ({traffic.share(one.finding.rows):.0%})" for one in self.named)
        wanted = ", ".join(attack.kind for attack in self.case.attacks)
        how = "live" if traffic.live else "capture"
        return (
            f"{self.case.name} ({how}, {traffic.seconds:.0f} s, 1 in {traffic.one_in:.0f}, "
            f"{'with' if self.case.baseline.ready else 'no'} baseline): "
            f"expected {wanted or NOTHING}, got {said or NOTHING}"
        )


def judged(
    case: LabelledWindow,
    *,
    confidence: Weights | None = FITTED,
    hypotheses: Sequence[Hypothesis] = HYPOTHESES,
    explains: bool = False,
) -> Outcome:
    """Judge a case and compare with its truth; without weights, confidence is what the engine states."""
    context = make_context(case.window, AdviseConfig(), case.baseline)
    context.explains = explains
    findings = find_attacks(context, hypotheses)
    if confidence is not None:
        findings = calibrated(context, findings, confidence)
    labels = context.traffic.packets.ifindex
    named, taken = [], set()
    for finding in findings:
        one = _compare(finding, case.attacks, labels)
        attack = _matching(finding, case.attacks, labels) if one.right else None
        again = attack is not None and attack.label in taken  # one attack under two names, or in two parts
        taken |= {attack.label} if attack is not None else set()
        named.append(replace(one, right=one.right and not again))
    met = [
        (attack, _name_of(attack, named, labels))
        for attack in case.attacks
        if _must_be_named(context, attack, labels)
    ]
    return Outcome(case, context, tuple(named), tuple(met))


def _must_be_named(context: AnalysisContext, attack: Attack, labels: np.ndarray) -> bool:
    if attack.kind == _SURGE and not context.baseline.ready:
        return False  # nothing to compare with
    mine = np.flatnonzero(labels == attack.label)
    return len(mine) >= _SEEN_SAMPLES and context.traffic.share(mine) >= _SEEN_SHARE


def _majority(finding: Finding, labels: np.ndarray) -> int:
    """Return the label of at least half of a finding's packets; 0 if they are ordinary."""
    counts = np.bincount(labels[finding.rows]) if len(finding.rows) else np.zeros(1)
    top = int(counts.argmax())
    return top if counts[top] >= _MOST * len(finding.rows) else 0


def _matching(finding: Finding, attacks: Sequence[Attack], labels: np.ndarray) -> Attack | None:
    if not len(finding.rows):  # a state, without packets of its own
        return next((one for one in attacks if finding.kind in (one.kind, *one.also)), None)
    return next((one for one in attacks if one.label == _majority(finding, labels)), None)


def _compare(finding: Finding, attacks: Sequence[Attack], labels: np.ndarray) -> Named:
    attack = _matching(finding, attacks, labels)
    if attack is None:
        return Named(finding, right=False, true=ORDINARY)
    right = finding.kind in (attack.kind, *attack.also)
    return Named(finding, right, attack.kind, attack.forged if len(finding.rows) else None)


def _name_of(attack: Attack, named: Sequence[Named], labels: np.ndarray) -> str:
    """Return the kind that an attack was named; its own kind if the name is right."""
    about = [one for one in named if (found := _matching(one.finding, (attack,), labels)) and found is attack]
    if any(one.right for one in about):
        return attack.kind
    largest = max(about, key=lambda one: len(one.finding.rows), default=None)
    return largest.finding.kind if largest is not None else NOTHING


class Scores(Struct):
    """Counts over many outcomes; confusion is by true and said kind."""

    windows: int = 0
    quiet_windows: int = 0
    alarmed: int = 0  # quiet windows with an attack in them
    false_alarms: int = 0
    confusion: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)  # findings by kind that the truth denies
    stated: list[tuple[float, bool]] = field(default_factory=list)  # confidence, and whether right
    spoofing: list[tuple[float, bool]] = field(default_factory=list)  # probability, and whether forged
    surprises: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Count one outcome."""
        self.windows += 1
        quiet = not outcome.case.attacks
        self.quiet_windows += quiet
        self.alarmed += quiet and bool(outcome.named)
        self.false_alarms += outcome.false_alarms
        for attack, name in outcome.met:
            self.confusion[attack.kind, name] += 1
        for one in outcome.named:
            self.stated.append((one.finding.confidence, one.right))
            if one.forged is not None:
                self.spoofing.append((one.finding.spoof.probability, one.forged))
            if not one.right:
                self.wrong[one.finding.kind] += 1
                if one.true == ORDINARY:
                    self.confusion[ORDINARY, one.finding.kind] += 1
        if quiet and not outcome.named:
            self.confusion[ORDINARY, NOTHING] += 1
        if outcome.surprise:
            self.surprises.append(outcome.surprise)

    @property
    def kinds(self) -> list[str]:
        """The kinds that the corpus holds."""
        return sorted({true for true, _ in self.confusion} - {ORDINARY})

    def recall(self, kind: str) -> float:
        """Return the share of attacks of a kind that got their name."""
        return self.confusion[kind, kind] / max(1, self.count(kind))

    def count(self, kind: str) -> int:
        """Return how many attacks of a kind had to be named."""
        return sum(n for (true, _), n in self.confusion.items() if true == kind)

    def precision(self, kind: str) -> float:
        """Return the share of findings of a kind that are right."""
        good = self.confusion[kind, kind]
        return good / max(1, good + self.wrong[kind])

    def f1(self, kind: str) -> float:
        """Return the harmonic mean of precision and recall."""
        recall, precision = self.recall(kind), self.precision(kind)
        return 2 * recall * precision / (recall + precision) if recall + precision else 0.0

    @property
    def macro_f1(self) -> float:
        """The mean F1 over the kinds."""
        kinds = self.kinds
        return sum(map(self.f1, kinds)) / len(kinds) if kinds else 0.0

    @property
    def calibration_error(self) -> float:
        """The expected calibration error of the stated confidence."""
        return expected_calibration_error(self.stated)

    @property
    def forged(self) -> int:
        """How many findings are about packets whose sources are forged."""
        return sum(forged for _, forged in self.spoofing)

    def asserted(self, *, forged: bool) -> int:
        """Return of how many findings with forged sources, or with real ones, spoofing was asserted."""
        return sum(said > _ASSERTED and true == forged for said, true in self.spoofing)

    @property
    def spoofing_calibration_error(self) -> float:
        """The expected calibration error of the probability of spoofing."""
        return expected_calibration_error(self.spoofing)


class Bin(Struct, frozen=True):
    """Findings whose confidence lies between two tenths."""

    count: int
    stated: float  # mean confidence
    right: float  # share that is right


def bins(stated: Iterable[tuple[float, bool]]) -> list[Bin]:
    """Group confidences by tenths; empty ones are left out."""
    groups: dict[int, list[tuple[float, bool]]] = {}
    for confidence, right in stated:
        groups.setdefault(min(BINS - 1, int(confidence * BINS)), []).append((confidence, right))
    return [
        Bin(
            len(group),
            sum(confidence for confidence, _ in group) / len(group),
            sum(right for _, right in group) / len(group),
        )
        for _, group in sorted(groups.items())
    ]


def expected_calibration_error(stated: Sequence[tuple[float, bool]]) -> float:
    """Return how far confidence and share of right findings differ, weighted by bin (Naeini et al. 2015)."""
    total = max(1, len(stated))
    return sum(one.count / total * abs(one.stated - one.right) for one in bins(stated))


_CELL, _LEFT, _TOP, _SIDE, _GAP = 17, 190, 200, 340, 70
_INK, _SOFT, _FAINT, _GOOD, _BAD = "#1f2328", "#6e7781", "#d8dee4", "#1a7f37", "#cf222e"
_STYLE = "font-family:ui-sans-serif,system-ui,sans-serif;font-size:11px;background:#fff"


def draw(scores: Scores) -> str:
    """Return an SVG: true kinds down, said kinds across, and beside it confidence against the truth."""
    down = [*scores.kinds, ORDINARY]
    across = [*sorted({said for _, said in scores.confusion} - {NOTHING}), NOTHING]
    right = _LEFT + _CELL * len(across) + _GAP
    width, height = right + _SIDE + 20, max(_TOP + _CELL * len(down) + 20, _TOP + _SIDE + 60)
    return tag(
        "svg",
        _text(10, 20, f"{scores.windows:,} windows, macro F1 {scores.macro_f1:.3f}", size=15),
        _text(10, 40, "each row: what was sent; each column: what it was called", fill=_SOFT),
        *_matrix(scores, down, across),
        *_reliability(scores, right),
        xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {height}", role="img",
        aria_label="how attacks of the corpus are named", style=_STYLE,
    )  # fmt: skip


def _text(x: float, y: float, text: str, *, size: int = 11, fill: str = _INK, **more: str) -> Markup:
    return tag("text", text, x=x, y=y, font_size=size, fill=fill, **more)


def _matrix(scores: Scores, down: list[str], across: list[str]) -> Iterator[Markup]:
    for column, said in enumerate(across):
        x = _LEFT + _CELL * (column + 0.7)
        yield _text(x, _TOP - 6, said, transform=f"rotate(-60 {x:.1f} {_TOP - 6})")
    ground = partial(tag, "rect", fill=_FAINT, fill_opacity=0.3)
    yield ground(x=_LEFT, y=_TOP, width=_CELL * len(across), height=_CELL * len(down))
    for row, true in enumerate(down):
        y = _TOP + _CELL * row
        total = sum(scores.confusion[true, said] for said in across)
        yield _text(_LEFT - 6, y + 12, true, text_anchor="end")
        for column, said in enumerate(across):
            if count := scores.confusion[true, said]:
                x, good = _LEFT + _CELL * column, said == true or (true, said) == (ORDINARY, NOTHING)
                look = {"fill": _GOOD if good else _BAD, "fill_opacity": f"{0.15 + 0.85 * count / total:.2f}"}
                yield tag("rect", x=x, y=y, width=_CELL - 1, height=_CELL - 1, **look)
                yield _text(x + _CELL / 2 - 0.5, y + 12, str(count), size=9, text_anchor="middle")


def _reliability(scores: Scores, left: float) -> Iterator[Markup]:
    """Draw stated confidence against the share that is right; the area of a dot is its number of findings."""
    bottom = _TOP + _SIDE
    yield tag("rect", x=left, y=_TOP, width=_SIDE, height=_SIDE, fill="none", stroke=_FAINT)
    ends = {"x1": left, "y1": bottom, "x2": left + _SIDE, "y2": _TOP}
    yield tag("line", **ends, stroke=_SOFT, stroke_dasharray="4")
    error = f"reliability; expected calibration error {scores.calibration_error:.3f}"
    yield _text(left, _TOP - 26, error, size=13)
    yield _text(left, _TOP - 8, "upwards: share of findings that are right", fill=_SOFT)
    yield _text(left, bottom + 32, "stated confidence", fill=_SOFT)
    for tenth in range(0, 11, 2):
        x, y = left + _SIDE * tenth / 10, bottom - _SIDE * tenth / 10
        yield _text(x, bottom + 14, f"{tenth / 10:.1f}", text_anchor="middle", fill=_SOFT)
        yield _text(left - 4, y + 4, f"{tenth / 10:.1f}", text_anchor="end", fill=_SOFT)
    total = max(1, len(scores.stated))
    for one in bins(scores.stated):
        x, y = left + _SIDE * one.stated, bottom - _SIDE * one.right
        yield tag("circle", cx=x, cy=y, r=4 + 16 * (one.count / total) ** 0.5, fill=_GOOD, fill_opacity=0.5)
        yield _text(x, y + 3, str(one.count), size=9, text_anchor="middle")
