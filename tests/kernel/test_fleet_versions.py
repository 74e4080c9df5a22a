"""A fleet of two versions: a machine that was not upgraded goes on with what it understands, and says so."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet_lab import kept, rules, undo, until

from fwtop.client.program import connect
from fwtop.kernel.programs import ROOT
from fwtop.lab.fleet import SOURCES, FleetLab, Member

pytestmark = [pytest.mark.kernel, pytest.mark.matrix]
OLDER = "929d244d"  # whose newest schema is 2
PYTHON = os.environ.get("FWTOP_OLDER_PYTHON", sys.executable)  # of a venv of its own


class TwoVersions(FleetLab):
    """Two attacked machines; all programs of the second one are older."""

    def __init__(self, older: Path) -> None:
        super().__init__(lambda _: None, names=("web-1", "web-2"), attacked=2)
        self._older, self._who = older, ""

    def start_watcher(self, one: Member) -> None:
        self._who = one.name
        super().start_watcher(one)

    def start_node(self, one: Member) -> None:
        self._who = one.name
        super().start_node(one)

    def _program(self, argv: list[str]) -> subprocess.Popen[bytes]:
        if self._who == "web-2":
            argv = [PYTHON, *(str(self._older) if one == str(ROOT) else one for one in argv[1:])]
        return super()._program(argv)


@pytest.fixture
def older() -> Iterator[Path]:
    found = subprocess.run(["git", "archive", OLDER], cwd=ROOT, capture_output=True, check=False)
    if found.returncode:
        pytest.skip(f"this clone has no commit {OLDER}")
    with tempfile.TemporaryDirectory(prefix="fwtop-older-") as directory:
        subprocess.run(["tar", "x", "-C", directory], input=found.stdout, check=True)
        Path(directory).chmod(0o755)  # of its programs, some are others' than root's
        yield Path(directory)


def test_an_older_machine_takes_what_it_understands_and_says_unsupported_else(older: Path) -> None:
    with TwoVersions(older) as lab:
        lab.all_do(do="flood", on=True, pps=2_000, seconds=900)
        until(lambda: sum(one.attacked for one in lab.heard().values()) == 2)
        rollout = kept(lab, "block", SOURCES, "--group", "scan")  # both drop
        status, said = ended(lab, "group", "scan", "off")
        assert status == 0, said
        assert "refuses: web-2: the document has schema 3, fwtop here understands up to 2" in said
        assert "kept on 1 of 1 machines" in said
        assert [one["mode"] for one in modes(lab)] == ["off", "drop"]
        undo(lab, rollout)
        assert rules(lab) == [0, 0]


def ended(lab: FleetLab, *arguments: str) -> tuple[int, str]:
    """Run a roll-out, and return its exit status and what it said."""
    how = ("--on", "web", "--yes", "--measure", "1s", "--key", str(lab.key))
    process = lab.coordinator(*arguments, *how, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said, _ = process.communicate(timeout=120)
    return process.returncode, said.decode()


def modes(lab: FleetLab) -> list[dict[str, str]]:
    found = []
    for one in lab.machines:
        with connect(one.victim) as guardian:
            found += [row["rule"] for row in guardian.status()["rules"]]
    return found
