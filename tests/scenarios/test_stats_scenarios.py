"""Every stats_*.toml beside this file, sent through the parser and the engine."""

import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "unit"))

from frames import batch_of  # noqa: E402
from scenario_file import check, frames_of, load, tables_of  # noqa: E402

FILES = sorted(HERE.glob("stats_*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_tables_of_a_scenario_are_as_its_file_expects(path: Path) -> None:
    scenario = load(path)
    frames = frames_of(scenario)
    batch = batch_of(
        [frame for frame, _ in frames],
        hook=np.array([hook for _, hook in frames], np.uint8),
        weight=float(scenario.get("counters", {}).get("one_in", 1.0)),
    )
    tables = tables_of(scenario, batch)
    check(tables, scenario["expect"])
    for row in (*tables.payloads, *tables.sources.address, *tables.ports, *tables.sources.prefix):
        assert 0 <= row.share.share_low <= row.share.share <= row.share.share_high <= 1
    for payload in tables.payloads:
        assert payload.text.isprintable()


def test_there_are_scenarios() -> None:
    assert len(FILES) >= 8
