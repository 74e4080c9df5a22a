"""Accuracy of fwtop's observations of captures (A1 to A4) against an independent count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from fwtop.bench.cases import (
    Case,
    coverage,
    named_rightly,
    read_capture,
    relative_difference,
    strict_recall,
    top_recall,
)
from fwtop.bench.frame import Document, Options, Result
from fwtop.model.errors import FwtopError

_SLACK = 0.0005  # tolerance of exact shares: the clients' last packets
_MAX_NOTES = 8  # uncovered intervals listed one by one
# What each row should reach: beginning of its name, which of its figures counts, least, most
Target = tuple[str, Callable[[Sequence[float]], float], float, float]
_TARGETS: tuple[Target, ...] = (
    ("A1 the same, of sources that the sample can rank", fmean, 0.95, 1.0),
    ("A2 95 % intervals", fmean, 0.93, 0.97),
    ("A3 packets", max, 0.0, 0.005),
    ("A3 bytes", max, 0.0, 0.005),
    ("A3 ledger", max, 0.0, 0.005),
    ("A3 unexplained", max, 0.0, 0.005),
    ("A4 attacks named rightly", fmean, 0.95, 1.0),
    ("A4 false alarms", max, 0.0, 0.0),
)


def run(options: Options) -> Document:
    """Score fwtop's observations of captures."""
    if not options.captures:
        raise FwtopError("which captures? name FILE, or FILE=kind,kind; nothing was measured", 2)
    results, notes = judge([read_capture(argument) for argument in options.captures])
    return Document("accuracy", 1, tuple(results), (*against_targets(results), *notes))


def judge(cases: Sequence[Case]) -> tuple[list[Result], list[str]]:
    """Return the rows of the table, and a note for every miss."""
    results: list[Result] = []
    notes: list[str] = []
    for score in (_sources, _shares, _totals, _kinds):
        score(cases, results, notes)
    return results, notes


def against_targets(results: Iterable[Result], targets: Sequence[Target] = _TARGETS) -> list[str]:
    """Return a line for each row that has a target: what it is, and whether it is met."""
    lines = []
    for result in results:
        for beginning, chosen, least, most in targets:
            if result.name.startswith(beginning):
                figure = chosen(result.values)
                target = f"at least {least:g}" if least and most == 1 else f"{least:g} to {most:g}"
                met = "met" if least <= figure <= most else "missed"
                lines.append(f"{result.name}: target {target}, {met} by {figure:.4g}")
    return lines


def add(results: list[Result], name: str, unit: str, values: Iterable[float]) -> None:
    """Add a row, if there are figures for it."""
    if found := tuple(values):
        results.append(Result(name, unit, found))


def _sources(cases: Sequence[Case], results: list[Result], notes: list[str]) -> None:
    recalls: dict[str, list[float]] = {"strict": [], "sampled": []}
    for case in cases:
        shown = [row["key"] for row in case.observation["sources"]["address"]]
        strict = strict_recall(case.sources, shown)
        sampled = top_recall(case.sources, shown, case.one_in)
        for kind, recall in (("strict", strict), ("sampled", sampled)):
            if recall.wanted:
                recalls[kind].append(recall.found / recall.wanted)
        if sampled.found < 0.95 * sampled.wanted:
            lost = ", ".join(f"{key} ({case.sources[key]:,})" for key in sampled.missed[:4])
            notes.append(
                f"A1 {case.name}: {sampled.found} of {sampled.wanted} top sources shown; missed {lost}"
            )
    add(results, "A1 true top 20 sources among the first 20 shown", "share", recalls["strict"])
    add(results, "A1 the same, of sources that the sample can rank", "share", recalls["sampled"])


def _shares(cases: Sequence[Case], results: list[Result], notes: list[str]) -> None:
    every = [interval for case in cases for interval in case.intervals()]
    sampled = [interval for interval in every if not interval.is_exact]
    exact = [interval for interval in every if interval.is_exact]
    covered, right = coverage(sampled), coverage(exact, _SLACK)
    if covered is not None:
        add(results, f"A2 95 % intervals that cover the truth ({len(sampled):,} rows)", "share", [covered])
    if right is not None:
        add(results, f"A2 exact shares that are right ({len(exact):,} rows)", "share", [right])
    wrong = [one for one in sampled if not one.covers()] + [one for one in exact if not one.covers(_SLACK)]
    expected = round(0.05 * len(sampled))
    if len(wrong) > expected:
        wrong.sort(key=lambda one: -max(one.low - one.true, one.true - one.high))
        notes.append(f"A2: {len(wrong)} rows do not cover the truth, {expected} would be expected")
        notes.extend(
            f"A2 {one.name}: shown {one.low:.5f} to {one.high:.5f}, true {one.true:.5f}"
            for one in wrong[:_MAX_NOTES]
        )


def _totals(cases: Sequence[Case], results: list[Result], notes: list[str]) -> None:
    figures: dict[str, Callable[[Case], float]] = {
        "A3 packets against the sender's": lambda case: relative_difference(
            case.observation["totals"]["packets"], case.packets
        ),
        "A3 bytes against the sender's": lambda case: relative_difference(
            case.observation["totals"]["bytes"], case.bytes
        ),
        "A3 ledger against the sender's": lambda case: (
            relative_difference(case.ledger, case.packets) if case.observation["ledger"] else 0.0
        ),
        "A3 unexplained": lambda case: case.unexplained,
    }
    for name, figure in figures.items():
        add(results, name, "share", map(figure, cases))
        for case in cases:
            if (value := figure(case)) > 0.005:
                totals = case.observation["totals"]
                notes.append(
                    f"{name}: {case.name} is {value:.2%} off (sent {case.packets:,} packets, {case.bytes:,} "
                    f"bytes, shown {totals['packets']:,} and {totals['bytes']:,}, ledger {case.ledger:,})"
                )


def _kinds(cases: Sequence[Case], results: list[Result], notes: list[str]) -> None:
    known = [case for case in cases if case.kinds is not None]
    attacked = [case for case in known if case.kinds]
    clean = [case for case in known if not case.kinds]
    add(
        results, "A4 attacks named rightly", "share",
        [named_rightly(case.kinds or (), case.named_kinds) for case in attacked],
    )  # fmt: skip
    add(results, "A4 false alarms on clean traffic", "attacks", [len(case.named_kinds) for case in clean])
    for case in known:
        if set(case.kinds or ()) != set(case.named_kinds):
            said = ", ".join(
                f"{attack['kind']} ({attack['share']:.1%})" for attack in case.observation["attacks"]
            )
            wanted = ", ".join(case.kinds or ())
            notes.append(f"A4 {case.name}: expected {wanted or 'nothing'}, got {said or 'nothing'}")
    notes.extend(
        f"A4 {case.name}: said {', '.join(case.seen_kinds) or 'nothing'} (its contents were not given)"
        for case in cases
        if case.kinds is None
    )
