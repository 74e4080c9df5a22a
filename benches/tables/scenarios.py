"""Accuracy of fwtop's observations (A1 to A6) of the lab's scenarios, against what was sent."""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec import Struct, field

from benches.accuracy.scenarios import Played, matched, run_scenario, try_proposals
from fwtop.bench.frame import Document, Options, Result, progress
from fwtop.bench.measured_harm import Harm
from fwtop.bench.tables.accuracy import Target, add, against_targets, judge
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
TARGETS: tuple[Target, ...] = (
    ("A5 collateral", max, 0.0, 2.0),
    ("A6 attack packets", min, 0.95, 1.0),
    ("A6 clients' packets", max, 0.0, 0.005),
)
_CONSTANT = 0.9  # share of attack packets with a constant payload from which signatures are judged


class _Gathered(Struct):
    """Results so far."""

    cases: list[Played] = field(default_factory=list)
    harms: list[Harm] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def run(options: Options) -> Document:
    """Run all scenarios (those named; with `quick`, as many as fit) and score fwtop's observations."""
    gathered = _Gathered()
    _run_scenarios([*options.captures] or [*scenario.names()], options, gathered)
    progress("")
    results, notes = judge(gathered.cases)
    if not results:
        raise FwtopError(f"nothing was measured; {'; '.join(gathered.left_out)}")
    _attack_shares(gathered.cases, results, notes)
    _signatures(gathered.cases, results, notes)
    add(
        results, "A5 collateral, predicted against measured", "points", [one.points for one in gathered.harms]
    )
    told = [*against_targets(results), *against_targets(results, TARGETS), *gathered.left_out]
    return Document("scenarios", 1, tuple(results), (*told, *notes, *missed(gathered.harms)))


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


def _attack_shares(cases: Sequence[Played], results: list[Result], notes: list[str]) -> None:
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
    add(results, "A4 attacks' shares, difference", "points", off)


def _signatures(cases: Sequence[Played], results: list[Result], notes: list[str]) -> None:
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
    add(results, "A6 attack packets that the signatures match", "share", hit)
    add(results, "A6 clients' packets that the signatures match", "share", harmed)
