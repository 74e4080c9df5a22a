"""Crash logs: one a failure, sanitised, bounded in number and size."""

import stat
from pathlib import Path

import pytest

from fwtop.sandbox.crash_log import CrashLog, failure_words


def _failure(text: str, depth: int = 0) -> ValueError:
    try:
        if depth:
            raise _failure(text, depth - 1)
        raise ValueError(text)
    except ValueError as error:
        return error


def test_a_failure_that_repeats_has_one_log(tmp_path: Path) -> None:
    crashes = CrashLog(lambda: (tmp_path / "absent", tmp_path))
    paths = {crashes.path_of(_failure(f"number {number}")) for number in range(100)}
    (log,) = tmp_path.iterdir()
    assert paths == {str(log)}
    assert "in _failure" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_logs_are_few_and_short_and_old_ones_go(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"crash-20200101-{number:06}-1-0.log").touch()
    crashes = CrashLog(lambda: (tmp_path,))
    paths = [crashes.path_of(_failure("x" * 5000, depth)) for depth in range(40)]
    written = [Path(path) for path in paths if path]
    assert written == [Path(path) for path in paths[: len(written)]]  # the first ones tell most
    assert 0 < len(written) < 20
    assert len(list(tmp_path.iterdir())) <= 30
    assert all(path.exists() for path in written)
    assert sum(path.stat().st_size for path in written) < 1 << 20


def test_escape_sequences_reach_neither_the_log_nor_the_line(tmp_path: Path) -> None:
    failure = _failure("a\x1b]0;title\x07b")
    path = CrashLog(lambda: (tmp_path,)).path_of(failure)
    assert "\x1b" not in Path(path).read_text() + failure_words(failure)


def test_without_any_place_there_is_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "absent"))
    assert CrashLog(lambda: (tmp_path / "absent",)).path_of(_failure("full")) == ""
