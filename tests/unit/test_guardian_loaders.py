"""A loader of observers that gives no answer: what the client is told, and when another one is started."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from fwtop.guardian.serving import observers as module
from fwtop.guardian.serving.observers import Loading, Observers
from fwtop.kernel import children
from fwtop.model.protocol import Watch

CRASH = "raise MemoryError('no room')"
KILLED = "import os; os.kill(os.getpid(), 9)"
STUCK = "import sys, time; '--detach' in sys.argv or time.sleep(60)"


class Guardian:
    """Observers whose loaders run a program of the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
        argv = [sys.executable, "-I", "-S", "-c", program]
        monkeypatch.setattr(children, "module_argv", lambda _, *words: [*argv, *words])
        self.started: list[Loading] = []
        self.observers = Observers(self.started.append, lambda *_: None)
        self.client = SimpleNamespace(slot=None, held=[], connections={"one"})
        self.observers.watch("peer", self.client, Watch())
        self.observers.proceed()

    def told(self) -> str | None:
        """What the loader started last ends with; None: another one begins."""
        taken = self.observers.take(self.started[-1])
        self.observers.proceed()
        return None if taken is None else taken[0].error


@pytest.fixture
def guardian(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guardian]:
    made = Guardian(monkeypatch, request.param)
    yield made
    made.observers.finish()


@pytest.mark.parametrize("guardian", [CRASH], indirect=True)
def test_a_crash_is_told_with_the_last_line_of_its_complaint(guardian: Guardian) -> None:
    why = "the loader ended with status 1: MemoryError: no room"
    assert guardian.told() == f"the observers could not be attached: {why}"
    assert guardian.client.slot is None


@pytest.mark.parametrize("guardian", [KILLED], indirect=True)
def test_one_that_the_oom_killer_took_is_started_once_more(guardian: Guardian) -> None:
    assert guardian.told() is None
    assert guardian.told() == "the observers could not be attached: the loader was killed by signal 9"
    assert [one.wanted.again for one in guardian.started] == [False, True]
    assert guardian.started[0].wanted.slot != guardian.started[1].wanted.slot, "the first is still emptied"


@pytest.mark.parametrize("guardian", [STUCK], indirect=True)
def test_one_that_takes_too_long_is_ended_and_not_started_again(
    guardian: Guardian, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOAD_SECONDS", 0.0)
    guardian.observers.next_timeout()
    assert "the loader was not done after 0 s" in str(guardian.told())
    assert len(guardian.started) == 1


@pytest.mark.parametrize("guardian", [STUCK], indirect=True)
def test_one_whose_client_left_is_ended_and_leaves_nothing_attached(guardian: Guardian) -> None:
    guardian.client.connections.clear()
    guardian.observers.detach(guardian.client.slot)
    assert "the client is gone" in str(guardian.told())
    assert len(guardian.started) == 1
    assert guardian.client.held == []
