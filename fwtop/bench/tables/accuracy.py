"""Accuracy of fwtop's observations (A1 to A6), on lab scenarios and captures, against independent counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from msgspec import Struct, field

from fwtop.bench.cases import (
    Case,
    coverage,
    matched,
    named_rightly,
    read_capture,
    relative_difference,
    run_scenario,
    strict_recall,
    top_recall,
)
from fwtop.bench.frame import Document, Options, Result, progress
from fwtop.bench.measured_harm import Harm, try_proposals
from fwtop.bench.tables.harm import missed
from fwtop.lab import scenario
from fwtop.lab.run import Lab
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_SECONDS, _QUICK_SECONDS = 6.0, 3.0
_MARGIN_SECONDS = 2.0  # calm before the flood and drain after it
_QUICK_FIRST = ("calm", "few_sources", "dns_amplification")
_QUICK_LIMIT_SECONDS = 35.0
_HARM_SCENARIOS = ("few_sources", "udp_flood", "dns_amplification")
_HARM_SECONDS = 4.0
_SLACK = 0.0005  # tolerance of exact shares: the clients' last packets
_MAX_NOTES = 8  # uncovered intervals listed one by one
# What each row should reach: beginning of its name, which of its figures counts, least, most
_TARGETS: tuple[tuple[str, Callable[[Sequence[float]], float], float, float], ...] = (
    ("A1 the same, of sources that the sample can rank", fmean, 0.95, 1.0),
    ("A2 95 % intervals", fmean, 0.93, 0.97),
    ("A3 packets", max, 0.0, 0.005),
    ("A3 bytes", max, 0.0, 0.005),
    ("A3 ledger", max, 0.0, 0.005),
    ("A3 unexplained", max, 0.0, 0.005),
    ("A4 attacks named rightly", fmean, 0.95, 1.0),
    ("A4 false alarms", max, 0.0, 0.0),
    ("A5 collateral", max, 0.0, 2.0),
    ("A6 attack packets", min, 0.95, 1.0),
    ("A6 clients' packets", max, 0.0, 0.005),
)
_CONSTANT = 0.9  # share of attack packets with a constant payload from which signatures are judged


class _Gathered(Struct):
    """Results so far."""

    cases: list[Case] = field(default_factory=list)
    harms: list[Harm] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def run(options: Options) -> Document:
    """Run all scenarios (those named; with `quick`, as many as fit) and score fwtop's observations."""
    every = scenario.names()
    chosen = [argument for argument in options.captures if argument in every]
    gathered = _Gathered([read_capture(argument) for argument in options.captures if argument not in every])
    _run_scenarios(chosen or every, options, gathered)
    progress("")
    results, notes = judge(gathered.cases, gathered.harms)
    if not results:
        raise FwtopError(f"nothing was measured; {'; '.join(gathered.left_out)}")
    return Document("accuracy", 1, tuple(results), (*against_targets(results), *gathered.left_out, *notes))


def _run_scenarios(names: list[str], options: Options, gathered: _Gathered) -> None:
    started = time.monotonic()
    if options.quick:
        names = sorted(names, key=lambda name: name not in _QUICK_FIRST)
    for number, name in enumerate(names, 1):
        if options.quick and time.monotonic() - started > _QUICK_LIMIT_SECONDS:
            gathered.left_out.append(f"left out of this quick run: {', '.join(names[number - 1 :])}")
            return
        progress(f"scenario {number} of {len(names)}: {name}")
        try:
            _run_scenario(name, options, gathered)
        except FwtopError as error:  # the others can still be measured
            gathered.left_out.append(f"left out: {name}: {safe_text(error)}")


def _run_scenario(name: str, options: Options, gathered: _Gathered) -> None:
    with Lab(name) as lab:
        seconds = _QUICK_SECONDS if options.quick else _SECONDS
        if lab.scenario.cycle:  # every phase must be observed once
            seconds = max(seconds, lab.scenario.cycle + _MARGIN_SECONDS)
        case = run_scenario(lab, seconds)
        gathered.cases.append(case)
        if name in _HARM_SCENARIOS and not options.quick:
            progress(f"harm of the proposals for {name}")
            gathered.harms.extend(try_proposals(lab, case.observation, _HARM_SECONDS))


def judge(cases: list[Case], harms: list[Harm]) -> tuple[list[Result], list[str]]:
    """Return the rows of the table, and a note for every miss."""
    results: list[Result] = []
    notes: list[str] = []
    for score in (_sources, _shares, _totals, _kinds, _signatures):
        score(cases, results, notes)
    _harm(harms, results, notes)
    return results, notes


