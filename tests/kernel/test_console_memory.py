"""A console that runs out of its memory limit ends in one line; the server and its rules are as before."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.console_hog import SOURCE
from tests.kernel.whole import Tmux

pytestmark = pytest.mark.kernel
CLONE = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
from fwtop.cli import launcher, main
from fwtop.kernel.programs import module_argv
launcher.module_argv = lambda module, *words: module_argv("tests.kernel.console_hog", *words)
sys.exit(main.main(sys.argv[1:]))
"""


@pytest.fixture
def terminal(netns_pair: Any) -> Iterator[Tmux]:
    words = (
        sys.executable,
        "-c",
        PROGRAM,
        "watch",
        "--netns",
        netns_pair.victim.netns,
        "--no-store",
        "-i",
        "v0",
    )
    told = "echo ended with $?; stty -a; echo that was all; cat"
    command = f"cd {shlex.quote(str(CLONE))}; {shlex.join(words)}; {told}"
    made = Tmux(command, "memory")
    yield made
    made.kill()


def test_a_console_out_of_memory_ends_in_a_line_and_its_rule_goes(
    netns_pair: Any, terminal: Tmux, poll_until: Callable[..., Any]
) -> None:
    poll_until(lambda: SOURCE in netns_pair.victim.run("ipset", "save").stdout, 60)
    shown = terminal.wait_for("that was all")
    assert "fwtop: the console needed more memory than it may have (512 MiB)" in shown
    assert "ended with 1" in shown
    assert re.search(r"(?<!-)\bicanon\b", shown), "the terminal is as before"
    assert re.search(r"(?<!-)\becho\b", shown)
    assert len([line for line in shown.splitlines() if line.startswith("fwtop:")]) == 1
    poll_until(lambda: SOURCE not in netns_pair.victim.run("ipset", "save").stdout, 60)
