"""Finding a guardian: one that took long to start is still found."""

from __future__ import annotations

from pathlib import Path

import pytest

from fwtop.client import discovery
from fwtop.model.errors import FwtopError


@pytest.mark.parametrize("answers", [True, False])
def test_a_guardian_that_was_ready_at_the_last_moment_is_asked(
    answers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starting it has taken all the time there was."""
    calls: list[str] = []
    clock = [0.0]
    found = discovery.GuardianClient(None, {"pid": 1})  # type: ignore[arg-type]

    def attempt(*_: object) -> discovery.GuardianClient | None:
        calls.append("try")
        return found if answers and "spawn" in calls else None

    def spawn(*_: object) -> None:
        calls.append("spawn")
        clock[0] += 100.0

    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr(discovery, "_try", attempt)
    monkeypatch.setattr(discovery, "_spawn", spawn)
    if answers:
        assert discovery.connect(run_directory=tmp_path) is found
    else:
        with pytest.raises(FwtopError, match="no guardian answers"):
            discovery.connect(run_directory=tmp_path)
    assert calls == ["try", "spawn", "try"]
