"""Harm beats every other verdict, ends a trial, and is heard; bots are not counted as clients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from rich.style import Style
from screen_factory import calm, harm, protected, provisional, snapshot, spoofed, trial
from screen_parts import NOW, attack, conntrack
from screen_run import LARGE, SMALL, running

from fwtop.model.rule import State
from fwtop.model.traffic.counters import TcpService
from fwtop.model.traffic.session import EventKind
from fwtop.model.traffic.snapshot import Judgement, LedgerRow, Snapshot
from fwtop.render.observation import observation_json
from fwtop.render.verdict import Badge, verdict_of
from fwtop.store.events import derive
from fwtop.ui.attention import BELL, Attention
from fwtop.ui.format import about
from fwtop.ui.header.lines import HeaderState, header_lines
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.lists.attacks import ATTACK_VIEW
from fwtop.ui.lists.history import History
from fwtop.ui.lists.numbers import ProposalList
from fwtop.ui.lists.rows import Fold
from fwtop.ui.lists.stages import conntrack_figures
from fwtop.ui.lists.table import CellContext, columns_now, fit_columns, row_lines
from fwtop.ui.lists.traffic import _dropped
from fwtop.ui.style import DIM, ELSEWHERE, GOOD


def header(shown: Snapshot, width: int = 120) -> list[str]:
    lines = header_lines(shown, History(), HeaderState(NOW), width)
    return ["".join(part for part, _ in line) for line in lines]


@pytest.mark.parametrize("shown", [provisional(), trial(), protected()])
def test_harm_beats_every_other_verdict(shown: Snapshot) -> None:
    slight = tuple(replace(loss, sure=0.2) for loss in harm(shown).losses)
    assert verdict_of(replace(shown, losses=slight), NOW).badge is verdict_of(shown, NOW).badge
    found = verdict_of(harm(shown), NOW)
    assert found.badge is Badge.HARM
    ended = tuple(replace(status, state=State.REVERTED) for status in shown.mitigations)
    assert verdict_of(replace(harm(shown), mitigations=ended), NOW).badge is not Badge.HARM
    name = shown.mitigations[0].rule.id
    line = header(harm(shown), 80)[1]
    assert line.startswith(f" ✖ HARM   rule {name}: clients of 80/tcp 105/s → 0/s since it is in")
    assert line.rstrip().endswith("u remove")
    assert "keep" not in line
    told = observation_json(harm(shown))["verdict"]
    assert (told["state"], told["harm"]["sure"]) == ("harm", 0.97)


def test_what_a_harmful_rule_drops_is_not_green() -> None:
    for shown, is_green in ((protected(), True), (harm(protected()), False)):
        rates = header_lines(shown, History(), HeaderState(NOW), 120)[2]
        attacks = columns_now(ATTACK_VIEW, shown.judgement.attacks, CellContext(NOW, snapshot=shown), 120)
        line = row_lines(
            fit_columns(attacks, 120), shown.judgement.attacks[0], CellContext(NOW, snapshot=shown)
        )
        for spans in (rates, *line):
            assert any(style == GOOD for _, style in spans) is is_green


async def test_what_does_harm_is_not_offered_to_be_kept() -> None:
    for shown, offered in ((provisional(), True), (harm(provisional()), False)):
        async with running(shown, LARGE) as run:
            assert ("keep" in run.lines()[-1]) is offered


async def test_a_trial_that_ended_for_harm_is_told_until_a_key_and_why() -> None:
    for size in (SMALL, LARGE):
        async with running(harm(provisional()), size, at="rules") as run:
            assert run.text().count("✖ HARM") == 2, "in the badge and where the rule is listed"
            over = replace(harm(provisional()), losses=(), mitigations=provisional().mitigations[1:])
            run.clock[0] = NOW + 3
            await run.send(over)
            shown = run.text()
            assert "with it clients of 80/tcp 105/s → 0/s." in shown
            assert f"{KEY_MAP.label('redo')} previews it again" in shown
            run.clock[0] = NOW + 600
            await run.send(over)
            assert "✖ Rule 7 was taken back" in run.text(), "it stays"
            await run.press("ctrl+r")
            assert run.dialog == "RuleDialog"
            await run.press("escape")


async def test_what_did_harm_is_not_offered_again_before_others() -> None:
    shown = harm(provisional())
    rule = next(one.rule for one in shown.mitigations if one.rule.id == shown.losses[0].rule)
    again, *others = (replace(one, number=0) for one in spoofed().judgement.proposals)
    again = replace(again, rule=replace(rule, id=""), key="again")
    judgement = replace(shown.judgement, proposals=(again, *others))
    ended = tuple(replace(one, state=State.REVERTED) for one in shown.mitigations)
    proposals = ProposalList()
    for passed, seen in enumerate((shown, replace(shown, losses=(), mitigations=ended))):
        proposals.take(replace(seen, judgement=judgement), 0, float(passed))
    assert "again" not in [one.key for one in proposals.helpful()]
    fold = next(one for one in proposals.rows() if isinstance(one, Fold) and one.key == "harmed")
    assert [one.key for one in fold.rows] == ["again"]


@pytest.mark.parametrize(("harm", "keys"), [(0.0, "press 1 Enter "), (0.3, "press 1 ")])
async def test_the_header_names_no_enter_that_would_only_cancel(harm: float, keys: str) -> None:
    shown = spoofed()
    first = shown.judgement.proposals[0]
    one = replace(first, collateral_share=harm, rule=replace(first.rule, predicted_clients=None))
    async with running(replace(shown, judgement=replace(shown.judgement, proposals=(one,)))) as run:
        assert f"  {keys}" in run.text().splitlines()[1].replace(":", " ") + " "


@pytest.mark.parametrize(
    ("held_pps", "badge", "words"),
    [
        (64.0, Badge.PROTECTED, "my rules hold off UDP flood: its senders still send 64 pps"),
        (0.0, Badge.PROTECTED, "my rules hold off UDP flood  "),  # between two retries
        (None, Badge.PAUSED, "UDP flood, last packet 9 s ago"),
    ],
)
def test_an_attack_that_a_rule_holds_off_is_not_called_paused(
    held_pps: float | None, badge: Badge, words: str
) -> None:
    """Its senders only send SYNs again, which is not what made them an attack."""
    shown = protected()
    gone = replace(shown.judgement.attacks[0], paused=NOW - 9, last=NOW - 9, held_pps=held_pps)
    held = replace(shown, judgement=replace(shown.judgement, attacks=(gone,)))
    assert verdict_of(held, NOW).badge is badge
    assert words in header(held)[1]


def test_connections_that_a_held_off_attack_left_open_leave_something_to_do() -> None:
    """A rule by contents stops the requests; the server waits for the rest of them until its timeouts."""
    shown = protected()
    gone = replace(shown.judgement.attacks[0], paused=NOW - 9, last=NOW - 9, held_pps=64.0)
    left = replace(gone, id=9, paused=None, held_pps=None, effect_of="x", holds=576, holds_of=640)
    held = replace(shown, judgement=replace(shown.judgement, attacks=(gone, replace(left, target="tcp/80"))))
    assert verdict_of(held, NOW).badge is Badge.PARTLY
    assert "holds 576 of 640 connections of 80/tcp" in header(held)[1]
    assert "nothing to do" not in header(held)[1]
    few = replace(left, holds=64)
    fine = replace(held, judgement=replace(shown.judgement, attacks=(gone, few)))
    assert verdict_of(fine, NOW).badge is Badge.PROTECTED


@pytest.mark.parametrize(
    ("held_pps", "words"),
    [(64.0, "attack stopped ✔"), (None, "no attack now")],
)
async def test_a_trial_says_that_the_attack_stopped_with_it(held_pps: float | None, words: str) -> None:
    shown = provisional()
    gone = replace(shown.judgement.attacks[0], paused=NOW - 9, last=NOW - 9, pps=0.0, held_pps=held_pps)
    async with running(replace(shown, judgement=replace(shown.judgement, attacks=(gone,))), (120, 40)) as run:
        badge = run.text().splitlines()[1]
        row = next(line for line in run.text().splitlines() if "▹ A" in line)
    assert words in badge
    assert (" held" in row, " 64 " in row, "100 %" in row) == (held_pps is not None,) * 3, row
    assert ("paused" in row) is (held_pps is None), row


@pytest.mark.parametrize(
    ("note", "words"),
    [
        ("closed 1,200 open connections", "rule 7 closed 1,200 open connections  attack stopped ✔"),
        ("closed 0 open connections", "no attack"),
    ],
)
def test_a_trial_that_closed_what_an_attack_held_says_so(note: str, words: str) -> None:
    """Its tool gives up then, so that the rule has nothing to drop."""
    shown = provisional()
    rules = tuple(replace(one, note=note, pps=0.0) for one in shown.mitigations)
    ledger = tuple(row for row in shown.tables.ledger if row.rule is None)
    quiet = replace(shown, mitigations=rules, judgement=replace(shown.judgement, attacks=()))
    quiet = replace(quiet, tables=replace(quiet.tables, ledger=ledger))
    assert words in header(quiet)[1]


def test_log_and_programs_hear_of_harm_once_and_of_its_end() -> None:
    before, during = provisional(), harm(provisional())
    (begun,) = derive(before, during)
    assert (begun.kind, begun.text) == (EventKind.RULE_HARMS, "clients of 80/tcp 105/s → 0/s since it is in")
    assert derive(during, during) == []
    (end,) = derive(during, replace(before, mitigations=before.mitigations[1:]))
    assert end.kind is EventKind.RULE_UNDONE
    assert end.text.endswith("it did harm, clients of 80/tcp 105/s → 0/s")


@pytest.mark.parametrize(
    ("known", "long", "short"),
    [
        (133.0, "known clients 133/s", "known clients 133/s"),
        (None, "handshakes 997/s, bots included: clients not known", "clients ? bots"),
    ],
)
def test_clients_are_not_counted_together_with_bots(known: float | None, long: str, short: str) -> None:
    attacks = Judgement((attack(completes=True),))
    shown = replace(snapshot(judgement=attacks), tcp=TcpService(50, 997.0, 1_000.0, True, known))
    assert long in header(shown, 200)[2]
    assert short in header(shown, 80)[2]
    assert "│ clients" not in header(shown, 200)[2]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"drop": 9, "early_drop": 2}, "✖ conntrack FULL refusing new connections"),
        ({"drop": 2, "early_drop": 9}, "✖ conntrack FULL evicting"),
        ({"growth_per_s": -900.0}, " conntrack FULL draining"),
        ({}, "✖ conntrack FULL"),
    ],
)
def test_a_full_table_says_only_what_is_counted(more: dict[str, float], words: str) -> None:
    line = header(replace(spoofed(), conntrack=conntrack(1.0, **more)), 160)[1]
    assert line.rstrip().endswith(words)
    eased = header(replace(protected(), conntrack=conntrack(1.0, **more)), 160)[1]
    assert ("✖" in eased) is ("drop" in more), "in yellow while what came is stopped and nobody refused"


@pytest.mark.parametrize(
    ("shown", "left", "told"), [(spoofed, 2.0, True), (spoofed, 61.0, False), (calm, 2.0, False)]
)
@pytest.mark.parametrize("width", [80, 200])
def test_a_table_that_an_attack_fills_up_soon_is_in_the_verdict(
    shown: Callable[[], Snapshot], left: float, told: bool, width: int
) -> None:
    shot = replace(shown(), conntrack=conntrack(0.4, seconds_to_full=left))
    assert ("✖ conntrack full in <10 s" in header(shot, width)[1]) is told
    figures = {one.name: one.value for one in conntrack_figures(shot)}
    assert figures["fills up"] == ("not soon" if shown is calm else f"in {about(left)}")


@pytest.mark.parametrize(
    ("shown", "style"), [(trial(), GOOD), (replace(trial(), mitigations=()), GOOD), (spoofed(), DIM)]
)
def test_drops_have_the_colour_of_who_drops_most(shown: Snapshot, style: Style) -> None:
    """Green is for my rules alone."""
    source = replace(shown.tables.sources.address[0], dropped_share=1.0, dropped_low=1.0, dropped_high=1.0)
    source = replace(source, active_rule=None)
    assert _dropped(source, CellContext(NOW, snapshot=shown), 7) == [("100 %", style)]
    other = LedgerRow("netfilter", "NETFILTER_DROP", 300_000, 100_000.0)
    theirs = replace(shown, tables=replace(shown.tables, ledger=(other,)))
    assert _dropped(source, CellContext(NOW, snapshot=theirs), 7) == [("100 %", ELSEWHERE)]
    mine = replace(source, active_rule="7")
    assert _dropped(mine, CellContext(NOW, snapshot=theirs), 7) == [("100 %", GOOD)]


def test_the_title_follows_the_verdict_and_the_bell_rings_for_what_can_not_wait() -> None:
    ears = Attention()
    hostile = replace(snapshot(), host="vm\x1b]2;owned\a")
    assert ears.take(replace(calm(), host="vm"), NOW) == "\x1b]2;CALM – fwtop vm\a"
    begun = ears.take(hostile, NOW + 1)
    assert begun.startswith("\x1b]2;✖ PARTLY ")
    assert begun.endswith(BELL + BELL), "of the title, and one that is heard"
    assert begun.count("\x1b") == 1
    assert ears.take(hostile, NOW + 2) == "", "it has rung"
    assert not ears.take(provisional(21.0), NOW + 3).endswith(BELL + BELL)
    assert ears.take(provisional(21.0), NOW + 12) == BELL, "10 s before it ends"
    assert ears.take(provisional(21.0), NOW + 13) == ""
    assert ears.take(harm(provisional()), NOW + 14) == "\x1b]2;✖ HARM 125k – fwtop web1\a\a"
    assert Attention(title=False, bell=False).take(hostile, NOW) == ""


async def test_what_the_terminal_hears_is_written_to_it() -> None:
    async with running(calm()) as run:
        written: list[str] = []
        assert run.app._driver is not None
        run.app._driver.write = written.append  # type: ignore[method-assign]
        run.clock[0] = NOW + 5
        run.app._deliver(snapshot())
        await run.until(lambda: any(text.endswith(BELL * 2) for text in written))
        assert any("\x1b]2;✖ PARTLY" in text for text in written)
