"""docs/STORE.md is true: its examples run, and its lists of columns are those of the views."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest
from stored_sessions import sample_session

from fwtop.store.directory import DEFAULT_MAX_BYTES
from fwtop.store.history import APPLICATION_ID, DAY, KEPT, MAX_BYTES
from fwtop.store.history import VERSION as HISTORY_VERSION
from fwtop.store.rows import VERSION

TEXT = (Path(__file__).resolve().parents[2] / "docs/STORE.md").read_text()


def part(title: str) -> str:
    return TEXT.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def examples(title: str) -> list[str]:
    return re.findall(r"```sql\n(.*?)```", part(title), re.DOTALL)


def described(title: str) -> dict[str, list[str]]:
    """The views of a section with the columns that it lists."""
    flat = re.sub(r"\([^()]*\)", "", part(title).split("```")[0].replace("\n", " "))
    return {name: re.findall(r"\w+", columns) for name, columns in re.findall(r"`(\w+)`: ([^.]+)\.", flat)}


@pytest.fixture(scope="module")
def session_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample_session(tmp_path_factory.mktemp("session"))


@pytest.fixture
def session(session_file: Path) -> sqlite3.Connection:
    database = sqlite3.connect(f"file:{session_file}?mode=ro", uri=True)
    database.execute("PRAGMA trusted_schema=OFF")
    return database


def test_the_examples_on_sessions_run(session: sqlite3.Connection) -> None:
    busiest, protected, events = (session.execute(text).fetchall() for text in examples("A session's views"))
    session.close()
    assert busiest == [("2026-11-21 03:13", 200_000.0)]
    assert protected == [("dns_amplification", 80, 68)]
    assert [row[1] for row in events if row[1].startswith("attack")] == ["attack began", "attack ended"]


def test_the_views_of_sessions_are_described(session: sqlite3.Connection) -> None:
    views = [row[0] for row in session.execute("SELECT name FROM sqlite_master WHERE type = 'view'")]
    assert set(described("A session's views")) == set(views)
    for view, columns in described("A session's views").items():
        found = session.execute(f"SELECT * FROM {view}")  # noqa: S608
        assert [item[0] for item in found.description] == columns
        assert found.fetchone() is not None
    session.close()


@pytest.fixture
def history(made_history: Path) -> sqlite3.Connection:
    database = sqlite3.connect(f"file:{made_history}?mode=ro", uri=True)
    database.execute("PRAGMA trusted_schema=OFF")
    return database


def test_the_examples_on_the_history_run(history: sqlite3.Connection) -> None:
    busiest, networks = (history.execute(text).fetchall() for text in examples("The history's views"))
    dark, places = (history.execute(text).fetchall() for text in examples("Service and dark"))
    history.close()
    assert [len(rows) for rows in (busiest, networks, dark)] == [3, 5, 5]
    assert [key for key, _ in places] == ["dark", "service"]
    assert places[0][1] < places[1][1]
    assert busiest[0][0] == "2026-09-21 07:00:00"
    assert busiest[0][1] > 30_000
    assert "Example Access BV" in [row[1] for row in networks]
    assert all(row[0].startswith("192.0.2.") for row in dark)


def test_the_views_of_the_history_are_described(history: sqlite3.Connection) -> None:
    views = [row[0] for row in history.execute("SELECT name FROM sqlite_master WHERE type = 'view'")]
    assert set(described("The history's views")) == set(views)
    for view, columns in described("The history's views").items():
        found = history.execute(f"SELECT * FROM {view}")  # noqa: S608
        assert [item[0] for item in found.description] == columns
        assert found.fetchone() is not None
    history.close()


def test_numbers_are_those_of_the_program() -> None:
    assert f"`PRAGMA user_version` ({VERSION})" in TEXT
    assert (
        f"`PRAGMA user_version` is {HISTORY_VERSION}, `PRAGMA application_id` `{APPLICATION_ID:#x}`" in TEXT
    )
    assert f"at most {MAX_BYTES >> 20} MiB: minutes are kept for {KEPT[60] // 3_600} hours" in TEXT
    assert f"hours for {KEPT[3_600] // DAY} days, days for {KEPT[DAY] // DAY} days" in TEXT
    assert f"at most {DEFAULT_MAX_BYTES >> 20} MiB" in TEXT
