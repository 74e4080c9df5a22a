"""The way of a key to a rule: preview, default button, install, confirm, undo, and every refusal."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from screen_factory import provisional, snapshot
from screen_fakes import FakeControls, FakeFeed
from screen_parts import NOW, few_addresses
from screen_run import SMALL, Run, running
from screen_vectors import vectors

from fwtop.model.errors import FwtopError
from fwtop.model.harm import ClientHarm
from fwtop.model.rule import Mode, PlanView, Preview, Rule, RuleStatus
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.ui.actions.rule_actions import REMOVE_RULE
from fwtop.ui.actions.rule_dialog import RuleDialog


def dialog(run: Run) -> RuleDialog:
    assert isinstance(run.app.screen, RuleDialog)
    return run.app.screen


def applied(run: Run) -> list[tuple[Rule, bool]]:
    return [value for verb, value in run.feed.controls.calls if verb == "apply"]  # type: ignore[misc]


async def test_a_set_says_in_80_columns_what_enter_does_and_a_question_leaves_no_slivers() -> None:
    async with running(vectors(snapshot()), SMALL) as run:
        await run.press("A")
        assert "Cancel    Enter chooses  Tab commands  c counts only  Esc" in run.text()
        await run.press("escape", "u")
        frame = [line for line in run.lines() if line.startswith(("╭", "│", "├", "╰"))]
        assert frame
        assert {len(line.rstrip()) for line in frame} == {80}


async def test_block_install_confirm() -> None:
    async with running(snapshot(), at="sources") as run:
        await run.press("down", "b")
        shown = run.text()
        for wanted in (
            "block 203.0.113.2",
            "12.1 % of the attack",
            "0.2 % of client-like packets",
            "▸ Install",
        ):
            assert wanted in shown
        assert "1 of 460 HTTPS clients" in shown
        command = "ipset add fwtop-4 203.0.113.1 timeout 32"
        assert command not in shown
        assert "Enter chooses  Tab commands" in shown
        await run.press("tab")
        assert command in run.text()
        await run.press("enter")
        ((rule, force),) = applied(run)
        assert (str(rule.match.sources[0]), force) == ("203.0.113.2", False)
        assert (rule.predicted_pps, rule.predicted_collateral_share) == (37_442.0, 0.002)
        assert " TRIAL 30 s " in run.lines()[1]
        assert "y keep  u remove" in run.lines()[1]
        await run.press("y")
        assert run.feed.controls.calls[-1] == ("keep", "8")
        assert "rule 8 is confirmed" in run.status
        assert "TRIAL" not in run.text()


async def test_harm_is_told_by_client() -> None:
    async with running(snapshot(), at="sources") as run:
        controls = run.feed.controls
        clients = ClientHarm(4_117, 2, 2, others=20, others_hit=3, share=0.0005, protocol=6, port=443)
        controls.preview_answer = replace(controls.preview_answer, clients=clients)
        await run.press("b")
        shown = run.text()
        assert "2 of 4,117 clients of 443 lose it" in shown
        assert "3 of 20 of other services" in shown
        assert "client-like packets" in shown
        assert dialog(run).marked == "install"
        await run.press("enter")
        ((rule, _),) = applied(run)
        assert rule.predicted_clients == clients


async def test_default_is_cancel_when_known_clients_are_cut_off() -> None:
    async with running(snapshot(), at="sources") as run:
        controls = run.feed.controls
        clients = ClientHarm(100, 5, 5, share=0.05, protocol=6, port=443)
        controls.preview_answer = replace(controls.preview_answer, clients=clients, collateral_share=0.0)
        await run.press("b")
        assert dialog(run).marked == "cancel"


@pytest.mark.parametrize(("collateral", "default"), [(0.0, "install"), (0.0099, "install"), (0.01, "cancel")])
async def test_default_is_cancel_when_too_much_normal_traffic_is_hit(collateral: float, default: str) -> None:
    async with running(snapshot(), at="sources") as run:
        controls = run.feed.controls
        controls.preview_answer = replace(controls.preview_answer, collateral_share=collateral)
        await run.press("b")
        assert dialog(run).marked == default
        await run.press("enter")
        assert len(applied(run)) == (default == "install")


@pytest.mark.parametrize(
    ("warnings", "default"), [((), "install"), (("untracked packets won't get rule 3",), "cancel")]
)
async def test_notrack_is_cancelled_by_default_where_other_rules_need_the_tracking(
    warnings: tuple[str, ...], default: str
) -> None:
    async with running(snapshot(), at="ports") as run:
        run.feed.controls.plan_answer = PlanView(("x",), warnings)
        await run.press("n")
        assert dialog(run).marked == default
        assert "drops nothing" in run.text()
        assert "client-like" not in run.text()


async def test_operator_can_install_in_spite_of_the_harm() -> None:
    async with running(snapshot(), at="sources") as run:
        controls = run.feed.controls
        controls.preview_answer = replace(controls.preview_answer, collateral_share=0.4)
        await run.press("b", "left", "enter")
        assert len(applied(run)) == 1


async def test_c_in_a_preview_installs_a_rule_that_only_counts() -> None:
    async with running(snapshot(), at="sources") as run:
        await run.press("down", "b", "c")
        shown = run.text()
        for wanted in ("count only: block 203.0.113.2", "12.1 % of the attack", "no trial", "c drops"):
            assert wanted in shown
        await run.press("c")
        assert "count only" not in run.text()
        await run.press("c", "enter")
        ((rule, _),) = applied(run)
        assert (rule.mode, rule.summary) == (Mode.COUNT, "count only: block 203.0.113.2")
        previewed = [value for verb, value in run.feed.controls.calls if verb == "preview"]
        assert {one.mode for one in previewed} == {Mode.DROP}, "what it would stop and harm"


async def test_escape_changes_nothing() -> None:
    async with running(snapshot(), at="sources") as run:
        await run.press("b", "escape")
        assert run.app.screen is run.app.main
        assert applied(run) == []
        assert run.status == "cancelled: nothing was changed"


async def test_broad_rule_needs_a_typed_word() -> None:
    async with running(snapshot(), at="sources") as run:
        run.feed.controls.plan_answer = PlanView(("x",), needs_force="this is a whole country")
        await run.press("b")
        assert dialog(run).marked == "cancel"
        assert "this is a whole country" in run.text()
        await run.press("left", "enter")
        assert run.dialog == "RuleDialog", "Install does nothing before the word"
        await run.press(*"instalx", "backspace", "l", "enter")
        assert [force for _, force in applied(run)] == [True]


async def test_refusal_of_the_guard_is_shown_and_final() -> None:
    async with running(snapshot(), at="sources") as run:
        run.feed.controls.plan_answer = PlanView(refused="203.0.113.1 is the peer of your SSH session")
        await run.press("b")
        assert "Refused: 203.0.113.1 is the peer of your SSH session" in run.text()
        await run.press("left", "enter")
        assert applied(run) == []


async def test_refused_dialog_can_only_be_closed() -> None:
    async with running(snapshot(), at="sources") as run:
        run.feed.controls.plan_answer = PlanView(refused="203.0.113.1 is the peer of your SSH session")
        await run.press("b")
        assert "▸ Close" in run.text()
        assert "Install" not in run.text()
        await run.press("enter")
        assert run.app.screen is run.app.main


class SlowControls(FakeControls):
    """Answers `plan` only when the gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def plan(self, rule: Rule, *, follows: bool = False) -> PlanView:
        await self.gate.wait()
        return await super().plan(rule)


