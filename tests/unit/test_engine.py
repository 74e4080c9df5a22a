"""The engine of judgement: explanations compete, their order means nothing, and the page lists them all."""

from __future__ import annotations

import gc
import io
import json
import os
import random
import re
import string
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
from analysis_factory import make_frames
from capture_files import pcap

from benches.accuracy.naming import judged
from benches.corpus.cases import LabelledWindow, draw
from fwtop.analysis.attacks import DECLARED, HYPOTHESES, NOTHING_UNUSUAL
from fwtop.analysis.classify import find_attacks
from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.context import AnalysisContext, make_context
from fwtop.analysis.engine.compete import compete, print_explanations
from fwtop.analysis.engine.entries import (
    FEATURES,
    Cut,
    Feature,
    Group,
    Hypothesis,
    Proof,
    Says,
    in_words,
)
from fwtop.analysis.engine.weights import WEIGHTS_FILE, FittedWeights
from fwtop.analysis.measures.general import rate, sources
from fwtop.lab.scenario import DIRECTORY as LAB

ROOT = Path(__file__).parents[2]
MARK = "\n## Groups and hypotheses\n"
CASES = ("mixture of attacks", "lab: dns_random_subdomain", "tool: syn_with_resets", "tool: one_page")


def context_of(case: LabelledWindow) -> AnalysisContext:
    return make_context(case.window, AdviseConfig(), case.baseline)


@pytest.mark.one_each("mixture of attacks", "tool: one_page")
@pytest.mark.parametrize("family", CASES)
def test_the_order_of_declaration_changes_nothing(family: str) -> None:
    """Many mixtures, because attacks that contest packets are what an order could decide."""
    for number in range(4 if family.startswith("mixture") else 1):
        case = draw(family, number)
        wanted = _told(case, HYPOTHESES)
        assert wanted
        for seed in range(3):
            shuffled = random.Random(seed).sample(HYPOTHESES, len(HYPOTHESES))
            assert _told(case, shuffled) == wanted


def _told(case: LabelledWindow, hypotheses: object) -> list[tuple[object, ...]]:
    found = find_attacks(context_of(case), hypotheses)
    return [(one.kind, one.title, one.confidence, one.evidence, one.rows.tolist()) for one in found]


