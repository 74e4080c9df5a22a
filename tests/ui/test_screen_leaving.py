"""Leaving with unconfirmed rules, a guardian that is lost, and a screen that may change nothing."""

from __future__ import annotations

import gc
import warnings

import pytest
from msgspec.structs import replace
from screen_factory import provisional, snapshot
from screen_run import Run, running

from fwtop.model.errors import FwtopError
from fwtop.model.rule import PlanView


async def test_lost_guardian_does_not_hold_back_who_leaves() -> None:
    async with running(replace(provisional(), guardian="lost: the socket closed")) as run:
        await run.press("q")
        assert run.app.return_code == 0


@pytest.mark.parametrize("key", ["b", "l", "s", "x", "n", "1", "y", "u"])
async def test_lost_guardian_is_loud_and_explains_each_key(key: str) -> None:
    lost = replace(provisional(), guardian="lost: the socket closed")
    async with running(lost) as run:
        assert "GUARDIAN LOST" in run.lines()[0]
        assert "the socket closed" in run.status
        await run.press(key)
        assert "the guardian is lost" in run.status
        assert run.feed.controls.calls == []


async def test_read_only_previews_and_changes_nothing() -> None:
    async with running(provisional()) as run:
        run.feed.controls.readonly = "started with --readonly"
        run.feed.controls.plan_answer = PlanView(refused="started with --readonly")
        await run.press("y")
        assert run.status.startswith("nothing can be changed here: started with --readonly")
        await run.press("u")
        assert run.feed.controls.calls == []
        await run.press("b")
        assert "read-only: started with --readonly: nothing can be installed" in run.text()
        assert "Install" not in run.text()
        await run.press("enter")
        assert "apply" not in run.feed.controls.verbs()


async def ask_to_leave(run: Run) -> None:
    await run.press("q")
    assert run.dialog == "ChoiceDialog"
    assert "not confirmed" in run.text()


async def test_quit_with_an_unconfirmed_rule_asks_and_stays_by_default() -> None:
    async with running(provisional()) as run:
        await ask_to_leave(run)
        await run.press("enter")
        assert run.app.return_code is None
        assert run.app.screen is run.app.main


async def test_quit_all_the_same() -> None:
    async with running(provisional()) as run:
        await ask_to_leave(run)
        await run.press("tab", "tab", "enter")
        assert run.app.return_code == 0
        assert run.feed.controls.calls == []


async def test_keep_and_quit() -> None:
    async with running(provisional()) as run:
        await ask_to_leave(run)
        await run.press("tab", "enter")
        assert run.feed.controls.calls == [("keep", "7")]
        assert run.app.return_code == 0


async def test_keep_that_fails_does_not_quit() -> None:
    async with running(provisional()) as run:
        run.feed.controls.failure = FwtopError("rule 7 is gone")
        await ask_to_leave(run)
        await run.press("tab", "enter")
        assert run.app.return_code is None
        assert "rule 7 is gone" in run.status


async def test_keys_that_wait_when_the_screen_closes_leave_no_trace() -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        async with running(snapshot()) as run:
            run.app.exit()
            for key in ("b", "A", "1", "u", "y", "w", "e", "r", ":"):
                run.app.main.action_press(key)
        gc.collect()
    assert [str(item.message) for item in warned if "never awaited" in str(item.message)] == []
