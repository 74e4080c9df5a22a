"""The store inside the console's sandbox, by a clock that runs through every age that it knows."""

from __future__ import annotations

import ast
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from store_in_sandbox import TARGETS
from stored_sessions import sample_session

import fwtop.store

HERE = Path(__file__).resolve().parent
STORE = Path(fwtop.store.__file__).parent
EXECUTING = ("execute", "executemany", "executescript")
COUNT = "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?)"
LONG = 20_000  # rows


def long_session(state: Path) -> None:
    """Write a session that lasted for hours."""
    path = sample_session(state)
    with sqlite3.connect(path) as database:
        names = [row[1] for row in database.execute("PRAGMA table_info(tick)") if row[1] != "n"]
        copied = ", ".join("at + 120 * n.n" if name == "at" else name for name in names)
        database.execute(
            f"{COUNT} INSERT INTO tick({', '.join(names)}) SELECT {copied} FROM tick JOIN n",  # noqa: S608
            (LONG // 120,),
        )
    database.close()
    path.rename(state / "long.db")


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    state = tmp_path_factory.mktemp("state")
    long_session(state)
    done = subprocess.run(
        [sys.executable, HERE / "store_in_sandbox.py", state, "3"],
        env={**os.environ, "PYTHONPATH": f"{HERE.parents[1]}:{HERE}"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_age_is_crossed_with_a_screen_beside_the_recorder_and_nothing_is_lost(
    answer: dict[str, Any],
) -> None:
    assert answer["said"] == []
    assert answer["history"] == ""
    assert answer["baseline"]
    assert answer["limited"].startswith("not stored since ")
    read = answer["read"]
    attacks = read["attacks"] / len(TARGETS)
    assert attacks >= 4
    assert read["rules"] == [str(number + 1) for number in range(len(read["rules"]))]
    assert len(read["rules"]) in (attacks, attacks - 1)
    assert read["there"]
    assert read["marks"]
    assert read["trends"]


def test_long_sessions_are_read(answer: dict[str, Any]) -> None:
    assert answer["long"] == 120 * (LONG // 120 + 1)


def test_every_statement_of_the_store_was_made_in_the_sandbox(answer: dict[str, Any]) -> None:
    made = {(name, line) for name, line in answer["made"]}
    missing = []
    for path in sorted(STORE.glob("*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                    continue
                lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                if node.func.attr in EXECUTING and not any((path.name, line) in made for line in lines):
                    missing.append(f"{path.name}:{node.lineno} {function.name}")
    assert missing == []


def test_only_one_function_opens_databases() -> None:
    opening = [
        path.name for path in STORE.glob("*.py") if "sqlite3.connect(" in path.read_text(encoding="utf-8")
    ]
    assert opening == ["database.py"]
