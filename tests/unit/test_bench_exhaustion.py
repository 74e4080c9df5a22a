"""The setting of the whole machine that `bench exhaustion` changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HOLD = """
import sys
from pathlib import Path
from benches.tables import exhaustion
exhaustion._MOST = Path(sys.argv[1])
with exhaustion.room(2_000_000):
    print(exhaustion._MOST.read_text(), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize(("meanwhile", "left"), [(None, "262144"), ("300000", "300000")])
def test_the_maximum_is_given_back_even_when_the_bench_is_killed(
    tmp_path: Path, meanwhile: str | None, left: str
) -> None:
    most = tmp_path / "nf_conntrack_max"
    most.write_text("262144\n")
    held = [sys.executable, "-c", HOLD, str(most)]
    with subprocess.Popen(held, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as bench:
        assert bench.stdout is not None
        assert bench.stdout.readline() == "2000000\n"
        if meanwhile:
            most.write_text(meanwhile)
        bench.kill()
        assert bench.stdout.read() == ""  # until the child that gives it back has ended, too
    assert most.read_text().strip() == left
