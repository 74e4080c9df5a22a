"""Scores of naming: precision, recall, false alarms and calibration, and their pictures."""

import math
import xml.etree.ElementTree as ET

import pytest

from benches.accuracy.naming import (
    NOTHING,
    ORDINARY,
    Scores,
    bins,
    draw,
    expected_calibration_error,
    judged,
)
from benches.accuracy.onsets import PATIENCE, Onset, onsets
from benches.accuracy.weighing import FoldWeights
from benches.corpus.cases import draw as draw_case
from benches.tables.naming import run
from fwtop.analysis.attacks import DECLARED
from fwtop.analysis.context import Finding
from fwtop.analysis.engine.weights import FITTED
from fwtop.bench.frame import Options


def test_a_flood_that_is_named_counts_for_its_kind() -> None:
    scores = Scores()
    outcome = judged(draw_case("lab: ntp_amplification", 0))
    scores.add(outcome)
    assert outcome.surprise == ""
    assert scores.confusion == {("ntp_amplification", "ntp_amplification"): 1}
    assert (scores.precision("ntp_amplification"), scores.recall("ntp_amplification")) == (1, 1)
    assert scores.macro_f1 == 1


def test_a_false_alarm_and_a_miss_are_counted(monkeypatch) -> None:
    calm, flood = draw_case("ordinary: browsing", 0), draw_case("lab: syn_flood", 0)

    def invent(context: object, *_: object) -> list[Finding]:
        import numpy as np

        return [Finding("udp_flood", "UDP flood", np.arange(20), 0.9, ())]

    monkeypatch.setattr("benches.accuracy.naming.find_attacks", invent)
    scores = Scores()
    scores.add(judged(calm))
    assert (scores.false_alarms, scores.alarmed, scores.quiet_windows) == (1, 1, 1)
    assert scores.confusion == {(ORDINARY, "udp_flood"): 1}
    monkeypatch.setattr("benches.accuracy.naming.find_attacks", lambda *_: [])
    scores.add(judged(flood))
    assert scores.confusion["syn_flood", NOTHING] == 1
    assert scores.recall("syn_flood") == 0
    assert "expected syn_flood, got nothing" in scores.surprises[-1]


def test_an_attack_named_twice_is_right_once(monkeypatch) -> None:
    case = draw_case("lab: syn_flood", 0)
    from fwtop.analysis.classify import find_attacks

    monkeypatch.setattr(
        "benches.accuracy.naming.find_attacks", lambda context, *_: find_attacks(context)[:1] * 2
    )
    outcome = judged(case)
    assert [one.right for one in outcome.named] == [True, False]
    assert outcome.false_alarms == 0


@pytest.mark.parametrize(
    ("stated", "error"),
    [([(0.9, True)] * 9 + [(0.9, False)], 0.0), ([(0.95, False)] * 4, 0.95), ([], 0.0)],
)
def test_the_calibration_error_is_the_gap_between_stated_and_true(stated, error) -> None:
    assert math.isclose(expected_calibration_error(stated), error, abs_tol=1e-9)


def test_confidences_are_grouped_by_tenths() -> None:
    found = bins([(0.05, False), (0.95, True), (1.0, True)])
    assert [(one.count, one.right) for one in found] == [(1, 0.0), (2, 1.0)]


def test_spoofing_is_asserted_and_compared_with_the_truth(monkeypatch) -> None:
    scores = Scores()
    for family in ("lab: esp_flood", "lab: ntp_amplification", "ordinary: browsing"):
        scores.add(judged(draw_case(family, 0)))
    assert (len(scores.spoofing), scores.forged) == (2, 1)
    assert (scores.asserted(forged=True), scores.asserted(forged=False)) == (1, 0)
    assert scores.spoofing_calibration_error < 0.05
    monkeypatch.setattr("benches.accuracy.naming._ASSERTED", 0.0)
    assert scores.asserted(forged=False) == 1


@pytest.mark.parametrize(
    ("family", "forged"),
    [
        ("lab: ntp_reflector", True),  # in the names of victims
        ("lab: ntp_amplification", False),
        ("tool: router_advertisements", True),  # from invented neighbours
        ("tool: game_queries", False),
    ],
)
def test_the_corpus_knows_whose_sources_are_forged(family: str, forged: bool) -> None:
    assert [attack.forged for attack in draw_case(family, 0).attacks] == [forged]


def test_the_picture_holds_every_kind_and_is_xml() -> None:
    scores = Scores()
    for family in ("lab: syn_flood", "lab: ntp_amplification", "ordinary: browsing"):
        scores.add(judged(draw_case(family, 0)))
    text = draw(scores)
    ET.fromstring(text)  # noqa: S314
    assert text.count(">ntp_amplification<") == 2  # a row and a column
    assert ">ordinary<" in text


def test_the_table_lists_kinds_totals_and_surprises(monkeypatch) -> None:
    monkeypatch.setattr(
        "benches.tables.naming.cases",
        lambda each, seed: iter([draw_case("lab: syn_flood", n, seed) for n in range(each)]),
    )
    begun = [Onset("syn_flood", 10, 0.1), Onset("gre_flood", 10, 2.5), Onset("gre_flood", 2, PATIENCE)]
    monkeypatch.setattr("benches.tables.naming.onsets", lambda *_: iter(begun))
    bare = FoldWeights(DECLARED, FITTED)
    monkeypatch.setattr("benches.tables.naming.fold_weights", lambda *_: {"lab: syn_flood": bare})
    document = run(Options(rounds=2, seed=2001))
    assert "seed 2001; each window judged by weights that were fitted without" in document.notes[0]
    names = [result.name for result in document.results]
    assert {"macro F1", "expected calibration error", "syn_flood: recall"} <= set(names)
    assert "weights in use: macro F1" in names
    assert {"spoofing: asserted wrongly", "spoofing: expected calibration error"} <= set(names)
    assert any(line.startswith("syn_flood") and line.split()[1] == "2" for line in document.lines)
    assert document.picture.startswith("<svg")
    assert {
        "gre_flood at 10 times normal: named after 2.5 s",
        "gre_flood at 2 times normal: not named",
    } <= set(document.notes)
    assert not any(note.startswith("syn_flood at") for note in document.notes)


def test_an_attack_that_begins_is_named_the_sooner_the_larger_it_is() -> None:
    ten, two, same = onsets(["dns_amplification"], 2001, (10, 2, 1))
    assert 0 < ten.seconds <= two.seconds < PATIENCE
    assert same.seconds == PATIENCE  # hardly a packet of the attack came


def test_what_nothing_handles_is_named_as_soon_as_the_kernel_refuses_it() -> None:
    ten, two = onsets(["unknown_flood"], 2001, (10, 2))
    assert 0 < ten.seconds <= 0.6
    assert two.seconds <= 5.0