def against_targets(results: Iterable[Result]) -> list[str]:
    """Return a line for each row that has a target: what it is, and whether it is met."""
    lines = []
    for result in results:
        for beginning, chosen, least, most in _TARGETS:
            if result.name.startswith(beginning):
                figure = chosen(result.values)
                target = f"at least {least:g}" if least and most == 1 else f"{least:g} to {most:g}"
                met = "met" if least <= figure <= most else "missed"
                lines.append(f"{result.name}: target {target}, {met} by {figure:.4g}")
    return lines


def _add(results: list[Result], name: str, unit: str, values: Iterable[float]) -> None:
    if found := tuple(values):
        results.append(Result(name, unit, found))


def _sources(cases: list[Case], results: list[Result], notes: list[str]) -> None:
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
    _add(results, "A1 true top 20 sources among the first 20 shown", "share", recalls["strict"])
    _add(results, "A1 the same, of sources that the sample can rank", "share", recalls["sampled"])


def _shares(cases: list[Case], results: list[Result], notes: list[str]) -> None:
    every = [interval for case in cases for interval in case.intervals()]
    sampled = [interval for interval in every if not interval.is_exact]
    exact = [interval for interval in every if interval.is_exact]
    covered, right = coverage(sampled), coverage(exact, _SLACK)
    if covered is not None:
        _add(results, f"A2 95 % intervals that cover the truth ({len(sampled):,} rows)", "share", [covered])
    if right is not None:
        _add(results, f"A2 exact shares that are right ({len(exact):,} rows)", "share", [right])
    wrong = [one for one in sampled if not one.covers()] + [one for one in exact if not one.covers(_SLACK)]
    expected = round(0.05 * len(sampled))
    if len(wrong) > expected:
        wrong.sort(key=lambda one: -max(one.low - one.true, one.true - one.high))
        notes.append(f"A2: {len(wrong)} rows do not cover the truth, {expected} would be expected")
        notes.extend(
            f"A2 {one.name}: shown {one.low:.5f} to {one.high:.5f}, true {one.true:.5f}"
            for one in wrong[:_MAX_NOTES]
        )


def _totals(cases: list[Case], results: list[Result], notes: list[str]) -> None:
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
        _add(results, name, "share", map(figure, cases))
        for case in cases:
            if (value := figure(case)) > 0.005:
                totals = case.observation["totals"]
                notes.append(
                    f"{name}: {case.name} is {value:.2%} off (sent {case.packets:,} packets, {case.bytes:,} "
                    f"bytes, shown {totals['packets']:,} and {totals['bytes']:,}, ledger {case.ledger:,})"
                )


def _kinds(cases: list[Case], results: list[Result], notes: list[str]) -> None:
    known = [case for case in cases if case.kinds is not None]
    attacked = [case for case in known if case.kinds]
    clean = [case for case in known if not case.kinds]
    _add(
        results, "A4 attacks named rightly", "share",
        [named_rightly(case.kinds or (), case.named_kinds) for case in attacked],
    )  # fmt: skip
    _add(results, "A4 false alarms on clean traffic", "attacks", [len(case.named_kinds) for case in clean])
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
    _attack_shares(attacked, results, notes)


def _attack_shares(cases: list[Case], results: list[Result], notes: list[str]) -> None:
    off = []
    for case in cases:
        for attack in case.observation["attacks"]:
            true = case.shares.get(attack["kind"])
            if true is None:
                continue
            off.append(abs(attack["share"] - true) * 100)
            if off[-1] > 2:
                notes.append(
                    f"A4 {case.name}: {attack['kind']} is {true:.1%} of the packets, "
                    f"shown as {attack['share']:.1%}"
                )
    _add(results, "A4 attacks' shares, difference", "points", off)


def _signatures(cases: list[Case], results: list[Result], notes: list[str]) -> None:
    hit, harmed = [], []
    for case in cases:
        attack = [packet.payload for packet in case.attack if not packet.later_fragment]
        constant = [signature for signature, _ in case.payloads if len(signature.data) >= 4]
        if not attack or matched(constant, attack) < _CONSTANT:
            continue
        stopped = matched(case.signatures, attack)
        harm = matched(case.signatures, [packet.payload for packet in case.legitimate])
        hit.append(stopped)
        harmed.append(harm)
        if stopped < 0.95 or harm > 0.005:
            given = "; ".join(f"{one.data.hex()} at {one.offset}" for one in case.signatures[:4]) or "none"
            notes.append(
                f"A6 {case.name}: signatures match {stopped:.1%} of the attack and {harm:.2%} of clients' "
                f"packets; shown {given}; sent {constant[0].data.hex()[:64]} at {constant[0].offset}"
            )
    _add(results, "A6 attack packets that the signatures match", "share", hit)
    _add(results, "A6 clients' packets that the signatures match", "share", harmed)


def _harm(harms: list[Harm], results: list[Result], notes: list[str]) -> None:
    _add(results, "A5 collateral, predicted against measured", "points", [harm.points for harm in harms])
    notes.extend(missed(harms))
