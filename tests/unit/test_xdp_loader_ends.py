"""An XDP loader that ends without an answer: what the operator is told, and what fails with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fwtop.guardian.failpoints import Failpoints
from fwtop.guardian.mechanisms.compiled import loader, rules
from fwtop.guardian.mechanisms.compiled.rules import CompiledRules
from fwtop.model.errors import FwtopError
from fwtop.xdp.messages import Sweep


@pytest.fixture(autouse=True)
def gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's directory was removed while the guardian ran."""
    monkeypatch.setattr(loader, "_LOADER", "fwtop.xdp.no_such_module")


def test_its_end_is_told_with_the_status() -> None:
    with pytest.raises(FwtopError, match="it ended with status 1"):
        loader.ask(Sweep())


def test_undo_does_not_depend_on_sweeping_up_after_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "PIN_DIRECTORY", tmp_path)
    monkeypatch.setattr(rules, "is_pinned", lambda _: True)
    CompiledRules(Failpoints(None), 1).sweep()
