"""The lab day: its scenario is one, and a faster clock changes times but no rate."""

from __future__ import annotations

import sqlite3
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from stored_sessions import sample_session

import fwtop.store.database
from benches.lab_day import FULL, QUICK, Plan, scenario_text
from benches.tables.day import accelerate_confined, denied
from fwtop.lab.scenario import parse
from fwtop.model.errors import FwtopError
from fwtop.report.summary import digest
from fwtop.store.reader import load_session
from fwtop.store.trends import session_trends

FACTOR = 75.0


@pytest.mark.parametrize("plan", [FULL, QUICK])
def test_the_pulses_come_one_by_one_and_then_all_vectors_at_once(plan: Plan) -> None:
    scenario = parse(scenario_text(plan), "day")
    *pulses, _, _, _ = scenario.vectors
    edges = [edge * scenario.cycle for vector in pulses for edge in vector.active]
    assert edges == pytest.approx(
        [plan.pulse * (number // 2 + number % 2) for number in range(len(edges))], abs=0.01
    )
    assert {vector.active[1] for vector in scenario.vectors[-3:]} == {1.0}


def test_a_faster_clock_keeps_rates_and_stretches_time(open_path: Path) -> None:
    path = readable_session(open_path)
    live = load_session(path)
    fast = load_session(accelerate_confined(path, open_path / "fast", FACTOR))
    gaps = [after.at - before.at for before, after in pairwise(fast.ticks)]
    assert max(gaps) == pytest.approx(56.0, abs=4.0)  # longer ones would not count as observed
    assert len(fast.ticks) > len(live.ticks)
    assert fast.info.seconds == pytest.approx(FACTOR * live.info.seconds, rel=0.01)
    told, before = digest(fast), digest(live)
    assert told.sums.packets == pytest.approx(FACTOR * before.sums.packets, rel=0.01)
    assert told.protection.packets == pytest.approx(FACTOR * before.protection.packets, rel=0.01)
    assert told.sums.peak_pps == before.sums.peak_pps
    assert told.effects[0].packets == before.effects[0].packets
    trends = session_trends(fast.info)
    assert trends is not None
    (arrived,) = [row for row in trends.group("traffic") if row.key == "arrived"]
    assert arrived.day == pytest.approx(told.sums.packets / fast.info.seconds, rel=0.01)
    assert (denied(live, before), denied(fast, told)) == ([], [])


class Spilling(sqlite3.Connection):
    """As the store's connections were: what does not fit SQLite's memory goes into temporary files."""

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:  # type: ignore[override]
        known = "temp_store" in sql or "secure_delete" in sql
        return super().execute("SELECT 1" if known else sql, *values)


def readable_session(place: Path) -> Path:
    """Write a session that the console's user can read, and a directory for the faster one."""
    path = sample_session(place)
    path.parent.chmod(0o755)
    path.chmod(0o644)
    (place / "fast").mkdir()
    return path


@pytest.mark.matrix  # that the test above can fail
def test_the_faster_day_shows_what_the_sandbox_refuses(
    open_path: Path, root_required: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = SimpleNamespace(**vars(sqlite3) | {"connect": partial(sqlite3.connect, factory=Spilling)})
    path = readable_session(open_path)
    monkeypatch.setattr(fwtop.store.database, "sqlite3", module)
    with pytest.raises(FwtopError, match=r"not thinned out since .*: unable to open database file"):
        accelerate_confined(path, open_path / "fast", FACTOR)