def slow_feed() -> tuple[FakeFeed, SlowControls]:
    feed = FakeFeed()
    feed.controls = controls = SlowControls()
    return feed, controls


async def test_enter_while_counting_arms_and_installs_when_counted() -> None:
    feed, controls = slow_feed()
    async with running(snapshot(), at="sources", feed=feed) as run:
        await run.press("b", "enter")
        assert "installs when counted, Esc stops" in run.text()
        assert applied(run) == []
        controls.gate.set()
        await run.settle()
        assert len(applied(run)) == 1
        assert run.app.screen is run.app.main


async def test_escape_stops_an_armed_dialog() -> None:
    feed, controls = slow_feed()
    async with running(snapshot(), at="sources", feed=feed) as run:
        await run.press("b", "enter", "escape")
        controls.gate.set()
        await run.settle()
        assert applied(run) == []
        assert run.status == "cancelled: nothing was changed"


@pytest.mark.parametrize("why", ["harm", "force", "refused"])
async def test_armed_dialog_leaves_what_harms_to_the_operator(why: str) -> None:
    feed, controls = slow_feed()
    if why == "harm":
        controls.preview_answer = replace(controls.preview_answer, collateral_share=0.2)
    elif why == "force":
        controls.plan_answer = PlanView(("x",), needs_force="this is a whole country")
    else:
        controls.plan_answer = PlanView(refused="203.0.113.1 is your SSH session")
    async with running(snapshot(), at="sources", feed=feed) as run:
        await run.press("b", "enter")
        controls.gate.set()
        await run.settle()
        assert applied(run) == []
        assert dialog(run).marked == "cancel"
        if why == "harm":
            assert "not installed yet: read the harm first" in run.text()


