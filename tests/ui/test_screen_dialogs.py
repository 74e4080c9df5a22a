"""The way of a key to a rule: preview, default button, install, confirm, undo, and every refusal."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from screen_factory import provisional, snapshot
from screen_fakes import FakeControls, FakeFeed
from screen_parts import NOW, few_addresses
from screen_run import Run, running

from fwtop.model.errors import FwtopError
from fwtop.model.preview import PlanView
from fwtop.model.rule import Rule
from fwtop.model.snapshot import Snapshot
from fwtop.ui.rule_sheet import RuleSheet


def sheet(run: Run) -> RuleSheet:
    assert isinstance(run.app.screen, RuleSheet)
    return run.app.screen


def applied(run: Run) -> list[tuple[Rule, bool]]:
    return [value for verb, value in run.feed.controls.calls if verb == "apply"]  # type: ignore[misc]


async def test_block_install_confirm() -> None:
    async with running(snapshot()) as run:
        await run.press("down", "b")
        shown = run.text()
        for wanted in ("block 203.0.113.2", "12.1 % of the attack", "0.2 % of normal traffic", "▸ Install"):
            assert wanted in shown
        assert "1 of 460 HTTPS clients" in shown
        assert "ipset add fwtop-4 203.0.113.1 timeout 32" in shown
        await run.press("enter")
        ((rule, force),) = applied(run)
        assert (str(rule.match.sources[0]), force) == ("203.0.113.2", False)
        assert (rule.predicted_pps, rule.predicted_collateral_share) == (37_442.0, 0.002)
        assert "rule 8 is taken back in 30 s" in run.status
        await run.press("y")
        assert run.feed.controls.calls[-1] == ("keep", "8")
        assert "rule 8 is confirmed" in run.status
        assert "taken back" not in run.status


@pytest.mark.parametrize(("collateral", "default"), [(0.0, "install"), (0.0099, "install"), (0.01, "cancel")])
async def test_default_is_cancel_when_too_much_normal_traffic_is_hit(collateral: float, default: str) -> None:
    async with running(snapshot()) as run:
        controls = run.feed.controls
        controls.preview_answer = replace(controls.preview_answer, collateral_share=collateral)
        await run.press("b")
        assert sheet(run).part == default
        await run.press("enter")
        assert len(applied(run)) == (default == "install")


@pytest.mark.parametrize(
    ("warnings", "default"), [((), "install"), (("untracked packets won't get rule 3",), "cancel")]
)
async def test_notrack_is_cancelled_by_default_where_other_rules_need_the_tracking(
    warnings: tuple[str, ...], default: str
) -> None:
    async with running(snapshot()) as run:
        run.feed.controls.plan_answer = PlanView(("x",), warnings)
        await run.press("tab", "n")
        assert sheet(run).part == default
        assert "drops nothing" in run.text()
        assert "of normal traffic" not in run.text()


async def test_operator_can_install_in_spite_of_the_harm() -> None:
    async with running(snapshot()) as run:
        controls = run.feed.controls
        controls.preview_answer = replace(controls.preview_answer, collateral_share=0.4)
        await run.press("b", "left", "enter")
        assert len(applied(run)) == 1


async def test_escape_changes_nothing() -> None:
    async with running(snapshot()) as run:
        await run.press("b", "escape")
        assert run.app.screen is run.app.main
        assert applied(run) == []
        assert run.status == "cancelled: nothing was changed"


async def test_broad_rule_needs_a_typed_word() -> None:
    async with running(snapshot()) as run:
        run.feed.controls.plan_answer = PlanView(("x",), needs_force="this is a whole country")
        await run.press("b")
        assert sheet(run).part == "cancel"
        assert "this is a whole country" in run.text()
        await run.press("left", "enter")
        assert run.dialog == "RuleSheet", "Install does nothing before the word"
        await run.press(*"instalx", "backspace", "l", "enter")
        assert [force for _, force in applied(run)] == [True]


async def test_refusal_of_the_guard_is_shown_and_final() -> None:
    async with running(snapshot()) as run:
        run.feed.controls.plan_answer = PlanView(refused="203.0.113.1 is the peer of your SSH session")
        await run.press("b")
        assert "Refused: 203.0.113.1 is the peer of your SSH session" in run.text()
        await run.press("left", "enter")
        assert applied(run) == []


async def test_refused_dialog_can_only_be_closed() -> None:
    async with running(snapshot()) as run:
        run.feed.controls.plan_answer = PlanView(refused="203.0.113.1 is the peer of your SSH session")
        await run.press("b")
        assert "▸ Close" in run.text()
        assert "Install" not in run.text()
        await run.press("enter")
        assert run.app.screen is run.app.main


async def test_enter_before_the_first_measurement_does_nothing() -> None:
    gate = asyncio.Event()

    class Slow(FakeControls):
        async def plan(self, rule: Rule) -> PlanView:
            await gate.wait()
            return await super().plan(rule)

    feed = FakeFeed()
    feed.controls = Slow()
    async with running(snapshot(), feed=feed) as run:
        await run.press("b", "enter")
        assert "counting on the samples" in run.text()
        gate.set()
        await run.settle()
        assert sheet(run).part == "install"
        await run.press("enter")
        assert len(applied(run)) == 1


async def test_installing_brings_the_rules_into_sight() -> None:
    async with running(snapshot()) as run:
        assert "unconfirmed" not in run.text()
        await run.press("b", "enter")
        assert "unconfirmed 30 s" in run.text()
        assert run.app.main.panel.spec.name == "sources", "the keys stay where they were"


async def test_failures_are_lines_not_crashes() -> None:
    async with running(snapshot()) as run:
        run.feed.controls.failure = FwtopError("the guardian did not answer; nothing was changed")
        await run.press("b")
        assert "the guardian did not answer" in run.text()
        await run.press("escape", "e", "enter")
        assert "the guardian did not answer" in run.status
        assert run.app.is_running


async def test_apply_that_fails_says_so() -> None:
    async with running(snapshot()) as run:
        await run.press("b")
        run.feed.controls.failure = FwtopError("the set is full; nothing was changed")
        await run.press("enter")
        assert run.status == "the set is full; nothing was changed"


async def test_time_to_live_can_be_changed_and_is_previewed_again() -> None:
    async with running(snapshot()) as run:
        await run.press("b", "up", "right")
        assert sheet(run).part == "for"
        assert sheet(run).rule.ttl_seconds == 1800
        assert "30 min" in run.text()
        assert run.feed.controls.verbs().count("preview") == 2
        await run.press("left", "left", "enter", "enter")
        assert applied(run)[0][0].ttl_seconds == 300


async def test_rate_and_prefix_can_be_changed() -> None:
    async with running(snapshot()) as run:
        await run.press("tab", "l", *["up"] * 4, "right", "down", "left")
        limit = sheet(run).rule.limit
        assert limit is not None
        assert (limit.per_second, limit.prefix_v4, limit.prefix_v6) == (5000, 32, 64)
        assert sheet(run).rule.summary == "limit UDP to port 27015 to 5,000/s per /32 (IPv6 /64)"


async def test_subject_is_frozen_while_rows_move() -> None:
    async with running(snapshot()) as run:
        await run.press("down", "b")
        base = snapshot()
        turned = replace(base.tables, sources=replace(base.tables.sources, address=few_addresses()[::-1]))
        await run.send(replace(base, tables=turned))
        assert "block 203.0.113.2" in run.text()
        await run.press("enter")
        assert str(applied(run)[0][0].match.sources[0]) == "203.0.113.2"
        assert run.selected_key() == "203.0.113.2", "and it is still selected afterwards"


async def test_network_is_blocked_by_its_number() -> None:
    async with running(snapshot()) as run:
        await run.press("v", "v", "b")
        assert sheet(run).rule.origin == "asn:64500"
        assert run.feed.controls.verbs()[0] == "expand"
        await run.press("escape", "v", "b")
        assert sheet(run).rule.origin == "country:NL"


@pytest.mark.parametrize(
    ("keys", "says"), [(["tab"] * 3 + ["end"], "is a mixture"), (["tab"] * 4, "that row is a figure")]
)
async def test_rows_that_cannot_be_blocked_say_what_can(keys: list[str], says: str) -> None:
    async with running(snapshot()) as run:
        await run.press(*keys, "b")
        assert run.app.screen is run.app.main
        assert says in run.text()


async def test_what_mostly_ends_in_a_place_can_be_dropped_before_it() -> None:
    async with running(snapshot()) as run:
        await run.press("tab", "tab", "tab", "x")
        assert sheet(run).rule.summary == "drop UDP to port 27015 in the driver"


async def test_rule_row_says_what_to_press() -> None:
    async with running(provisional()) as run:
        await run.press("shift+tab", "b")
        assert "u takes it back" in run.text()


async def test_undo_takes_the_selected_rule() -> None:
    async with running(provisional()) as run:
        await run.press("shift+tab", "down", "u")
        assert run.feed.controls.calls == [("undo", "5")]


async def test_nothing_to_confirm_or_undo() -> None:
    async with running(snapshot()) as run:
        await run.press("y")
        assert run.status == "there is no unconfirmed rule"
        await run.press("u")
        assert run.status == "there is no active rule to take back"


async def test_countdown_goes_on_without_snapshots() -> None:
    async with running(provisional(21.0)) as run:
        assert "taken back in 21 s" in run.status
        run.clock[0] = NOW + 15
        run.app.main.redraw_lines()
        assert "taken back in 6 s" in run.status


async def test_old_snapshots_do_not_hide_the_guardians_answer() -> None:
    async with running(snapshot()) as run:
        await run.press("b", "enter")
        await run.send(snapshot())
        assert "rule 8 is taken back" in run.status, "a snapshot from before the rule came late"
        run.clock[0] = NOW + 6
        await run.send(snapshot())
        assert "taken back" not in run.status, "the snapshots are believed in the end"


def without_rows(base: Snapshot) -> Snapshot:
    return replace(base, tables=replace(base.tables, sources=type(base.tables.sources)()))


async def test_empty_list_has_nothing_to_block() -> None:
    async with running(without_rows(snapshot())) as run:
        await run.press("b")
        assert "nothing is selected" in run.status
        await run.press("enter")
        assert run.status == "nothing is selected"


async def test_of_several_attacks_the_dialog_says_what_is_stopped_of_each() -> None:
    async with running(snapshot()) as run:
        answer = run.feed.controls.preview_answer
        both = (("SYN flood", 0.999), ("UDP flood", 0.0))
        run.feed.controls.preview_answer = replace(answer, attacks=both)
        await run.press("b")
        assert "12.1 % of all attacks" in run.text()
        assert "SYN flood 99.9 %, UDP flood 0 %" in run.text()
