"""Which tests `make test` runs of a table, and which of those that failed it may run again.

A table of cases, marked `one_each`, leaves so many to `make test` that each value of each parameter (of each
`parametrize`, and of fixtures) occurs; or those that the mark names, where some tell more than others. All
the others are the matrix's (`make test-matrix`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

MAY_PASS_ALONE = 75  # the exit status when nothing else failed; scripts/test.sh runs those tests again
# Kernel tests race the kernel's clock with many at once on few cores. One that is wrong fails alone as well;
# more than this many are no coincidence. What a file's tests share and could not be set up is one failure.
FEW = 4
CROWDED = "kernel tests wait for deadlines beside others"
_PROPERTY = "may pass alone"


def covering(table: Iterable[Sequence[str]]) -> list[int]:
    """Return the numbers of few cases in which each value occurs in its place."""
    cases = [set(enumerate(values)) for values in table]
    missing = set().union(*cases)
    chosen = []
    while missing:
        best = max(range(len(cases)), key=lambda number: (len(cases[number] & missing), -number))
        chosen.append(best)
        missing -= cases[best]
    return sorted(chosen)


def leave_to_the_matrix(items: list[pytest.Item]) -> None:
    """Mark those cases of tables that `make test` does without."""
    tables: dict[str, list[Any]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("one_each") and hasattr(item, "callspec"):
            tables[item.nodeid.partition("[")[0]].append(item)
    for name, cases in tables.items():
        named = cases[0].get_closest_marker("one_each").args
        ids = [case.callspec.id for case in cases]
        if named and len(cases) > 1 and (unknown := set(named) - set(ids)):
            raise pytest.UsageError(
                f"{name}: one_each names {sorted(unknown)}, which are none of its cases: {ids}"
            )
        kept = set(named) or {ids[number] for number in covering(case.callspec._idlist for case in cases)}
        for case in cases:
            if case.callspec.id not in kept and len(cases) > 1:
                case.add_marker(pytest.mark.matrix)


def carry_reasons(items: list[pytest.Item]) -> None:
    """Have the results of tests that may run again tell why."""
    for item in items:
        if item.get_closest_marker("kernel"):
            item.user_properties.append((_PROPERTY, CROWDED))


def failed_beside(reporter: Any) -> dict[str, str]:
    """Return what failed and may run again, with its reason; nothing if anything else failed, or too much."""
    failed, errors = (reporter.stats.get(key, []) for key in ("failed", "error"))
    reasons = {
        report.nodeid: dict(getattr(report, "user_properties", ())).get(_PROPERTY)
        for report in (*failed, *errors)
    }
    failures = {report.nodeid for report in failed} | {report.location[0] for report in errors}
    return {} if None in reasons.values() or len(failures) > FEW else reasons
