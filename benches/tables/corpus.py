"""What the corpus holds: windows, samples and attacks by origin, and its version."""

from __future__ import annotations

from collections import defaultdict

from benches.corpus.cases import SEED, LabelledWindow, cases
from benches.corpus.version import version
from fwtop.bench.frame import Document, Options, Result, progress

WINDOWS_EACH = 5  # of a family


def run(options: Options) -> Document:
    """Draw the corpus and count; `rounds` is the number of windows of each family."""
    each = options.choose(WINDOWS_EACH, 1)
    groups: dict[str, list[LabelledWindow]] = defaultdict(list)
    for case in cases(each, SEED if options.seed is None else options.seed):
        progress(case.name)
        groups[case.family.partition(":")[0]].append(case)
    progress("")
    results = [result for name, group in groups.items() for result in _counts(name, group)]
    return Document("corpus", 1, tuple(results), (f"corpus version {version()}",))


def _counts(name: str, group: list[LabelledWindow]) -> list[Result]:
    sampling = [float(case.window.arrived.weight.mean()) for case in group if len(case.window.arrived)]
    return [
        Result(
            f"{name}: samples of a window", "packets", tuple(float(len(one.window.arrived)) for one in group)
        ),
        Result(f"{name}: sampling, one in", "packets", tuple(sampling)),
        Result(f"{name}: attacks in a window", "attacks", tuple(float(len(one.attacks)) for one in group)),
    ]