async def test_installing_brings_the_rules_into_sight() -> None:
    async with running(snapshot()) as run:
        assert "TRIAL" not in run.text()
        await run.press("1", "enter")
        assert run.text().count("TRIAL 30 s") == 2, "badge and list have one clock"
        assert run.app.main.tabs.panel.spec.name == "proposals", "the keys stay where they were"


async def test_installing_from_another_tab_counts_the_rule_in_the_tab_bar() -> None:
    async with running(snapshot()) as run:
        run.app.main.tabs.show("traffic")
        await run.press("b", "enter")
        assert " Rules 1 " in run.text()
        assert "TRIAL 30 s" in run.lines()[1]
        assert run.app.main.tabs.panel.spec.name == "sources", "the keys stay where they were"


async def test_failures_are_lines_not_crashes() -> None:
    async with running(snapshot(), at="sources") as run:
        run.feed.controls.failure = FwtopError("the guardian did not answer; nothing was changed")
        await run.press("b")
        assert "the guardian did not answer" in run.text()
        await run.press("escape", "e", "enter")
        assert "the guardian did not answer" in run.status
        assert run.app.is_running


async def test_apply_that_fails_says_so() -> None:
    async with running(snapshot(), at="sources") as run:
        await run.press("b")
        run.feed.controls.failure = FwtopError("the set is full; nothing was changed")
        await run.press("enter")
        assert run.status == "the set is full; nothing was changed"


async def test_time_to_live_can_be_changed_and_is_previewed_again() -> None:
    async with running(snapshot(), at="sources") as run:
        await run.press("b", "up", "right")
        assert dialog(run).marked == "for"
        assert dialog(run).rule.ttl_seconds == 1800
        assert "30 min" in run.text()
        assert run.feed.controls.verbs().count("preview") == 2
        await run.press("left", "left", "enter", "enter")
        assert applied(run)[0][0].ttl_seconds == 300


async def test_rate_and_prefix_can_be_changed() -> None:
    async with running(snapshot(), at="ports") as run:
        await run.press("l", *["up"] * 4, "right", "down", "left")
        limit = dialog(run).rule.limit
        assert limit is not None
        assert (limit.per_second, limit.prefix_v4, limit.prefix_v6) == (5000, 32, 64)
        assert dialog(run).rule.summary == "limit UDP to port 27015 to 5,000/s per /32 (IPv6 /64)"


async def test_subject_is_frozen_while_rows_move() -> None:
    async with running(snapshot()) as run:
        run.app.main.tabs.show("traffic")
        await run.press("down", "b")
        base = snapshot()
        turned = replace(base.tables, sources=replace(base.tables.sources, address=few_addresses()[::-1]))
        await run.send(replace(base, tables=turned))
        assert "block 203.0.113.2" in run.text()
        await run.press("enter")
        assert str(applied(run)[0][0].match.sources[0]) == "203.0.113.2"
        assert run.selected_key() == "203.0.113.2", "and it is still selected afterwards"


async def test_network_is_blocked_by_its_number() -> None:
    async with running(snapshot(), at="sources") as run:
        await run.press("v", "v", "b")
        assert dialog(run).rule.origin == "asn:64500"
        assert run.feed.controls.verbs()[0] == "expand"
        await run.press("escape", "v", "b")
        assert dialog(run).rule.origin == "country:NL"


@pytest.mark.parametrize(
    ("at", "keys", "says"),
    [
        ("ledger", ("end", "b"), "different traffic ends there"),
        ("conntrack", ("b",), "no rule fits this row"),
        ("path", ("b",), "no rule fits this row"),
        ("attacks", ("b",), "1 to 9 preview what stops it"),
    ],
)
async def test_rows_that_cannot_be_blocked_say_what_can(at: str, keys: tuple[str, ...], says: str) -> None:
    async with running(snapshot(), at=at) as run:
        await run.press(*keys)
        assert run.app.screen is run.app.main
        assert says in run.text()


async def test_what_mostly_ends_in_a_place_can_be_dropped_before_it() -> None:
    async with running(snapshot(), at="ledger") as run:
        await run.press("x")
        assert dialog(run).rule.summary == "drop UDP to port 27015 in the driver"


async def test_rule_row_says_what_to_press() -> None:
    async with running(provisional(), at="rules") as run:
        await run.press("b")
        assert "u removes it" in run.text()


async def test_undo_takes_the_selected_rule() -> None:
    async with running(provisional(), at="rules") as run:
        await run.press("down", "u", "right", "enter")
        assert run.feed.controls.calls == [("undo", "5")]


async def test_y_agrees_and_n_refuses_where_there_are_two_answers() -> None:
    async with running(provisional(), at="rules") as run:
        await run.press("down", "u")
        assert f"y: {REMOVE_RULE}" in run.text()
        await run.press("n")
        assert run.feed.controls.calls == []
        await run.press("u", "y")
        assert run.feed.controls.calls == [("undo", "5")]


