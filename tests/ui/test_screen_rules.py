"""The Rules tab: what each does, what changed with it, and the keys that change it."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace
from screen_factory import provisional, snapshot
from screen_parts import NOW, block_rule, conntrack, ledger
from screen_run import LARGE, SMALL, Run, running

from fwtop.model.errors import FwtopError
from fwtop.model.rule import (
    POLICY,
    POLICY_TRIAL,
    Kind,
    Level,
    Match,
    Protection,
    Range,
    RateLimit,
    Rule,
    RuleStatus,
    State,
)
from fwtop.model.traffic.counters import TcpService
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.rules.words import summarise
from fwtop.ui.lists.rules import RuleEffects


def rule_line(run: Run, rule_id: str) -> str:
    return next(line for line in run.lines() if line[2:].startswith(f"{rule_id} "))


@pytest.mark.parametrize("size", [SMALL, LARGE, (60, 15), (120, 40)])
async def test_shows_state_time_left_and_actual_against_predicted(size: tuple[int, int]) -> None:
    async with running(provisional(), size) as run:
        await run.press("m")
        line = rule_line(run, "7")
        for wanted in ("TRIAL 21 s", "95.4k", "96.0k"):
            assert wanted in line
        assert "active 6m32s left" in rule_line(run, "5")
        assert all(len(text) == size[0] for text in run.lines())
        assert "u remove" in run.lines()[-1]


@pytest.mark.parametrize("size", [SMALL, (120, 40)])
async def test_numbers_of_rules_are_shown_whole(size: tuple[int, int]) -> None:
    """They go on over all sessions of a machine, and are what the commands take."""
    shot = provisional()
    rules = [
        replace(one, rule=replace(one.rule, id=f"{10_240 + n}")) for n, one in enumerate(shot.mitigations)
    ]
    async with running(replace(shot, mitigations=tuple(rules)), size) as run:
        await run.press("m")
        assert "TRIAL" in rule_line(run, "10240")


async def test_tells_what_changed_since_the_rule_went_in() -> None:
    before = replace(snapshot(), conntrack=conntrack(0.9), tcp=TcpService(2, 3.0, 80.0))
    async with running(before, (80, 40)) as run:
        await run.send(replace(provisional(), conntrack=conntrack(0.2), tcp=TcpService(90, 24.0, 1200.0)))
        await run.press("m")
        shown = run.text()
        assert "matches      95.4k packets a second; 96.0k expected" in shown
        assert "stops 33.0 % of the attack, hits 0.1 % of client-like packets" in shown
        assert "90.0 % →  20.0 %  full" in shown
        assert "3 →      24  handshakes finished a second" in shown
        assert "80 →   1.20k  segments a second" in shown
        assert " 187k →   18.7k  packets a second" in shown, "drops that are not the rule's"


async def test_rule_from_before_has_no_comparison() -> None:
    async with running(provisional()) as run:
        await run.press("m")
        assert "no figures from before that" in run.text()


def test_effects_forget_rules_that_are_over() -> None:
    effects = RuleEffects()
    effects.take(snapshot())
    effects.take(provisional())
    assert set(effects.before) == {"7", "5"}
    flow = effects.before["7"].flow
    assert flow.other + flow.kernel == pytest.approx(
        sum(row.pps for row in ledger(0.6)[:1] + ledger(0.6)[2:4])
    )
    effects.take(snapshot())
    assert effects.before == {}


async def test_keys_refer_to_the_selected_rule() -> None:
    async with running(provisional()) as run:
        await run.press("m", "down", "u", "right", "enter")
        assert run.feed.controls.calls == [("undo", "5")]
        assert "rule 5 was removed" in run.status
        await run.press("up", "plus", "enter")
        assert run.feed.controls.calls[-1] == ("keep", ("7", 600))
        assert run.app.screen is run.app.main
        assert run.app.main.tabs.shown.name == "rules", "dialogs come back to it"


async def test_idle_rule_points_to_why_and_why_shows_the_guardians_sentences() -> None:
    base = provisional()
    idle = tuple(replace(status, pps=0.0) for status in base.mitigations)
    async with running(replace(base, mitigations=idle)) as run:
        await run.press("m")
        assert "w says why" in run.text()
        run.feed.controls.why_answer = ("rule 5 takes \x1b[31mthe same packets first", "and its set is empty")
        await run.press("w")
        assert run.feed.controls.calls == [("why", "7")]
        assert "▪ rule 5 takes" in run.text()
        assert "▪ and its set is empty" in run.text()
        assert all(line.isprintable() for line in run.lines())
        await run.press("escape")
        assert run.app.main.tabs.shown.name == "rules"


async def test_guardian_that_cannot_say_why_is_a_line() -> None:
    async with running(provisional()) as run:
        await run.press("m")
        run.feed.controls.failure = FwtopError("this guardian can't say why")
        await run.press("w")
        assert "this guardian can't say why" in run.status


async def test_changed_rule_replaces_the_old_one_only_when_it_is_kept() -> None:
    async with running(provisional()) as run:
        await run.press("m", "c", "up", "right", "enter", "enter")
        controls = run.feed.controls
        assert controls.verbs()[-1] == "apply"
        assert "y keeps it and removes rule 7" in run.status
        kept = replace(provisional().mitigations[1])
        old = replace(provisional().mitigations[0])
        now = (replace(controls.rules["8"]), old, kept)
        await run.send(replace(provisional(), mitigations=now))
        await run.press("y")
        assert ("keep", "8") in controls.calls
        assert ("undo", "7") in controls.calls
        assert controls.calls.index(("undo", "7")) > controls.calls.index(("keep", "8"))


def one_confirmed(rule: Rule) -> Snapshot:
    status = RuleStatus(rule, State.CONFIRMED, 1_200_000, 90_000_000, 36_100.0, NOW + 392, stamp=4)
    return replace(provisional(), mitigations=(status,))


async def test_a_long_rule_is_named_on_a_narrow_overview_as_its_proposal_was() -> None:
    syns = Match(protocol=6, dport=443, tcp_flags=(0x12, 0x02), ip_length=Range(40, 40))
    rule = replace(block_rule("5"), kind=Kind.XDP, match=syns)
    async with running(one_confirmed(replace(rule, summary=summarise(rule)))) as run:
        assert any(re.search(r"^▹ 5 .* drop 40-byte SYNs to ", line) for line in run.lines())
        await run.press("m")
        assert any(re.search(r"^▸ 5 .* drop TCP to port 443", line) for line in run.lines()), (
            "there it is whole"
        )


async def test_a_confirmed_rule_is_changed_in_place_and_on_trial() -> None:
    limit = RateLimit(1000, 1000, 24, 56)
    rule = replace(block_rule("5"), kind=Kind.HASHLIMIT, limit=limit, ttl_seconds=600)
    async with running(one_confirmed(rule)) as run:
        await run.press("m", "c")
        assert "exactly this: change something first" in run.text()
        assert "Refused" not in run.text(), "nobody did: nothing was asked for yet"
        await run.press("up", "up", "up", "up", *"500/s", "enter", "enter")
        shown = " ".join(run.text().split())
        assert "rule 5 keeps its counters, and is as before after 30 s unless you press y" in shown
        assert "Change Cancel" in shown
        await run.press("enter")
        ((changed, stamp),) = [value for verb, value in run.feed.controls.calls if verb == "change"]
        assert (changed.id, changed.limit.per_second, stamp) == ("5", 500, 4)
        assert (changed.created_by, changed.created) == (rule.created_by, rule.created)
        assert "rule 5 is changed in place" in run.status
        assert "apply" not in run.feed.controls.verbs()


async def test_another_time_to_live_takes_a_new_rule() -> None:
    async with running(one_confirmed(block_rule("5"))) as run:
        await run.press("m", "c", "up", "right", "enter", "enter")
        assert run.feed.controls.verbs()[-1] == "apply"
        assert "y keeps it and removes rule 5" in run.status


async def test_countdown_and_new_snapshots_go_on() -> None:
    async with running(provisional(21.0)) as run:
        await run.press("m")
        run.clock[0] = NOW + 15
        await run.send(provisional(21.0))
        assert "TRIAL 6 s" in rule_line(run, "7")


async def test_rule_that_expired_while_the_guardian_is_lost_is_over() -> None:
    lost = replace(provisional(21.0), guardian="lost: the socket closed")
    async with running(lost) as run:
        await run.press("m")
        run.clock[0] = NOW + 24
        await run.send(lost)
        assert "over, expired" in rule_line(run, "7")
        await run.press("u")
        assert "the guardian is lost" in run.status
        assert run.feed.controls.calls == []


@pytest.mark.parametrize(
    "key", ["u", "plus", "c", "w", "enter", "y", "question_mark", "end", "home", "pagedown"]
)
async def test_empty_screen_answers_every_key(key: str) -> None:
    async with running(snapshot()) as run:
        await run.press("m", key)
        assert run.feed.controls.calls == []
        await run.press("escape", "escape")
        assert run.app.screen is run.app.main


@pytest.mark.parametrize("key", ["escape", "m"])
async def test_keys_that_opened_the_tab_do_not_leave_it(key: str) -> None:
    async with running(provisional()) as run:
        await run.press("m", key)
        assert run.app.screen is run.app.main
        assert run.app.main.tabs.shown.name == "rules"


async def test_quitting_asks_as_on_every_tab() -> None:
    async with running(provisional()) as run:
        await run.press("m", "q")
        assert run.dialog == "ChoiceDialog"
        assert run.app.return_code is None


async def test_resize_to_tiny_and_back() -> None:
    async with running(provisional()) as run:
        await run.press("m")
        for size in ((40, 10), (200, 50), (60, 15), SMALL):
            await run.pilot.resize_terminal(*size)
            await run.settle()
        assert "TRIAL 21 s" in rule_line(run, "7")


CLOSED = Rule(
    "7",
    Kind.PROTECT,
    Match(protocol=6, dport=443),
    "443/tcp closed",
    600,
    NOW,
    "cli",
    protection=Protection(Level.CLOSED, priority=100),
)
# A key that may not: what belongs elsewhere, its state, the command that the screen shows.
ELSEWHERE = {
    "u on a port": ("u", CLOSED, State.CONFIRMED, "sudo fwtop undo 7 --netns web"),
    "+ on a port": ("plus", CLOSED, State.CONFIRMED, "sudo fwtop keep 7 --ttl 1d --netns web"),
    "c on a port": ("c", CLOSED, State.CONFIRMED, "sudo fwtop protect 443/tcp --level closed --priority 100"),
    "y on a port": ("y", CLOSED, State.PROVISIONAL, "sudo fwtop keep 7 --netns web"),
    "u on a policy": ("u", replace(block_rule("7"), created_by=POLICY), State.CONFIRMED, "sudo fwtop undo 7"),
    "c on a policy": (
        "c",
        replace(block_rule("7"), created_by=POLICY),
        State.CONFIRMED,
        "fwtop policy apply",
    ),
    "y on a trial": (
        "y",
        replace(block_rule("7"), created_by=POLICY_TRIAL),
        State.PROVISIONAL,
        "policy apply",
    ),
}


@pytest.mark.parametrize("case", ELSEWHERE)
async def test_a_key_that_may_not_shows_the_command_for_another_terminal(case: str) -> None:
    key, rule, state, command = ELSEWHERE[case]
    base = snapshot()
    own = RuleStatus(
        rule, state, expires=NOW + 300, confirm_by=NOW + 20 if state is State.PROVISIONAL else None
    )
    shown = replace(base, mitigations=(own,), origin=replace(base.origin, netns="web"))
    async with running(shown, (120, 40)) as run:
        await run.press("m", key)
        assert "In another terminal:" in run.text()
        assert command in run.text()
        await run.press("escape")
        assert run.feed.controls.calls == [], "nothing was asked of the guardian"


@pytest.mark.parametrize("keys", [("c", "up", "right", "enter", "enter"), ("u", "ctrl+r", "enter")])
async def test_a_rule_of_which_the_screen_knows_a_part_goes_in_whole(keys: tuple[str, ...]) -> None:
    """The status shows the first 200 of its sources."""
    base = provisional()
    long = replace(base.mitigations[0], sources_total=1_000)
    async with running(replace(base, mitigations=(long,))) as run:
        run.feed.controls.rules["7"] = long
        await run.press("m", *keys)
        [(_, (rule, _))] = [call for call in run.feed.controls.calls if call[0] == "apply"]
        assert len(rule.match.sources) == 1_000


async def test_a_rule_whose_sources_are_not_kept_is_not_installed_again() -> None:
    base = provisional()
    long = replace(base.mitigations[0], sources_total=1_000)
    async with running(replace(base, mitigations=(long,))) as run:
        run.feed.controls.rules["7"] = long
        await run.press("m", "u")
        run.feed.controls.failure = FwtopError("rule 7 has ended, and 800 of its sources are not kept")
        await run.press("ctrl+r")
        assert "800 of its sources are not kept" in run.status
        assert "apply" not in run.feed.controls.verbs()
