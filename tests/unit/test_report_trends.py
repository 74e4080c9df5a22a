"""The report's section on the days before, in every format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from stored_samples import POISON, session_ticks
from stored_sessions import sample_session

from fwtop.console.recorder import Recorder
from fwtop.model.traffic.session import SessionRecord, TrendGroup, Trends
from fwtop.model.traffic.snapshot import Origin
from fwtop.report import render
from fwtop.store.reader import load_session
from fwtop.store.trends import read_trends, session_trends
from tests.conftest import HISTORY_ENDS


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> SessionRecord:
    return load_session(sample_session(tmp_path_factory.mktemp("state")))


@pytest.fixture(scope="module")
def trends(made_history: Path) -> Trends:
    return read_trends(made_history, HISTORY_ENDS)


def test_every_format_has_the_section(record: SessionRecord, trends: Trends) -> None:
    html, markdown = (render(record, name, trends=trends) for name in ("html", "md"))
    for text in (html, markdown):
        assert "The days before" in text
        assert "synthetic data" in text
        assert "Example Access BV" in text
        assert "Amsterdam, NL" in text
    data = json.loads(render(record, "json", trends=trends))["trends"]
    assert data["countries"][0]["last_hour_pps"] == pytest.approx(trends.group("country")[0].hour, abs=0.001)
    assert len(data["traffic"][0]["trend_15d_pps"]) == 360
    assert html.count("<svg") > 40
    assert len(html) < 400_000


def test_without_a_history_there_is_no_section(record: SessionRecord) -> None:
    assert session_trends(record.info) is None
    for name in ("html", "md"):
        assert "The days before" not in render(record, name)
    assert json.loads(render(record, "json"))["trends"] is None


def test_hostile_names_stay_text(record: SessionRecord, trends: Trends) -> None:
    groups = tuple(
        TrendGroup(group.kind, tuple(replace(row, key=POISON, label=POISON) for row in group.rows))
        for group in trends.groups
    )
    hostile = replace(trends, groups=groups, note=POISON, interfaces=(POISON,), netns=POISON)
    html = render(record, "html", trends=hostile)
    assert "<img" not in html
    assert "</script>" not in html
    markdown = render(record, "md", trends=hostile)
    section = markdown[markdown.index("## The days before") : markdown.index("## What happened")]
    assert "<img" not in section.replace("\\<img", "")
    assert not any(char in section for char in "\x1b\u202e\r")
    table = [line for line in section.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in table} == {7}


def test_a_recording_s_report_tells_of_its_own_history(tmp_path: Path) -> None:
    recorder = Recorder("web-1", Origin("live", ("eth0",)), tmp_path)
    for tick in session_ticks(150):
        recorder.write(tick)
    path = recorder.path
    assert path is not None
    recorder.close(clean=True)
    found = session_trends(load_session(path).info)
    assert found is not None
    assert found.interfaces == ("eth0",)
    arrived = found.group("traffic")[0].hour
    assert arrived is not None
    assert 9_000 < arrived < 200_000