async def test_a_confirmed_rule_stops_dropping_only_after_a_question() -> None:
    async with running(provisional(), at="rules") as run:
        await run.press("down", "C")
        assert "These would pass." in run.text()
        await run.press("n")
        assert run.feed.controls.calls == []
        await run.press("C", "y")
        assert run.feed.controls.calls == [("mode", ("5", Mode.COUNT))]


async def test_nothing_to_confirm_or_undo() -> None:
    async with running(snapshot(), at="sources") as run:
        await run.press("y")
        assert run.status == "there is no unconfirmed rule"
        await run.press("u")
        assert run.status == "there is no active rule to remove"


async def test_countdown_goes_on_without_snapshots() -> None:
    async with running(provisional(21.0)) as run:
        assert "TRIAL 21 s" in run.lines()[1]
        run.clock[0] = NOW + 15
        run.app.main.view.redraw_lines()
        assert "TRIAL 6 s" in run.lines()[1]


async def test_old_snapshots_do_not_hide_the_guardians_answer() -> None:
    async with running(snapshot(), at="sources") as run:
        await run.press("b", "enter")
        await run.send(snapshot())
        assert "TRIAL 30 s" in run.lines()[1], "a snapshot from before the rule came late"
        run.clock[0] = NOW + 6
        await run.send(snapshot())
        assert "TRIAL 24 s" in run.lines()[1], "however late it comes"
        await run.send(replace(snapshot(), started=snapshot().started + 6))
        assert "TRIAL" not in run.lines()[1], "the snapshots are believed in the end"


def without_rows(base: Snapshot) -> Snapshot:
    return replace(base, tables=replace(base.tables, sources=type(base.tables.sources)()))


async def test_empty_list_has_nothing_to_block() -> None:
    async with running(without_rows(snapshot()), at="sources") as run:
        await run.press("b")
        assert "nothing is selected" in run.status
        await run.press("enter")
        assert run.status == "nothing is selected"


async def test_of_several_attacks_the_dialog_says_what_is_stopped_of_each() -> None:
    async with running(snapshot(), at="sources") as run:
        answer = run.feed.controls.preview_answer
        both = (("SYN flood", 0.999), ("UDP flood", 0.0))
        run.feed.controls.preview_answer = replace(
            answer, attack_share=0.999, attack="SYN flood", attacks=both
        )
        await run.press("b")
        assert "99.9 % of the SYN flood" in run.text()
        assert "SYN flood 99.9 %, UDP flood 0 %" in run.text()
        assert "already" not in run.text()
        await run.press("escape")
        active, together = (("SYN flood", 0.6),), (("SYN flood", 1.0),)
        run.feed.controls.preview_answer = replace(
            run.feed.controls.preview_answer, already=active, together=together
        )
        await run.press("b")
        assert "active rules stop 60.0 % of it already, both 100 %" in run.text()


async def test_a_dialog_is_left_once_however_often_it_is_closed() -> None:
    async with running(snapshot()) as run:
        for opening, closing in (
            ("b", "escape"),
            ("question_mark", "f1"),
            ("r", "r"),
            ("a", "a"),
            ("e", "enter"),
        ):
            await run.press(opening)
            await run.press_at_once(closing, closing, closing)
            await run.press("escape", "escape")
            assert run.app.screen is run.app.main
            assert run.app.main in run.app.screen_stack
        await run.press("right_square_bracket")
        assert run.app.main.tabs.shown.name == "traffic"


async def test_a_dialog_that_ends_behind_another_closes_itself_only() -> None:
    counted = asyncio.Event()
    feed = FakeFeed()

    async def late(rule: Rule) -> Preview:
        await counted.wait()
        return feed.controls.preview_answer

    feed.controls.preview = late  # type: ignore[method-assign]
    async with running(snapshot(), at="sources", feed=feed) as run:
        await run.press("b", "enter")  # armed
        run.app.main.help()
        await run.settle()
        counted.set()
        await run.settle()
        assert run.dialog == "HelpDialog"
        await run.press("escape")
        assert run.app.screen is run.app.main
        assert "apply" in feed.controls.verbs()


async def test_a_guardian_that_takes_its_time_is_waited_for_visibly() -> None:
    answered = asyncio.Event()
    feed = FakeFeed()
    answer = feed.controls.undo

    async def late(rule_id: str) -> RuleStatus:
        await answered.wait()
        return await answer(rule_id)

    feed.controls.undo = late  # type: ignore[method-assign]
    async with running(provisional(), feed=feed) as run:
        await run.press("u")
        assert "removing rule 7 …" in run.status
        answered.set()
        await run.settle()
        assert "rule 7 was removed" in run.text()
