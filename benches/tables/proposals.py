"""The share of an attack that proposals promise to stop, against what their rules stop (A8)."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from benches.accuracy.promises import Promise, try_scenario
from benches.corpus.profiles import methods
from fwtop.bench.frame import Document, Options, Result, number, progress
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_SECONDS, _QUICK_SECONDS = 3.0, 2.0
_QUICK = (
    "few_sources", "dns_amplification", "dns_amplification_ipv6", "cldap_amplification",
    "chargen_amplification", "middlebox_amplification", "dns_query_flood", "syn_flood",
)  # fmt: skip
_NOT_STOPPED = "port_scan"  # nothing is proposed against it
_MEDIAN_POINTS, _WORST_POINTS = 3.0, 10.0


def run(options: Options) -> Document:
    """Try the proposals of all attacks of the lab (those named; with `quick`, a few)."""
    names = chosen(options.captures, quick=options.quick)
    promises: list[Promise] = []
    notes: list[str] = []
    for place, name in enumerate(names, 1):
        progress(f"scenario {place} of {len(names)}: {name}")
        try:
            found = try_scenario(name, _QUICK_SECONDS if options.quick else _SECONDS)
        except FwtopError as error:  # the others can still be measured
            notes.append(f"left out: {name}: {safe_text(error)}")
            continue
        promises += [one for one in found if one.came]
        notes += [unmet(one) for one in found if not one.came]
        if not found:
            notes.append(f"{name}: no rule was proposed")
    progress("")
    if not promises:
        raise FwtopError(f"nothing was measured; {'; '.join(notes)}")
    return to_document(promises, notes)


def chosen(names: tuple[str, ...], *, quick: bool) -> list[str]:
    """Return the named scenarios, or all that hold one attack; raises FwtopError (2) for any other name."""
    known = [name for name in methods() if name != _NOT_STOPPED]
    for name in names:
        if name not in known:
            raise FwtopError(
                f"{safe_text(name, limit=40)!r} is no scenario of one attack (there are {', '.join(known)})",
                2,
            )
    return [*names] or ([*_QUICK] if quick else known)


def unmet(promise: Promise) -> str:
    """Return a line for a rule that no packet of the flood came to."""
    return (
        f"{promise.scenario}: predicted {promise.predicted:.1%}, but the kernel drops the flood before "
        f"it comes to where the rule stands: {promise.summary}"
    )


def to_document(promises: Sequence[Promise], notes: Sequence[str]) -> Document:
    """Return the table, with a note for each promise that wasn't kept."""
    return Document(
        "proposals", 1, tuple(_results(promises)), (*notes, *missed(promises)), lines=tuple(_lines(promises))
    )


def _results(promises: Sequence[Promise]) -> Iterator[Result]:
    for one in promises:
        name = f"{one.scenario}: {one.number}. {one.kind}"
        yield Result(f"{name}: predicted", "share", (one.predicted,))
        yield Result(f"{name}: stopped", "share", (one.stopped,))
    yield Result("predicted against stopped", "points", tuple(one.points for one in promises))


def _lines(promises: Sequence[Promise]) -> Iterator[str]:
    """Format the table as text, one proposal per line."""
    width = max(len(one.scenario) for one in promises)
    heads = f"{'n':>3}  {'kind':<9}{'predicted':>10}{'stopped':>9}{'off by':>8}{'of packets':>12}"
    yield f"{'':<{width}}{heads}  proposal"
    for one in promises:
        yield (
            f"{one.scenario:<{width}}{one.number:>3}  {one.kind:<9}{one.predicted:>10.1%}{one.stopped:>9.1%}"
            f"{one.points:>8.1f}{number(one.came):>12}  {one.summary.partition(' (')[0]}"
        )
    points = [one.points for one in promises]
    median, worst = statistics.median(points), max(points)
    scenarios = len({one.scenario for one in promises})
    plural = "" if scenarios == 1 else "s"
    yield ""
    yield (
        f"{len(promises)} proposals of {scenarios} scenario{plural}: off by {median:.1f} points in the "
        f"median, {worst:.1f} at worst"
    )


def missed(promises: Sequence[Promise]) -> list[str]:
    """Return a line for each prediction that was too far off, and one for the median if that was."""
    lines = [
        f"A8 {one.scenario}: predicted {one.predicted:.1%}, stopped {one.stopped:.1%}: {one.summary}"
        for one in promises
        if one.points > _WORST_POINTS
    ]
    median = statistics.median(one.points for one in promises)
    return [*lines, *([f"A8: {median:.1f} points off in the median"] if median > _MEDIAN_POINTS else [])]
