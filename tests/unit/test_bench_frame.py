from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from fwtop.bench import frame
from fwtop.bench.frame import Document, Options, Row, measure, median_ratio, number, render
from fwtop.bench.picture import draw, short


def test_rows_alternate_and_ratios_are_taken_within_a_round() -> None:
    turns: list[str] = []
    base, fast = iter([10.0, 20.0, 40.0]), iter([20.0, 20.0, 120.0])

    def turn(name: str, value: float) -> float:
        turns.append(name)
        return value

    rows = [
        Row("base", "x/s", lambda: turn("base", next(base))),
        Row("fast", "x/s", lambda: turn("fast", next(fast)), "base", published=2.5),
    ]
    first, second = measure(rows, 3)
    assert turns == ["base", "fast"] * 3
    # Rounds' ratios are 2, 1 and 3; the ratio of medians would be 1.
    assert second.ratio == 2.0
    assert second.to_json() == {
        "name": "fast", "unit": "x/s", "median": 20.0, "low": 20.0, "high": 120.0, "ratio": 2.0,
        "versus": "base", "published_ratio": 2.5,
    }  # fmt: skip
    assert first.to_json()["ratio"] is None
    assert "published_ratio" not in first.to_json()


def test_a_row_without_its_reference_has_no_ratio() -> None:
    (only,) = measure([Row("tc", "pps", lambda: 5.0, "xdp")], 2)
    assert (only.ratio, only.versus) == (None, None)


def test_rounds_with_a_zero_reference_do_not_count() -> None:
    assert median_ratio([4.0, 9.0], [0.0, 3.0]) == 3.0
    assert median_ratio([4.0], [0.0]) is None


def test_warm_up_is_not_counted() -> None:
    values = iter([100.0, 1.0])
    (row,) = measure([Row("a", "s", lambda: next(values))], 1, warm=True)
    assert row.values == (1.0,)


def test_options_choose_rounds() -> None:
    assert Options().choose(5, 2) == 5
    assert Options(quick=True).choose(5, 2) == 2
    assert Options(rounds=7, quick=True).choose(5, 2) == 7


def test_the_json_document_has_its_fields_and_the_text_every_figure() -> None:
    results = measure([Row("a", "pps", lambda: 1234.5), Row("b", "pps", lambda: 617.25, "a")], 1)
    document = Document("t", 1, results, ("a note",), "a machine", "6.1")
    assert set(json.loads(json.dumps(document.to_json()))) == {
        "table", "machine", "kernel", "rounds", "rows", "notes",
    }  # fmt: skip
    text = render(document)
    assert all(word in text for word in ("a machine", "6.1", "1,234", "617.2", "0.5", "a note"))


def test_the_picture_is_well_formed_and_shows_every_row() -> None:
    results = measure([Row("raw <drop>", "pps", lambda: 1200.0), Row("fwtop block", "pps", lambda: 90.0)], 2)
    root = ElementTree.fromstring(draw(Document("ladder", 2, results, (), "a & b", "6.1")))  # noqa: S314
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"raw <drop>", "fwtop block", "1.2 k", "90", "a & b, kernel 6.1"} <= set(texts)
    dots = [float(dot.get("cx", "0")) for dot in root.iter("{http://www.w3.org/2000/svg}circle")]
    assert len(dots) == 2
    assert dots[0] > dots[1] > 0


def test_a_published_ratio_is_drawn_as_a_ring() -> None:
    rows = [Row("first", "s", lambda: 10.0), Row("other", "s", lambda: 100.0, "first", published=10.0)]
    root = ElementTree.fromstring(draw(Document("t", 1, measure(rows, 1))))  # noqa: S314
    dots = [(dot.get("cx"), dot.get("r")) for dot in root.iter("{http://www.w3.org/2000/svg}circle")]
    assert len(dots) == 4  # the legend's, both rows', and the ring under the second
    assert dots[2][0] == dots[3][0]
    assert short(1_520_000) == "1.52 M"
    assert (short(1e5), short(0.12345), short(999_600)) == ("100 k", "0.123", "1 M")


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (3.0, "3"), (0.12345, "0.1235"), (12345.6, "12,346")]
)
def test_figures_have_four_significant_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_the_machine_has_a_name() -> None:
    assert "CPUs" in frame.machine_name()
