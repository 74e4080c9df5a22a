"""What the processes load at their start, and the guardian's arguments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fwtop.guardian.failpoints import Failpoint
from fwtop.guardian.main import Options
from fwtop.kernel.programs import GUARDIAN_ENVIRONMENT
from fwtop.model.errors import FwtopError
from fwtop.model.paths import ROOT

_START = (
    "import atexit, runpy, sys; sys.path.insert(0, sys.argv.pop(1));"
    "atexit.register(lambda: print(*sys.modules));"
    "runpy.run_module('fwtop.guardian', run_name='__main__', alter_sys=True)"
)
# Large, and not needed to end a rule.
_TOO_LARGE = {"argparse", "asyncio", "email", "numpy", "pickle", "shutil", "tomllib", "unittest"}
# What only `why`, or rules that untrack services, need.
_NOT_WITHOUT_A_RULE = {
    "fwtop.guardian.diagnose.explain", "fwtop.guardian.mechanisms.chains.beside", "fwtop.netfilter.stateless",
}  # fmt: skip
# What the screen's libraries could bring with them, and what it wants only when somebody asks for it.
_NOT_FOR_A_SCREEN = {
    "http", "numpy.fft", "numpy.polynomial", "numpy.random", "prometheus_client", "pygments",
    "rich.markdown", "rich.traceback", "statistics", "unittest",
}  # fmt: skip
# What a recorder does without: screen, keys, players, a DNS server's playbook, automatic rules.
_NOT_FOR_A_RECORDER = _NOT_FOR_A_SCREEN | {
    "asyncio", "fwtop.console.feed", "fwtop.console.automatic.agent", "fwtop.console.controls",
    "fwtop.console.playback", "fwtop.report", "fwtop.resolver.advice",
    "fwtop.ui", "_hashlib", "isal", "ssl", "statistics", "subprocess", "textual",
}  # fmt: skip
_CONSOLE = (
    "import sys; sys.path.insert(0, sys.argv[1]); __import__(sys.argv[2])\n"
    "print(*(name for name, module in sys.modules.items() if module is not None))"
)


@pytest.mark.parametrize(
    ("entry", "used", "unused"),
    [
        ("fwtop.console.feed", "textual.app", _NOT_FOR_A_SCREEN),
        ("fwtop.console.headless", "fwtop.console.recorder", _NOT_FOR_A_RECORDER),
    ],
)
def test_no_module_is_loaded_for_a_console_that_it_does_not_use(
    entry: str, used: str, unused: set[str]
) -> None:
    argv = [sys.executable, "-I", "-c", _CONSOLE, str(ROOT), entry]
    loaded = set(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split())
    assert used in loaded
    assert not unused & loaded


def test_no_large_module_is_loaded_for_a_guardian() -> None:
    argv = [sys.executable, "-I", "-c", _START, str(ROOT), "--no-such-option"]
    done = subprocess.run(argv, capture_output=True, text=True, env=GUARDIAN_ENVIRONMENT, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "the guardian has no option '--no-such-option'; nothing was started\n",
    )
    assert "fwtop.guardian.rules.lifecycle" in done.stdout.split()
    assert not (_TOO_LARGE | _NOT_WITHOUT_A_RULE) & set(done.stdout.split())


def test_options_are_parsed_and_passed_on() -> None:
    options = Options.parse(["--netns-fd", "5", "--state-directory=/x", "--crash-at", "sets", "--build", "b"])
    assert (options.netns_fd, options.state_directory, options.crash_at) == (5, Path("/x"), Failpoint.SETS)
    again = Options.parse(options.same_state())
    assert (again.build, again.state_directory, again.netns_fd) == ("b", Path("/x"), -1)


@pytest.mark.parametrize(
    "words", [["--netns-fd", "x"], ["--crash-at", "never"], ["--state-directory"], ["x"]]
)
def test_options_that_make_no_sense_are_refused(words: list[str]) -> None:
    with pytest.raises(FwtopError, match="has no option"):
        Options.parse(words)


def test_a_program_starts_again_once_with_what_its_libraries_read_at_their_start() -> None:
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from fwtop.kernel.programs import GUARDIAN_ENVIRONMENT, restart_with\n"
        "print(os.getpid(), os.environ.get('MALLOC_ARENA_MAX'), sys.argv[2:], flush=True)\n"
        "restart_with(GUARDIAN_ENVIRONMENT)"
    )
    argv = [sys.executable, "-I", "-c", code, str(ROOT), "api", "--netns=blue"]
    done = subprocess.run(argv, env={}, capture_output=True, text=True, check=True, timeout=60)
    before, after = (line.split(" ", 2) for line in done.stdout.splitlines())
    assert (before[0], before[2]) == (after[0], after[2])
    assert (before[1], after[1]) == ("None", "1")
