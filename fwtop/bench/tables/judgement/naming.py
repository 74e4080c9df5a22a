"""How well attacks are named on the corpus, by kind, and what the stated confidence is worth."""

from __future__ import annotations

from fwtop.bench.accuracy.diagrams import draw
from fwtop.bench.accuracy.naming import Scores, judged
from fwtop.bench.corpus.cases import SEED, cases
from fwtop.bench.corpus.version import version
from fwtop.bench.frame import Document, Options, Result, progress
from fwtop.bench.tables.judgement.corpus import WINDOWS_EACH


def judge_corpus(options: Options) -> Document:
    """Judge the corpus; `rounds` is the number of windows of each family."""
    scores = Scores()
    seed = SEED if options.seed is None else options.seed
    for case in cases(options.choose(WINDOWS_EACH, 1), seed):
        progress(case.name)
        scores.add(judged(case))
    progress("")
    notes = (f"corpus version {version()}, seed {seed}", *scores.surprises)
    return Document(
        "accuracy", 1, tuple(_results(scores)), notes, lines=tuple(_lines(scores)), picture=draw(scores)
    )


def _totals(scores: Scores) -> list[Result]:
    alarms = scores.false_alarms / max(1, scores.windows)
    alarmed = scores.alarmed / max(1, scores.quiet_windows)
    return [
        Result("macro F1", "share", (scores.macro_f1,)),
        Result("false alarms of a window", "attacks", (alarms,)),
        Result("ordinary windows with an alarm", "share", (alarmed,)),
        Result("expected calibration error", "share", (scores.calibration_error,)),
        Result("windows", "windows", (float(scores.windows),)),
        *_spoofing(scores),
    ]


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


def _results(scores: Scores) -> list[Result]:
    figures = {"precision": scores.precision, "recall": scores.recall, "F1": scores.f1}
    by_kind = [
        Result(f"{kind}: {name}", "share", (figure(kind),))
        for kind in scores.kinds
        for name, figure in figures.items()
    ]
    return [*_totals(scores), *by_kind]


def _lines(scores: Scores) -> list[str]:
    totals = _totals(scores)
    width = max(len(name) for name in (*scores.kinds, *(one.name for one in totals)))
    rows = [
        f"{kind:<{width}}  {scores.count(kind):>7}  {scores.precision(kind):>9.3f}  "
        f"{scores.recall(kind):>6.3f}  {scores.f1(kind):>6.3f}"
        for kind in scores.kinds
    ]
    ends = [f"{one.name:<{width}}  {one.values[0]:>7.4g}" for one in totals]
    return [f"{'kind':<{width}}  attacks  precision  recall      F1", *rows, "", *ends]