def test_of_two_that_contest_packets_the_likelier_takes_them_and_the_other_is_judged_on_what_is_left() -> (
    None
):
    def half(context: AnalysisContext):  # type: ignore[no-untyped-def]
        yield Group(context, context.features(np.flatnonzero(context.unclaimed)[: len(context.traffic) // 2]))

    def every(context: AnalysisContext):  # type: ignore[no-untyped-def]
        yield Group(context, context.features(context.unclaimed))

    for more, less in ((3.0, 1.0), (1.0, 3.0)):
        one = Hypothesis("one", Cut(half, Proof.VOLUME), more, kind="one")
        other = Hypothesis("other", Cut(every, Proof.VOLUME), less, kind="other")
        context = context_of(draw("lab: syn_flood", 1))
        found = find_attacks(context, (NOTHING_UNUSUAL, other, one))
        n = len(context.traffic)
        assert {finding.kind: len(finding.rows) for finding in found} == (
            {"one": n // 2, "other": n - n // 2} if more > less else {"other": n}
        )


def group(**values: float) -> Group:
    """Make a group whose features are known."""
    context = context_of(draw("lab: syn_flood", 1))
    made = Group(context, context.features(context.unclaimed), cut="all")
    made.values = {FEATURES[name]: value for name, value in values.items()}
    return made


@pytest.mark.parametrize(
    ("says", "value", "odds"),
    [
        (rate.above(10, 2.0), 10, 0.0),
        (rate.above(10, 2.0), 10.1, 2.0),
        (rate.says(10, -1.0, 10, 0.0), 10, -1.0),
        (rate.says(10, -1.0, 10, 0.0), 10.1, 0.0),
        (rate.if_so(3.0), 1, 3.0),
        (rate.says(0, 0, 10, 5), 4, 2.0),
        (rate.says(0, 0, 10, 5), 40, 5.0),
    ],
)
def test_evidence_says_steps_and_slopes(says: Says, value: float, odds: float) -> None:
    assert says.about(group(rate=value)) == pytest.approx(odds)


def test_needs_rule_out_and_the_rest_share_the_probability_by_their_odds() -> None:
    attack = Hypothesis("attack", None, 0.0, kind="x", needs=(rate.at_least(5), sources.no))
    calm = Hypothesis("calm", None, np.log(3), needs=(rate.at_most(50),))
    entries = (NOTHING_UNUSUAL, attack, calm)
    both = compete(group(rate=9.0, sources=0.0), entries)
    assert [(one.name, round(share, 3)) for one, share in both.ranked] == [
        ("calm", 0.6), ("attack", 0.2), ("nothing unusual", 0.2),
    ]  # fmt: skip
    assert not both.is_attack
    assert compete(group(rate=4.0, sources=0.0), entries).attack == 0
    assert compete(group(rate=9.0, sources=2.0), entries).attack == 0


def test_the_registry_is_complete() -> None:
    """Everything has a name of its own, attacks say what they are about and what stops them."""
    names = [(one.of and one.of.name, one.name) for one in HYPOTHESES]
    assert len(set(names)) == len(names)
    for one in HYPOTHESES:
        assert not one.kind or one.lead or one.details, f"{one.name} has nothing to say"
        assert bool(one.kind) == bool(one.stopped_by), one.name
        assert one.kind or not (one.title or one.lead), f"{one.name} is ordinary: nobody reads its sentences"
        assert not one.kind or one.settles is None, one.name
    kinds = {one.kind: one.traits for one in HYPOTHESES}
    assert all(kinds[one.kind] == one.traits for one in HYPOTHESES), "of one kind all have the same traits"
    for one in FEATURES.values():
        assert one.unit, one.name
        assert one.meaning.endswith("."), one.name
    assert len({one.of.name for one in HYPOTHESES if one.of}) == len({one.of for one in HYPOTHESES if one.of})


def test_the_weights_belong_to_entries_and_features_that_exist() -> None:
    """An entry that was renamed would lose what the corpus taught it: run 'python -m benches fit'."""
    fitted = FittedWeights.parsed(WEIGHTS_FILE.read_text())
    entries = {one.key: {says.feature.name for says in one.evidence} for one in DECLARED}
    assert set(fitted.shifts) <= set(entries)
    assert all(set(factors) <= entries[key] for key, factors in fitted.factors.items())


def test_a_judged_window_goes_without_the_garbage_collector() -> None:
    """Which seldom comes by: in a flood each window holds several megabytes of packets."""
    context = context_of(draw("tool: syn_with_resets", 1))
    gc.collect()
    gc.disable()
    try:
        find_attacks(context)
        judged = weakref.ref(context)
        assert context.findings
        del context
        assert judged() is None
    finally:
        gc.enable()


def test_explanations_name_rivals_and_what_is_impossible() -> None:
    context = context_of(draw("tool: syn_with_resets", 1))
    context.explains = True
    find_attacks(context)
    out = io.StringIO()
    print_explanations(context.explained, out)
    text = out.getvalue()
    for words in ("unanswered SYNs: ", "  SYN flood [syn_flood]\n", "log-odds: ", "   ruled out: "):
        assert words in text
    assert "required: threshold ratio at least 1" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    attack = text[text.index("unanswered SYNs: ") :].partition("\n\n")[0]
    words = "ruled out: attempts of a few hosts at many closed ports; it requires same port at most 0.1"
    assert words in " ".join(attack.split())


@pytest.mark.parametrize("family", ["ordinary: telemetry", "ordinary: game_server", "tool: game_queries"])
def test_a_group_is_explained_once(family: str) -> None:
    """Also where no packet of it belongs to a conversation, without which it is looked at again."""
    context = context_of(draw(family, 1))
    context.explains = True
    find_attacks(context)
    groups = [(one.group.cut, one.group.packets.rows.tobytes()) for one in context.explained]
    assert groups
    assert len(set(groups)) == len(groups)


def test_the_verb_explains_a_capture_and_prints_no_json(tmp_path: Path) -> None:
    frames = make_frames([{"protocol": "udp", "count": 900, "dport": 9}], 2.0)
    file = tmp_path / "a.pcap"
    file.write_bytes(pcap([(10**18 + int(at * 1e9), data, len(data)) for at, data in frames]))
    words = [sys.executable, "-m", "fwtop", "read", str(file), "--explain"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=60, check=True)
    assert done.stdout.startswith("datagrams: 900 packets (100 %)")
    assert "  UDP flood [udp_flood]\n" in done.stdout
    both = subprocess.run(
        [*words, "--json"], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )
    assert (both.returncode, json.loads(both.stdout)["ok"]) == (1, False)
    assert both.stderr.startswith("fwtop: --explain prints text; leave out --json")


def _fields(template: str) -> set[str]:
    parts = list(string.Formatter().parse(template))
    return {name for _, name, _, _ in parts if name} | {
        inner for _, _, spec, _ in parts if spec for inner in _fields(spec)
    }


def listing() -> str:
    """Return the generated part of docs/HYPOTHESES.md."""
    lines = [MARK]
    cuts = {one.of for one in HYPOTHESES if one.of is not None}
    for cut in sorted(cuts, key=lambda one: (one.proof, one.name)):
        lines += [
            f"### {in_words(cut.name)[0].upper()}{in_words(cut.name)[1:]}",
            "",
            f"{cut.meaning} Proof: {cut.proof.name.lower()}.",
            "",
        ]
        for one in sorted(
            (one for one in HYPOTHESES if one.of is cut), key=lambda one: (not one.kind, one.name)
        ):
            lines += _entry(one)
        lines.append("")
    lines += ["## Features", "", "| feature | unit | meaning |", "|---|---|---|"]
    lines += [f"| {one.words} | {one.unit} | {one.meaning} |" for _, one in sorted(FEATURES.items())]
    return "\n".join(lines) + "\n"


def _entry(one: Hypothesis) -> list[str]:
    what = f" `{one.kind}`" if one.kind else " (ordinary)"
    prior = "proof" if one.proven else f"prior {one.prior:+g}"
    lines = [f"- **{one.name}**{what}, {prior}"]
    if one.needs:
        lines.append(f"  - requires {', '.join(need.words for need in one.needs)}")
    if one.evidence:
        lines.append(f"  - {'; '.join(map(_says, one.evidence))}")
    if one.stopped_by:
        lines.append(f"  - stopped by {one.stopped_by}")
    if one.settings:
        lines.append(f"  - settings: {'; '.join(f'`{line}`' for line in one.settings)}")
    if one.settles is not None:
        when = f" if {', '.join(need.words for need in one.settles)}" if one.settles else ""
        lines.append(f"  - no weaker proof takes these packets{when}")
    return lines


def _says(one: Says) -> str:
    name = one.feature.words
    if one.low != one.high:
        return f"{name} from {one.at_low:+g} at {one.low:g} to {one.at_high:+g} at {one.high:g}"
    if one.feature.unit == "yes or no":
        return f"{name} {one.at_high:+g}" if one.at_high else f"not {name} {one.at_low:+g}"
    return (
        f"{name} above {one.high:g} {one.at_high:+g}"
        if one.at_high
        else f"{name} up to {one.low:g} {one.at_low:+g}"
    )


def test_the_example_on_the_page_is_the_program_itself() -> None:
    text = (ROOT / "docs/HYPOTHESES.md").read_text().partition("## How to add a class")[2].partition(MARK)[0]
    analysis = ROOT / "fwtop/analysis"
    files = (*analysis.glob("attacks/*.py"), *analysis.glob("measures/*.py"), *LAB.glob("*.toml"))
    lines = {line.strip() for file in files for line in file.read_text().splitlines()}
    blocks = re.findall(r"```(?:python|text|toml)\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        assert {line.strip() for line in block.splitlines()} <= lines


def test_the_page_lists_every_group_hypothesis_and_feature() -> None:
    page = ROOT / "docs/HYPOTHESES.md"
    text = page.read_text().partition(MARK)[0] + listing()
    if os.environ.get("FWTOP_WRITE_DOCS"):
        page.write_text(text)
    assert page.read_text() == text, "run with FWTOP_WRITE_DOCS=1"


def test_every_feature_is_used_by_a_hypothesis_or_a_sentence() -> None:
    used: set[str] = set()
    for one in HYPOTHESES:
        used |= {need.feature.name for need in (*one.needs, *(one.settles or ()))} | {
            says.feature.name for says in one.evidence
        }
        used |= {one.bearable.name} if one.bearable is not None else set()
        lead = (one.lead,) if isinstance(one.lead, str) else one.lead
        used |= set().union(*map(_fields, (*lead, *(says.sentence for says in one.evidence)))) & set(FEATURES)
    inner = {"encrypted", "unseen"}  # features of features
    assert set(FEATURES) - used - inner == set()
    assert all(isinstance(one, Feature) for one in FEATURES.values())


@pytest.mark.one_each("tool: tls_handshakes")
@pytest.mark.parametrize("family", [
    "tool: empty_connections", "tool: tls_handshakes", "tool: dns_questions", "tool: junk_to_dns",
    "lab: carpet_bombing", "lab: syn_flood_one_window",
])  # fmt: skip
def test_what_thin_samples_and_busy_neighbours_hide_is_named_on_other_seeds(family: str) -> None:
    """One miss in ten is the most; nothing beside the attack is called one."""
    outcomes = [judged(draw(family, number, seed=2024)) for number in range(10)]
    met = [name == attack.kind for outcome in outcomes for attack, name in outcome.met]
    assert sum(met) >= 0.9 * len(met) > 0
    assert sum(outcome.false_alarms for outcome in outcomes) <= 1


@pytest.mark.parametrize("family", ["ordinary: proxied", "ordinary: own_scan", "ordinary: resolving"])
def test_what_resembles_a_flood_is_ordinary_on_other_seeds(family: str) -> None:
    assert [judged(draw(family, number, seed=2024)).named for number in range(3)] == [()] * 3


def test_a_flood_of_one_service_is_no_smaller_for_what_others_usually_receive() -> None:
    case = draw("ordinary: wireguard", 0, seed=1)
    assert case.baseline.ready
    context = context_of(case)
    mine = context.features(context.udp)
    whole = context.baseline.rate("udp")
    assert whole is not None
    assert context.prominence(mine, floor_pps=1.0, normal="udp") == pytest.approx(
        mine.peak_pps / (4 * whole), rel=0.1
    )
    context.baseline.rows.dport[:] = 9
    context.baseline.rows.sport[:] = 9
    context.baseline.rows.src_lo[:] = 9
    context = context_of(case)  # whose services it finds anew
    assert context.prominence(mine, floor_pps=100.0, normal="udp") > 1


def test_a_capture_of_nothing_known_is_said_to_hold_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    print_explanations([])
    assert capsys.readouterr().out == "no packets that any hypothesis is about\n"
