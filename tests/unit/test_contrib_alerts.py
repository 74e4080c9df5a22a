"""The alerts for Prometheus: valid, tested with promtool, and about metrics that there are."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "contrib/prometheus"


@pytest.mark.matrix  # set-up doesn't install twelve packages, 22 MB to be downloaded, for one test
def test_promtool_accepts_the_alerts_and_they_fire_when_they_should() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: apt install prometheus")
    for words in (("check", "rules", "fwtop.rules.yml"), ("test", "rules", "fwtop.test.yml")):
        done = subprocess.run(
            ["promtool", *words], cwd=ALERTS, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_are_about_metrics_and_states_of_the_documentation() -> None:
    text = (ALERTS / "fwtop.rules.yml").read_text()
    documented = (ROOT / "docs/MONITORING.md").read_text()
    metrics = set(re.findall(r"\bfwtop_\w+", text))
    assert len(metrics) > 8
    assert metrics <= set(re.findall(r"`(fwtop_\w+)`", documented))
    states = re.findall(r'state="(\w+)"', text)
    row = next(line for line in documented.splitlines() if "`fwtop_verdict`" in line)
    assert set(states) <= set(re.findall(r"`(\w+)`", row))
