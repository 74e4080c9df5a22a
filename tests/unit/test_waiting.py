"""The line on the terminal while something is made ready."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from fwtop.kernel.waiting import waiting

ROOT = Path(__file__).parents[2]
SHOWN = """
import sys
from fwtop.kernel.waiting import waiting
with waiting("building a lab " + "of many words " * 20):
    assert sys.stdin.readline() == "go\\n"
print("done")
"""


def test_the_line_is_there_at_once_fits_and_is_gone_afterwards() -> None:
    above, below = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", SHOWN], stdin=subprocess.PIPE, stdout=below, env=environment
    ) as child:
        os.close(below)
        first = os.read(above, 1000).decode()
        assert child.stdin is not None
        child.stdin.write(b"go\n")
        child.stdin.close()
        rest = b""
        while b"done" not in rest:
            rest += os.read(above, 1000)
    os.close(above)
    line = first.removeprefix("\r\x1b[K")
    assert line.startswith(" | fwtop: 0.0 s  building a lab")
    assert len(line) == 79, "a line that wraps would not be taken away"
    assert "\r\x1b[Kdone" in rest.decode()


def test_no_terminal_gets_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    with waiting("building"):
        pass
    assert capsys.readouterr().out == ""
