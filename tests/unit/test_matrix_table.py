"""A run of the matrix that was cut off goes on where it was; what has passed runs again with other code."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from fwtop.model.paths import ROOT


@pytest.fixture
def matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("matrix", ROOT / "scripts/matrix.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "CLONE", tmp_path)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "t")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "t@example.org")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return module


@pytest.fixture
def commit(tmp_path: Path) -> Callable[[str], None]:
    def change(name: str) -> None:
        (tmp_path / name).write_text("x")
        subprocess.run(["git", "add", name], cwd=tmp_path, check=True)
        subprocess.run(["git", "commit", "-qm", "x"], cwd=tmp_path, check=True)

    return change


def test_a_part_that_passed_runs_again_only_with_other_code(
    matrix: ModuleType, commit: Callable[[str], None], tmp_path: Path
) -> None:
    table, ran, healed = tmp_path / "t.md", tmp_path / "ran", tmp_path / "healed"
    first = f"echo first >> {ran}; echo '3 passed, 2 skipped in 0.5s'; echo 'SKIPPED [2] x.py:3: no | here'"
    # The row of the first is there before the second begins
    after = f"grep -q '^| first | passed' {table} && echo 'FAILED x.py::y'"
    second = f"echo second >> {ran}; {after}; test -e {healed}"
    parts = [matrix.Part(name, ["sh", "-c", text]) for name, text in (("first", first), ("second", second))]

    def runs() -> tuple[int, list[str]]:
        ran.write_text("")
        return matrix.run_all(parts, table), ran.read_text().split()

    commit("code.py")
    assert runs() == (1, ["first", "second"])
    rows = matrix.read(table)
    assert rows["first"].result == "passed: 3 passed, 2 skipped; SKIPPED [2] x.py:3: no ¦ here"
    assert rows["second"].result == "FAILED with status 1: ; FAILED x.py::y"
    healed.touch()
    assert runs() == (0, ["second"]), "what was cut off, or failed, and nothing else"
    commit("page.md")
    assert runs() == (0, [])
    commit("other.py")
    assert runs() == (0, ["first", "second"])
