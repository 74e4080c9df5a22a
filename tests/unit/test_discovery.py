"""Finding a guardian: one that took long to start is still found, one that never answers is told."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from fwtop.client import discovery
from fwtop.kernel import namespaces
from fwtop.model.errors import FwtopError


@pytest.mark.parametrize("starts", [1, 5, None])
def test_patience_is_counted_in_guardians_and_not_in_seconds(
    starts: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start takes as long as it takes; only when none ever answers is that told."""
    calls: list[str] = []
    found = discovery.GuardianClient(None, {"pid": 1})  # type: ignore[arg-type]

    def attempt(*_: object) -> discovery.GuardianClient | None:
        calls.append("try")
        return found if calls.count("spawn") == starts else None

    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(discovery, "_try", attempt)
    monkeypatch.setattr(discovery, "_spawn", lambda *_: calls.append("spawn"))
    if starts is not None:
        assert discovery.connect(run_directory=tmp_path) is found
        assert calls == ["try", *["spawn", "try"] * starts]
    else:
        with pytest.raises(FwtopError, match="no guardian answers"):
            discovery.connect(run_directory=tmp_path)
        assert calls[-1] == "try"


def test_a_guardian_that_hangs_is_told_and_no_other_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(discovery, "ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(discovery, "_spawn", lambda *_: pytest.fail("a guardian was started"))
    number = namespaces.inode(descriptor := namespaces.open_netns(None))
    os.close(descriptor)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / f"{number}.sock"))
        listener.listen()
        with pytest.raises(FwtopError, match="no guardian answers"):
            discovery.connect(run_directory=tmp_path)
