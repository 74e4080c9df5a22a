"""Outputs that a change may touch without meaning to are as they were (tests/golden/files)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from capture_files import CAPTURES

from tests.golden import printed, snapshots
from tests.golden.kept import FILES, check

NAMES = sorted(path.name.removesuffix(".json") for path in (FILES / "read").glob("*.json"))


@pytest.fixture(autouse=True)
def _fixed_salt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of equal weight come in the order of hashes that nobody can foresee (stats/sums.py)."""
    monkeypatch.setattr("fwtop.stats.sums._SALT", np.uint64(1))


def test_help_of_every_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    check("help", printed.helps(monkeypatch))


def test_observations_of_the_labs_scenarios() -> None:
    check("snapshot", snapshots.snapshots())


def test_reports_and_bundle_of_a_session(tmp_path: Path) -> None:
    check("report", printed.reports(tmp_path))


def test_exports_of_a_policy() -> None:
    check("policy", printed.exports())


@pytest.mark.parametrize("name", NAMES or sorted(path.name for path in CAPTURES.glob("*.pcap*")))
def test_reading_a_capture(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (CAPTURES / name).is_file():
        pytest.skip(f"{CAPTURES / name} is not on this machine (FWTOP_CAPTURES names another directory)")
    check("read", printed.captured(CAPTURES / name, monkeypatch), whole=False)
