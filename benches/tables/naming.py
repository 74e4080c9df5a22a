"""How well attacks are named on the corpus, by kind, and what the stated confidence is worth.

Each family is judged by weights that were fitted without it, and by those in use; in a quick run only by
the latter.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from msgspec.structs import replace

from benches.accuracy.naming import Scores, draw, judged
from benches.accuracy.onsets import PATIENCE, Onset, onsets
from benches.accuracy.weighing import fold_weights
from benches.corpus.cases import SEED, cases
from benches.corpus.profiles import methods
from benches.corpus.version import version
from benches.tables.corpus import WINDOWS_EACH
from benches.tables.fit import LEARNED, LEARNED_EACH
from fwtop.bench.frame import Document, Options, Result, progress

_QUICK_STEP = 4  # a quick run lets every fourth attack begin
_SECONDS_TO_NAME = {10: 0.6, 2: 5.0}  # the most that is right, by times the normal rate


def run(options: Options) -> Document:
    """Judge the corpus; `rounds` is the number of windows of each family."""
    seed = SEED if options.seed is None else options.seed
    held_out = {} if options.quick else fold_weights(LEARNED_EACH, LEARNED, progress)
    used, without = Scores(), Scores()
    for case in cases(options.choose(WINDOWS_EACH, 1), seed):
        progress(case.name)
        used.add(judged(case))
        if held_out:
            fold = held_out[case.family]
            without.add(judged(case, confidence=fold.confidence, hypotheses=fold.hypotheses))
    progress("attacks that begin")
    begun = list(onsets([*methods()][:: _QUICK_STEP if options.quick else 1], seed, _SECONDS_TO_NAME))
    progress("")
    scores = without if held_out else used
    figures = [*_totals(scores), *(_totals(used, "weights in use: ") if held_out else ())]
    by = "weights that were fitted without its family" if held_out else "the weights in use"
    source = f"corpus version {version()}, seed {seed}; each window judged by {by}"
    notes = (source, *scores.surprises, *_late(begun))
    return Document(
        "naming", 1, (*figures, *_by_kind(scores), *_onset_results(begun)), notes,
        lines=(*_lines(scores, figures), *_onset_lines(begun)), picture=draw(scores),
    )  # fmt: skip


def _onset_results(begun: Sequence[Onset]) -> list[Result]:
    return [
        Result(
            f"time to name at {times} times normal", "s",
            tuple(one.seconds for one in begun if one.times == times),
        )
        for times in _SECONDS_TO_NAME
    ]  # fmt: skip


def _onset_lines(begun: Sequence[Onset]) -> list[str]:
    return [
        f"{one.name}: {statistics.median(one.values):.1f} s in the median, {max(one.values):.1f} s at worst"
        for one in _onset_results(begun)
    ]


def _late(begun: Sequence[Onset]) -> list[str]:
    """Return a line for each attack that took too long to be named."""
    return [
        f"{one.name} at {one.times} times normal: "
        + ("not named" if one.seconds >= PATIENCE else f"named after {one.seconds:.1f} s")
        for one in begun
        if one.seconds > _SECONDS_TO_NAME[one.times]
    ]


def _totals(scores: Scores, whose: str = "") -> list[Result]:
    alarmed = scores.alarmed / max(1, scores.quiet_windows)
    rows = [
        Result("macro F1", "share", (scores.macro_f1,)),
        Result("expected calibration error", "share", (scores.calibration_error,)),
        Result("windows", "windows", (float(scores.windows),)),
        Result("ordinary windows", "windows", (float(scores.quiet_windows),)),
        Result("ordinary windows with an alarm", "share", (alarmed,)),
        Result("findings about ordinary packets", "findings", (float(scores.false_alarms),)),
        *_spoofing(scores),
    ]
    return [replace(row, name=f"{whose}{row.name}") for row in rows]


def _spoofing(scores: Scores) -> list[Result]:
    """Return how spoofing was estimated, of the findings that are about packets of an attack."""
    counts = {
        "spoofing: findings": len(scores.spoofing),
        "spoofing: forged": scores.forged,
        "spoofing: asserted": scores.asserted(forged=True) + scores.asserted(forged=False),
        "spoofing: asserted wrongly": scores.asserted(forged=False),
    }
    rows = [Result(name, "findings", (float(count),)) for name, count in counts.items()]
    error = Result("spoofing: expected calibration error", "share", (scores.spoofing_calibration_error,))
    return [*rows, error]


def _by_kind(scores: Scores) -> list[Result]:
    figures = {"precision": scores.precision, "recall": scores.recall, "F1": scores.f1}
    return [
        Result(f"{kind}: {name}", "share", (figure(kind),))
        for kind in scores.kinds
        for name, figure in figures.items()
    ]


def _lines(scores: Scores, figures: Sequence[Result]) -> list[str]:
    width = max(len(name) for name in (*scores.kinds, *(one.name for one in figures)))
    rows = [
        f"{kind:<{width}}  {scores.count(kind):>7}  {scores.precision(kind):>9.3f}  "
        f"{scores.recall(kind):>6.3f}  {scores.f1(kind):>6.3f}"
        for kind in scores.kinds
    ]
    ends = [f"{one.name:<{width}}  {one.values[0]:>7.4g}" for one in figures]
    return [f"{'kind':<{width}}  attacks  precision  recall      F1", *rows, "", *ends]
