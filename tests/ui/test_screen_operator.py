"""What the operator must never be misled about: figures, targets, rules that end, and what a key would do."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace
from screen_factory import calm, later, provisional, snapshot, spoofed
from screen_parts import NOW, block_rule, conntrack, proposals
from screen_run import LARGE, SMALL, running

from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import RuleStatus, State
from fwtop.model.traffic.counters import ConntrackSample
from fwtop.model.traffic.snapshot import LedgerRow, Origin, Snapshot, Source
from fwtop.ui.lists.stages import conntrack_figures, shown_ledger
from fwtop.ui.lists.traffic import SOURCE_VIEWS


def with_table(sample: ConntrackSample) -> Snapshot:
    return replace(snapshot(), conntrack=sample)


# -- figures


def test_full_table_is_not_told_as_not_growing() -> None:
    figures = {figure.name: figure for figure in conntrack_figures(with_table(conntrack(1.0)))}
    assert figures["fills up"].value == "FULL"
    assert figures["fills up"].alarm


async def test_minutes_to_a_full_table_are_no_alarm() -> None:
    async with running(with_table(conntrack(0.057, seconds_to_full=480.0)), LARGE, at="conntrack") as run:
        assert "full in" not in run.lines()[1]
        assert "in ~8 min" in run.text(), "the panel says it, without an alarm"


@pytest.mark.parametrize("fill", [0.9, 0.9991, 1.0])
async def test_alarm_of_the_table_fits_at_80_columns(fill: float) -> None:
    shot = with_table(conntrack(fill, seconds_to_full=90.0, drop=4100))
    totals = replace(shot.tables.totals, dropped=shot.tables.totals.packets - 1, pps=1_230_000.0)
    shot = replace(shot, tables=replace(shot.tables, totals=totals))
    async with running(shot, SMALL) as run:
        assert "conntrack" in run.lines()[1]
        assert ("FULL" in run.lines()[1]) is (fill > 0.99)


async def test_attack_is_never_faster_than_all_packets_together() -> None:
    base = snapshot()
    fast = replace(base.judgement.attacks[0], pps=base.tables.totals.pps * 1.4)
    async with running(replace(base, judgement=replace(base.judgement, attacks=(fast,)))) as run:
        assert "437k pps" not in run.text()
        assert "arrives 312k" in run.lines()[2]
        await run.press("a")
        assert "437k" not in run.text()


async def test_header_names_the_window_and_the_time() -> None:
    async with running(snapshot(), SMALL) as run:
        assert "mean of 3 s" in run.lines()[0]
        assert run.lines()[0].rstrip().endswith("14:13:20Z")


async def test_replay_shows_its_own_clock() -> None:
    shot = replace(snapshot(), origin=Origin("session", file="web1"), started=NOW - 86_403.0)
    async with running(shot) as run:
        assert "2026-09-20 14:13:20Z" in run.lines()[0]


# -- targets


def marked(*names: str) -> Snapshot:
    base = spoofed()
    known = {0: "you", 1: "resolver"}
    sources = tuple(
        replace(source, who=known.get(number, ""))
        for number, source in enumerate(base.tables.sources.address)
    )
    return replace(base, tables=replace(base.tables, sources=replace(base.tables.sources, address=sources)))


async def test_in_a_spoofed_flood_known_peers_are_marked_and_come_first() -> None:
    shot = marked()
    you = shot.tables.sources.address[0].key
    async with running(shot, LARGE) as run:
        assert run.app.main.tabs.panels["sources"].view.name == "port", "not victims"
        assert run.app.main.tabs.panel.spec.name == "proposals", "b must not mean a victim"
        run.app.main.tabs.panels["sources"].show_view("address")
        rows = run.app.main.tabs.panels["sources"].rows.items
        assert [row.who for row in rows][:2] == ["you", "resolver"]  # type: ignore[union-attr]
        run.app.main.view.redraw()
        await run.settle()
        assert "forged: these need not be the senders" in run.text()
        run.app.main.tabs.focus("sources")
        await run.press("home", "r")
        assert you in run.text()
        assert "you: an SSH session to this host comes from it" in run.text()


async def test_panel_that_the_operator_chose_is_not_left() -> None:
    async with running(calm()) as run:
        await run.press("tab")
        await run.send(spoofed())
        assert run.app.main.tabs.panel.spec.name == "attacks", (
            "proposals take the keys only of who chose nothing"
        )


async def test_row_that_was_looked_at_stays_selected() -> None:
    base = snapshot()
    async with running(base, at="sources") as run:
        first = run.selected_key()
        await run.press("r", "escape")
        turned = base.tables.sources.address[::-1]
        run.clock[0] += 60
        await run.send(
            replace(base, tables=replace(base.tables, sources=replace(base.tables.sources, address=turned)))
        )
        assert run.selected_key() == first


# -- rules that end, and rules that exist


async def test_expiry_without_confirmation_is_told_until_a_key() -> None:
    async with running(provisional(5.0)) as run:
        run.clock[0] = NOW + 7
        await run.send(replace(provisional(5.0), mitigations=provisional().mitigations[1:]))
        assert "✖ Rule 7 expired 2 s ago, UNPROTECTED." in run.text()
        assert "Enter previews it again" in run.text()
        run.clock[0] = NOW + 600
        await run.send(snapshot())
        assert "Rule 7 expired" in run.text(), "it stays"
        await run.press("y")  # a moment too late
        assert "Rule 7 expired" in run.text()
        assert "rule 7 was not confirmed in time" in run.status
        await run.press("down")
        assert "expired" not in run.text()


@pytest.mark.parametrize("state", [State.PROVISIONAL, State.CONFIRMED])
async def test_ctrl_r_previews_the_expired_rule_again(state: State) -> None:
    shown = provisional(5.0)
    ended = replace(shown.mitigations[0], state=state, expires=NOW + 5)
    async with running(replace(shown, mitigations=(ended, *shown.mitigations[1:]))) as run:
        run.clock[0] = NOW + 7
        await run.send(replace(shown, mitigations=shown.mitigations[1:]))
        await run.press("ctrl+r")
        assert ended.rule.summary in run.text()
        await run.press("enter")
        assert "apply" in run.feed.controls.verbs()


async def test_enter_on_the_alarm_previews_the_expired_rule_again() -> None:
    async with running(provisional(5.0)) as run:
        run.clock[0] = NOW + 7
        await run.send(snapshot())
        await run.press("enter")
        assert run.dialog == "RuleDialog"
        assert "block 3 addresses" in run.text()
        await run.press("enter")
        assert run.feed.controls.verbs()[-1] == "apply"
        assert "expired" not in run.text()


async def test_overdue_rule_of_a_lost_guardian_is_told_too() -> None:
    async with running(provisional(5.0)) as run:
        run.clock[0] = NOW + 8
        await run.send(provisional(5.0))
        assert "Rule 7 expired" in run.text()


async def test_rule_that_the_operator_removed_or_confirmed_is_no_alarm() -> None:
    async with running(provisional(5.0)) as run:
        await run.press("u")
        run.clock[0] = NOW + 7
        await run.send(snapshot())
        assert "expired" not in run.text()
    async with running(provisional(5.0)) as run:
        confirmed = replace(provisional().mitigations[0], state=State.CONFIRMED, confirm_by=None)
        await run.send(replace(provisional(), mitigations=(confirmed,)))
        run.clock[0] = NOW + 7
        await run.send(snapshot())
        assert "expired" not in run.text()


async def test_confirmed_rule_is_removed_only_after_a_question() -> None:
    async with running(provisional(), at="rules") as run:
        await run.press("down", "u")
        assert run.dialog == "ChoiceDialog"
        assert "36.1k pps" in " ".join(run.text().replace("│", "").split())
        await run.press("enter")
        assert run.feed.controls.calls == []
        assert run.status.endswith("rule 5 stays")
        await run.press("u", "right", "enter")
        assert run.feed.controls.calls == [("undo", "5")]


async def test_same_rule_is_refused_with_the_id_of_the_one_that_does_it() -> None:
    active = RuleStatus(block_rule("7"), State.CONFIRMED, expires=NOW + 100)
    async with running(replace(snapshot(), mitigations=(active,)), at="sources") as run:
        await run.press("down", "b")  # 203.0.113.2 is one of rule 7's
        assert "rule 7 does this already" in run.text()
        assert "Install" not in run.text()
        await run.press("enter")
        assert "apply" not in run.feed.controls.verbs()


async def test_proposals_say_which_active_rule_covers_them() -> None:
    rule = proposals()[0].rule
    assert rule is not None
    active = RuleStatus(replace(rule, id="9"), State.CONFIRMED, expires=NOW + 100)
    async with running(replace(snapshot(), mitigations=(active,)), LARGE) as run:
        assert "protect against A: rule 9 is in force" in run.text()


async def test_source_that_a_rule_drops_otherwise_says_so() -> None:
    rule = proposals()[0].rule
    assert rule is not None
    active = RuleStatus(replace(rule, id="9"), State.CONFIRMED, pps=90_000.0, expires=NOW + 100)
    base = snapshot()
    dropped = tuple(replace(source, dropped_share=1.0) for source in base.tables.sources.address)
    tables = replace(base.tables, sources=replace(base.tables.sources, address=dropped))
    async with running(replace(base, tables=tables, mitigations=(active,)), at="sources") as run:
        await run.press("r")
        assert "rule 9 drops 100 % of it, not by its address" in run.text()


# -- reach


async def test_proposals_beyond_nine_are_reached_by_arrows_and_enter() -> None:
    base = snapshot()
    first = proposals()[0]
    assert first.rule is not None
    many = tuple(
        replace(
            first,
            number=number,
            summary=f"proposal no {number}",
            rule=replace(first.rule, ttl_seconds=number),
        )
        for number in range(1, 15)
    )
    async with running(replace(base, judgement=replace(base.judgement, proposals=many))) as run:
        await run.press(*["down"] * 11)
        assert re.search(r"▸ 12 ", run.text())
        await run.press("enter")
        assert run.dialog == "RuleDialog"
        assert run.app.screen.rule.ttl_seconds == 12  # type: ignore[attr-defined]


@pytest.mark.parametrize("key", ["r", "b", "question_mark", "a"])
async def test_panels_and_details_live_behind_dialogs(key: str) -> None:
    base = snapshot()
    async with running(base, LARGE, at="sources") as run:
        await run.press(key)
        totals = replace(base.tables.totals, pps=777_000.0)
        sources = tuple(
            replace(source, share=replace(source.share, pps=4_321.0))
            for source in base.tables.sources.address
        )
        tables = replace(base.tables, totals=totals, sources=replace(base.tables.sources, address=sources))
        await run.send(replace(base, tables=tables))
        assert "777k" in run.lines()[2]
        shown = run.app.main.tabs.panels["sources"]._strips
        assert any("4.32k" in strip.text for strip in shown)
        if key == "r":
            assert "4.32k pps" in run.text()


async def test_read_only_offers_no_key_that_it_would_refuse() -> None:
    async with running(provisional()) as run:
        run.feed.controls.readonly = "started with --readonly"
        run.app.main.view.redraw()
        assert "confirm" not in run.lines()[-1]
        assert "remove" not in run.lines()[-1]
        assert "keep" not in run.lines()[1]
        await run.press("1")
        assert "Install" not in run.text()


async def test_quitting_says_what_was_done_and_what_remains() -> None:
    async with running(snapshot(), at="sources") as run:
        await run.press("b", "enter", "y", "p")
        kept = replace(provisional().mitigations[1], expires=NOW + 395)
        others = replace(kept, rule=replace(kept.rule, id="9", created=NOW), state=State.EXPIRED)
        await run.send(replace(later(snapshot(), 3.0), mitigations=(kept, others)))
        first, peak, remains = run.app.main.session.farewell()
        assert first == "fwtop: session 2026-09-21T14-13-20-web1, 6 s: fwtop report 2026-09-21T14-13-20-web1"
        assert "peak 312k pps at 14:13:20Z (UDP flood); installed rule 8 (block 203.0.113.1), rule 9" in peak
        assert peak.endswith(") elsewhere"), "another shell, or automatic"
        assert "in force: rules 5 for 6m32s, 8 for 9m57s; to remove: sudo fwtop undo 5 8" in remains


async def test_addresses_are_never_cut() -> None:
    long = "2001:db8:1234:5678:9abc:def0:1234:5678"
    base = snapshot()
    source = Source(long, base.tables.sources.address[0].share, 0.0, prefix=Prefix.parse(long))
    tables = replace(base.tables, sources=replace(base.tables.sources, address=(source,)))
    assert SOURCE_VIEWS
    for size in (SMALL, (60, 15), LARGE):
        async with running(replace(base, tables=tables), size, at="sources") as run:
            assert long in run.text()


@pytest.mark.parametrize(
    ("share", "shown"), [(0.0004, False), (-0.0009, False), (0.002, True), (-0.01, True)]
)
def test_unexplained_packets_are_shown_from_a_thousandth(share: float, shown: bool) -> None:
    base = snapshot()
    rest = LedgerRow("unexplained", "", round(share * base.tables.totals.packets), 1.0)
    lines = shown_ledger(replace(base, tables=replace(base.tables, ledger=(rest,))))
    assert bool(lines) is shown


async def test_a_filter_is_shown_where_the_title_stands_in_the_heads() -> None:
    async with running(snapshot(), at="proposals") as run:
        await run.press("slash", *"27015", "enter")
        assert "/27015 hides 0" in run.text()
        await run.press("slash", *"zz", "enter")
        assert "nothing matches /zz" in run.text()


async def test_keys_never_refer_to_a_panel_that_rules_leave_no_room_for() -> None:
    base = calm()
    long = replace(provisional().mitigations[1], rule=replace(block_rule("5"), summary="word " * 25))
    async with running(
        base, (80, 32)
    ) as run:  # where a rule of one line would leave room, one of three doesn't
        assert run.app.main.tabs.panel.spec.name == "sources"
        for _ in range(3):
            await run.send(replace(base, mitigations=(long,)))
            assert run.app.main.tabs.panel.display
            assert run.app.main.tabs.panel.spec.name != "sources"
        for _ in range(2):
            await run.send(base)
        assert run.app.main.tabs.panel.spec.name == "sources", "which has room again"
