"""Helpers to run `fwtop bench` and the developers' benches, and to check their JSON documents."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from fwtop.model.paths import ROOT

_DOCUMENT = {"table": str, "machine": str, "kernel": str, "rounds": int, "rows": list, "notes": list}
_ROW = {"name", "unit", "median", "low", "high", "ratio", "versus"}


USERS = [sys.executable, "-m", "fwtop", "bench"]
DEVELOPERS = [sys.executable, "-m", "benches"]


def run_bench(
    *words: str, command: Sequence[str] = USERS, timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *words],
        capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def document_of(*words: str, command: Sequence[str] = USERS) -> dict[str, Any]:
    done = run_bench(*words, command=command)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def check_form(document: dict[str, Any], table: str) -> None:
    assert {key: type(value) for key, value in document.items()} == _DOCUMENT
    assert document["table"] == table
    names = [row["name"] for row in document["rows"]]
    assert len(names) == len(set(names)) > 1
    for row in document["rows"]:
        assert set(row) - {"published_ratio"} == _ROW
        assert 0 < row["low"] <= row["median"] <= row["high"]
        assert (row["ratio"] is None) == (row["versus"] is None)
        assert row["versus"] is None or row["versus"] in names
