"""Of a table marked `one_each`, `make test` loses no class; what may run again says why."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from itertools import product
from pathlib import Path

import pytest

from fwtop.model.paths import ROOT
from tests.tiers import FEW, MAY_PASS_ALONE, covering

HEAD = "import pytest\n"
TABLES = """
TABLE = pytest.mark.parametrize("kind", ["block", "limit", "tc"]), pytest.mark.parametrize("family", [4, 6])
@pytest.mark.one_each
@TABLE[0]
@TABLE[1]
def test_covered(kind, family): pass
@pytest.mark.one_each("6-tc", "4-limit")
@TABLE[0]
@TABLE[1]
def test_named(kind, family): pass
"""
OTHER = "def test_other(): assert False\n"
CROWD = """
@pytest.mark.kernel
@pytest.mark.parametrize("number", range({}))
def test_late(number): assert False
"""
SHARED = """
@pytest.fixture(scope="module")
def container(): assert False
@pytest.fixture(autouse=True)
def _booted(container): pass
"""


def test_each_value_of_each_parameter_is_in_some_case() -> None:
    table = [
        case for case in product(("block", "limit", "tc"), "46", ("nft", "legacy")) if case[:2] != ("tc", "6")
    ]
    chosen = [table[number] for number in covering(table)]
    assert len(chosen) == 3
    assert [set(values) for values in zip(*chosen, strict=True)] == [
        {"block", "limit", "tc"},
        {"4", "6"},
        {"nft", "legacy"},
    ]


def test_no_two_test_files_have_one_name() -> None:
    """Each tier alone would collect them, the matrix, which collects all, would not."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_each_kernel_test_says_that_it_is_one() -> None:
    """Without the mark it neither skips without root nor may run again alone."""
    files = (ROOT / "tests/kernel").glob("test_*.py")
    assert [path.name for path in files if "pytest.mark.kernel" not in path.read_text()] == []


def run(directory: Path, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run tests with the suite's own conftest."""
    (directory / "test_made.py").write_text(HEAD + text)
    (directory / "conftest.py").write_text("from tests.conftest import *\n")
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", f"{ROOT}/pyproject.toml"]
    argv += [f"--rootdir={directory}", str(directory), *words]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def test_the_other_cases_are_the_matrix_s(tmp_path: Path) -> None:
    done = run(tmp_path, TABLES, "-vv")
    ran = re.findall(r"::test_(\w+)\[(\S+)\] PASSED", done.stdout)
    assert done.returncode == 0, done.stdout
    assert {case for test, case in ran if test == "named"} == {"6-tc", "4-limit"}
    assert {case for test, case in ran if test == "covered"} == {"4-block", "6-limit", "4-tc"}


@pytest.mark.skipif(os.geteuid() != 0, reason="kernel tests need root")
@pytest.mark.parametrize(
    ("text", "status"),
    [
        (CROWD.format(FEW), MAY_PASS_ALONE),
        (CROWD.format(FEW + 1), pytest.ExitCode.TESTS_FAILED),
        (CROWD.format(1) + OTHER, pytest.ExitCode.TESTS_FAILED),
        (SHARED + CROWD.format(FEW + 1), MAY_PASS_ALONE),
    ],
    ids=["few", "many", "one beside another", "many without the one thing that they share"],
)
def test_a_few_kernel_tests_may_run_again_and_nothing_else(tmp_path: Path, text: str, status: int) -> None:
    done = run(tmp_path, text)
    assert done.returncode == status, done.stdout
    told = "MAY PASS ALONE test_made.py::test_late[0]: kernel tests wait"
    assert (told in done.stdout) == (status == MAY_PASS_ALONE)


def test_a_mark_that_is_wrong_ends_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, TABLES.replace("6-tc", "8-tc"))
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "one_each names ['8-tc']" in done.stdout + done.stderr
