"""What an unprivileged reader answers once a hostile session has taken it over: root's terminal is safe."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fwtop.cli.rules import making, mitigation
from fwtop.cli.sessions import listing, report, stored
from fwtop.model.errors import FwtopError

EVIL = "\x1b]0;owned\x07\x9b31m"
ENTRY: dict[str, Any] = {
    "id": EVIL, "started": "2026-11-21T03:12:39Z", "seconds": 1.0, "state": EVIL, "host": EVIL,
    "interfaces": [EVIL], "netns": EVIL, "version": EVIL, "peak_pps": 1.0, "attacks": [EVIL], "rules": 1,
    "bytes": 1,
}  # fmt: skip
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts a reader")


def answering(monkeypatch: pytest.MonkeyPatch, module: Any, answer: object) -> None:
    monkeypatch.setattr(module, "run_unprivileged", lambda *_, **__: answer)


def test_a_list_of_sessions_is_sanitised(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answering(monkeypatch, listing, [ENTRY])
    assert listing.VERBS["sessions"].run(argparse.Namespace(directory=Path("x"), json=False)) == 0
    assert capsys.readouterr().out.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "wrong",
    [{"seconds": float("nan")}, {"rules": EVIL}, {"started": EVIL}, {"attacks": 5}, {"peak_pps": None}],
)
def test_a_list_that_makes_no_sense_is_an_error(
    monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any]
) -> None:
    answering(monkeypatch, listing, [ENTRY | wrong])
    with pytest.raises(FwtopError, match="no list of sessions"):
        listing.VERBS["sessions"].run(argparse.Namespace(directory=Path("x"), json=False))


def test_a_report_on_a_terminal_is_sanitised(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answering(monkeypatch, report, ["../../x", f"one\n\ttwo {EVIL}\n"])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    args = argparse.Namespace(session=None, directory=Path("x"), format="md", output="-", bundle=None)
    assert report.run(args) == 0
    lines = capsys.readouterr().out.split("\n")
    assert lines[0] == "one"
    assert all(line.isprintable() for line in lines)


@as_root
def test_a_readers_error_is_sanitised() -> None:
    def fail() -> None:
        raise FwtopError(EVIL, 77)

    with pytest.raises(FwtopError) as caught:
        stored.run_unprivileged(fail)
    assert str(caught.value).isprintable()
    assert caught.value.code == 1


@as_root
def test_a_reader_does_not_have_what_the_shell_left_open() -> None:
    def read() -> str:
        return os.read(roots.fileno(), 1).decode()

    with open("/etc/shadow") as roots:
        os.set_inheritable(roots.fileno(), True)
        with pytest.raises(FwtopError, match="OSError"):
            stored.run_unprivileged(read)


def test_previews_of_a_console_that_was_taken_over_are_sanitised_or_none() -> None:
    good = {
        "attack_share": 0.5, "attack_pps": 1.0, "collateral_share": 0, "collateral_pps": 0, "total_pps": 2,
        "examples": [EVIL], "warnings": [EVIL], "guess": False, "attack": EVIL, "attacks": [[EVIL, 0.5]],
        "already": [[EVIL, 0.1]], "together": [[EVIL, 0.6]],
    }  # fmt: skip
    previews = mitigation.read_previews(json.dumps([good]).encode(), 1)
    assert previews is not None
    assert mitigation.harm_line(previews[0]).isprintable()
    assert all(text.isprintable() for text in (*previews[0].examples, *previews[0].warnings))
    wrong: list[object] = [
        {}, [], [good, good], [good | {"attack_pps": EVIL}], [good | {"total_pps": float("nan")}],
        [good | {"total_pps": 10**400}], [good | {"attacks": [[EVIL, float("inf")]]}], [5], [{"attack": "x"}],
        [good | {"together": [[EVIL, float("nan")]]}], [good | {"already": 5}],
    ]  # fmt: skip
    assert {mitigation.read_previews(json.dumps(item).encode(), 1) for item in wrong} == {None}
    assert mitigation.read_previews(b"[" * 100_000, 1) is None


@as_root
def test_a_reader_does_not_have_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    def write() -> str:
        for descriptor in (1, 2):
            os.write(descriptor, EVIL.encode())
        return "done"

    assert stored.run_unprivileged(write) == "done"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("at", "says"),
    [("NaN", "future"), (time.time() + 86_400, "future"), (1.0, "old")],
    ids=["no number", "tomorrow", "old"],
)
def test_an_observation_of_no_recent_time_is_not_applied(
    monkeypatch: pytest.MonkeyPatch, at: object, says: str
) -> None:
    answering(monkeypatch, stored, json.loads(json.dumps({"rule": {}, "at": float(at)})))  # type: ignore[arg-type]
    monkeypatch.setattr("fwtop.cli.launcher.require_root", lambda _: None)
    with pytest.raises(FwtopError, match=says):
        making.VERBS["apply"].run(argparse.Namespace(number=1, netns=None, old=False, ttl=60))
