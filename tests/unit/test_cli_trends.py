"""`fwtop trends`, as a person types it, and the synthetic history."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from stored_samples import POISON
from test_cli_stored import HERE, fwtop

DOCUMENT = (HERE.parents[1] / "docs/JSON.md").read_text()


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("history") / "made"
    argv = [sys.executable, "-m", "benches.history", directory]
    done = subprocess.run(argv, cwd=HERE.parents[1], capture_output=True, text=True, check=True)
    assert done.stdout == f"{directory}/history.db\n"
    return directory


def test_trends_fit_a_terminal_of_80_columns(stored: Path) -> None:
    done = fwtop("trends", "--directory", stored)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("synthetic0, 2")
    counted = re.fullmatch(
        r"last hour: ([\d,]+) packets, ([\d,]+) to service addresses, ([\d,]+) to dark addresses", lines[2]
    )
    assert counted is not None, lines[2]
    whole, service, dark = (int(text.replace(",", "")) for text in counted.groups())
    assert whole == pytest.approx(service + dark, rel=0.01)
    assert lines[3].startswith("synthetic data")
    tables = [line for line in lines[4:] if line]
    assert max(map(len, tables)) == len(tables[0].split("15 days")[0]) + 15 <= 95
    heads = [line.split("  ")[0] for line in lines if "last hour  24 hours" in line]
    assert heads[0] == "Traffic"
    assert len(heads) == 7 + 2 * 4
    assert any(line.startswith("AS64496 Example Access BV") for line in lines)


def test_every_field_of_the_json_is_in_the_document(stored: Path) -> None:
    done = fwtop("trends", "--json", "--directory", stored, "-i", "synthetic0")
    assert (done.returncode, done.stderr) == (0, "")
    data = json.loads(done.stdout)
    part = DOCUMENT[DOCUMENT.index("- `trends`") : DOCUMENT.index("- `bench`: `table`")]
    named = set(re.findall(r"`(\w+)`", part))
    found = {*data, *data["observed_seconds"], *data["countries"][0]} - {"schema"}
    assert found <= named
    ends = {row["key"] for row in data["traffic"]}
    assert named == found | ends | {"trends"}
    row = data["traffic"][0]
    assert (len(row["trend_24h_pps"]), len(row["trend_15d_pps"])) == (24, 360)
    assert row["trend_15d_pps"][-24:] == row["trend_24h_pps"]
    seconds = data["observed_seconds"]["last_hour"]
    assert row["last_hour_packets"] == pytest.approx(row["last_hour_pps"] * seconds, rel=0.001)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--directory", "/nonexistent"), "no history is stored in /nonexistent/history.db yet"),
        (("-i", "eth7"), "the history holds nothing of eth7 yet"),
        (("--netns", "lab"), "the history holds nothing in lab yet"),
    ],
)
def test_what_isn_t_there_is_one_line(stored: Path, words: tuple[str, ...], said: str) -> None:
    done = fwtop("trends", "--directory", stored, *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


def test_a_planted_history_shows_nothing_that_a_terminal_obeys(stored: Path, tmp_path: Path) -> None:
    planted = tmp_path / "history.db"
    planted.write_bytes((stored / "history.db").read_bytes())
    with sqlite3.connect(planted) as database:
        database.execute("UPDATE name SET key = key || ?, label = ?", (POISON, POISON))
        database.execute("UPDATE scope SET interfaces = ?, note = ?", (POISON, POISON))
    database.close()
    for words in ((), ("--json",)):
        done = fwtop("trends", "--directory", tmp_path, *words)
        assert done.returncode == 0
        assert not any(char in done.stdout for char in "\x1b\u202e\r")


def test_a_foreign_or_damaged_history_is_one_line(stored: Path, tmp_path: Path) -> None:
    whole = (stored / "history.db").read_bytes()
    for data in (b"", b"noise" * 2_000, whole[: len(whole) // 2], whole[:4096] + bytes(len(whole) - 4096)):
        (tmp_path / "history.db").write_bytes(data)
        done = fwtop("trends", "--directory", tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.count("\n") == 1
        assert "can't be read" in done.stderr
