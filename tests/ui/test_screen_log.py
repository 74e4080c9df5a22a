"""The Log tab and toasts: what happened, what the screen did, and what is new."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from screen_factory import calm, later, poison, provisional, snapshot
from screen_fakes import FakeFeed
from screen_parts import NOW, attack, block_rule
from screen_run import LARGE, SMALL, Run, running
from screen_vectors import vectors
from test_screen_player import STATE, FakePlayer, recorded

from fwtop.model.errors import FwtopError
from fwtop.model.rule import RuleStatus, State
from fwtop.model.traffic.session import Event, EventKind, Mark
from fwtop.model.traffic.snapshot import Judgement, Snapshot
from fwtop.render.numbers import utc as when
from fwtop.ui.actions.log import (
    MOST_ENTRIES,
    MOST_TOASTS,
    REFUSED,
    TOAST_SECONDS,
    LogEntry,
    SessionLog,
    Toast,
    ToastQueue,
    toast_lines,
)
from fwtop.ui.lists.panels import PAST_VIEW, ago
from fwtop.ui.lists.table import CellContext
from fwtop.ui.style import BAD, DIM, GOOD, TEXT, Line


def text(lines: list[Line]) -> list[str]:
    return ["".join(part for part, _ in line) for line in lines]


def kinds(log: SessionLog) -> list[str]:
    return [entry.kind for entry in log.entries]


def test_times_are_of_day_and_ago() -> None:
    assert when(NOW) == "14:13:20Z"
    assert [ago(age) for age in (0.4, 42, 200, 7_300, 90_000)] == [
        "now",
        "42 s ago",
        "3 m ago",
        "2 h ago",
        "1 d ago",
    ]


def test_snapshots_become_entries_with_their_evidence() -> None:
    log = SessionLog()
    assert log.take(calm()) == []
    log.take(later(snapshot(), 1))
    assert EventKind.ATTACK_BEGAN in kinds(log)
    began = next(entry for entry in log.entries if entry.kind == EventKind.ATTACK_BEGAN)
    assert any("evidence" in line for line in text(list(began.details)))
    log.take(later(provisional(), 2))
    rule = next(entry for entry in log.entries if entry.kind == EventKind.RULE_APPLIED)
    assert rule.subject in {"5", "7"}
    assert any("created by" in line for line in text(list(rule.details)))
    log.take(later(calm(), 3))
    assert kinds(log)[-3:].count(EventKind.ATTACK_ENDED) == 1
    ended = next(entry for entry in log.entries if entry.kind == EventKind.ATTACK_ENDED)
    assert ended.details, "it is described as it was"


def test_what_began_before_the_screen_opened_is_listed_in_its_order() -> None:
    log = SessionLog()
    log.take(vectors(snapshot()))
    times = [entry.at for entry in log.entries]
    assert len(set(times)) > 3
    assert times == sorted(times)


def test_the_log_is_bounded_and_counts_repetitions() -> None:
    log = SessionLog()
    for number in range(3):
        log.note(REFUSED, "no", NOW + number)
    assert [(entry.text, entry.count) for entry in log.entries] == [("no", 3)]
    for number in range(MOST_ENTRIES // 2 + 1):  # two entries each
        log.note(REFUSED, f"no {number}", NOW)
        log.take(later(replace(calm(), notes=(f"note {number}",)), number))
    assert len(log.entries) == MOST_ENTRIES
    assert len(log._notes) <= 200


def test_a_recording_s_log_ends_at_its_cursor() -> None:
    log = SessionLog()
    marks = tuple(Mark(NOW + at, Event(NOW + at, EventKind.ATTACK_BEGAN, "x", str(at))) for at in (0, 10, 20))
    assert len(log.replay(marks, NOW + 10)) == 2
    assert log.replay(marks, NOW + 15) == []
    assert [entry.text for entry in log.replay(marks, NOW + 30)] == ["20"]
    log.replay(marks, NOW + 5)
    assert [entry.text for entry in log.entries] == ["0"]


def test_toasts_are_few_short_lived_and_coalesced() -> None:
    queue = ToastQueue()
    for number in range(5):
        queue.add(str(number), f"toast {number}", BAD, NOW)
    assert [toast.text for toast in queue.current(NOW + 1)] == ["toast 2", "toast 3", "toast 4"]
    queue.add("3", "again", GOOD, NOW + 2)
    assert text(toast_lines(queue.current(NOW + 2), 40)) == [" toast 2 ", " toast 4 ", " again ×2 "]
    assert text(toast_lines(queue.current(NOW + 2), 5)) == [" aga ", " in… "], "of the newest at least a word"
    long = [Toast("x", "records lost: 1,787 samples did not fit the buffers", BAD, NOW + 9)]
    assert text(toast_lines(long, 30)) == [" records lost: 1,787 samples ", " did not fit the buffers     "]
    assert len(toast_lines(queue.current(NOW + 2), 40, [[("alarm", BAD)]])) == MOST_TOASTS
    assert [toast.text for toast in queue.current(NOW + 2 + TOAST_SECONDS - 0.1)] == ["again"]
    assert not queue.current(NOW + 60)


def test_what_is_known_late_stands_at_its_time() -> None:
    """The end of an attack is known seconds after it, when something else has happened since."""
    log = SessionLog()
    log.take(snapshot())
    log.note(REFUSED, "no", NOW + 20)
    over = replace(snapshot().judgement.attacks[0], ended=NOW + 10)
    log.take(later(replace(calm(), judgement=Judgement((over,))), 30))
    assert [entry.kind for entry in log.entries][-2:] == [EventKind.ATTACK_ENDED, REFUSED]
    ended = log.entries[-2]
    assert ended.words == "attack ended"
    assert "ended" not in ended.text


def test_a_recording_s_proposals_are_one_line() -> None:
    events = [Event(NOW + at, EventKind.RULE_PROPOSED, f"fwtop block {at}", "long " * 40) for at in range(9)]
    began = Event(NOW, EventKind.ATTACK_BEGAN, "x", "began")
    log = SessionLog()
    log.replay(tuple(Mark(NOW + 10, event) for event in (began, *events)), NOW + 10)
    assert [entry.words for entry in log.entries] == ["attack began", "proposals"]
    assert len(log.entries[-1].text) < 60


async def log_tab(run: Run) -> list[str]:
    await run.go("log")
    return run.lines()


async def test_the_tab_lists_events_and_counts_unread_ones() -> None:
    async with running(calm()) as run:
        await run.send(later(snapshot(), 1))
        assert run.app.main.desk.log.unread > 0
        assert f"Log {run.app.main.desk.log.unread}" in run.text()
        lines = await log_tab(run)
        assert any("attack began" in line and "UDP flood" in line for line in lines), run.text()
        assert any("(now)" in line or "ago)" in line for line in lines)
        assert run.app.main.desk.log.unread == 0
        assert run.app.main.tabs.panel.rows.selected == len(run.app.main.tabs.panel.rows.items) - 1


async def test_the_cursor_follows_the_newest_until_it_is_moved() -> None:
    async with running(calm()) as run:
        await run.send(later(snapshot(), 1))
        await run.go("log")
        rows = run.app.main.tabs.panel.rows
        run.app.main.desk.log.note(REFUSED, "first", NOW + 2)
        await run.send(later(snapshot(), 5))
        assert rows.current().text == "first"
        await run.press("up")
        held = rows.current()
        run.app.main.desk.log.note(REFUSED, "second", NOW + 6)
        await run.send(later(snapshot(), 9))
        assert rows.current() == held
        await run.press("end")
        run.app.main.desk.log.note(REFUSED, "third", NOW + 10)
        await run.send(later(snapshot(), 13))
        assert rows.current().text == "third"
        await run.press("home")
        assert rows.selected == 0
        await run.send(later(snapshot(), 14))
        assert rows.selected == 0


async def test_enter_shows_the_evidence_and_the_filter_finds() -> None:
    async with running(calm(), LARGE) as run:
        await run.send(later(snapshot(), 1))
        await run.go("log")
        await run.press("slash", *"began", "enter")
        assert len(run.app.main.tabs.panel.rows.items) == 1
        await run.press("enter")
        assert run.dialog == "DetailsDialog"
        assert "71 % of the packets begin with the same 13 bytes" in run.text()
        assert "2026-09-21T14:11" in run.text()


async def test_what_the_screen_refuses_and_writes_is_logged() -> None:
    async with running(snapshot()) as run:
        run.feed.controls.failure = FwtopError("the guardian says no")
        await run.press("e", "enter")
        run.feed.controls.failure = None
        await run.press("e", "enter")
        said = [(entry.words, entry.text) for entry in run.app.main.desk.log.entries]
        assert (REFUSED, "the guardian says no") in said
        assert ("export written", "/var/lib/fwtop/report.html") in said


@pytest.mark.parametrize("size", [SMALL, LARGE, (60, 15)])
async def test_an_attack_is_a_toast_that_hides_no_header(size: tuple[int, int]) -> None:
    async with running(calm(), size) as run:
        before = run.lines()[:3]
        await run.send(later(snapshot(), 1))
        toast = next(line for line in run.lines() if "attack began" in line)
        assert toast.rstrip() != ""
        assert "attack began" not in "".join(run.lines()[:3])
        assert len(before) == 3
        if size != (60, 15):  # over the oldest columns: the legend stays whole
            assert all(word in run.text() for word in ("reaches you", "my rules", "other firewall", "kernel"))
            assert toast.index("attack began") <= 8
        run.clock[0] += TOAST_SECONDS + 1
        await run.send(later(snapshot(), 2))
        assert "attack began" not in run.text()


async def test_what_is_found_on_opening_and_what_was_done_here_is_no_toast() -> None:
    async with running(snapshot()) as run:
        assert "attack began" not in run.text()
        run.app.main.rules.installed_rules["7"] = "mine"
        await run.send(later(provisional(), 1))
        assert "rule installed 7" not in run.text()
        other = RuleStatus(replace(block_rule("9"), id="9"), State.CONFIRMED, expires=NOW + 300)
        await run.send(later(replace(provisional(), mitigations=(other,)), 2))
        assert "rule installed 9" in run.text()


async def test_a_poisoned_title_is_text() -> None:
    async with running(calm()) as run:
        await run.send(later(poison(), 1))
        await run.go("log")
        assert "[@click=app.quit]x" in run.text()


async def test_a_recording_logs_up_to_its_cursor_and_toasts_what_it_passes() -> None:
    feed, player = FakeFeed(), FakePlayer()
    feed.player = player
    begins = STATE.begins
    shown = replace(recorded(), started=begins - 3 + 20)
    async with running(shown, feed=feed) as run:
        assert "attack began" not in run.text()
        await run.send(later(shown, 11))  # second 31: the attack began at 30
        await run.go("log")
        assert len(run.app.main.tabs.panel.rows.items) == 1
        await run.send(later(shown, 1))
        assert len(run.app.main.tabs.panel.rows.items) == 0


def changing() -> Iterator[Snapshot]:
    for number in range(50):
        found = attack(kind=f"kind_{number % 7}", title=f"flood {number}")
        yield later(replace(snapshot(), judgement=Judgement((found,))), number)


async def test_many_events_at_any_size_draw_three_toasts_at_most() -> None:
    async with running(calm(), (60, 15)) as run:
        for shot in changing():
            await run.send(shot)
        toasts = run.app.main.tabs.toasts
        assert toasts.display
        assert 1 < toasts.box.height <= MOST_TOASTS
        assert toasts.box.x >= 0


def test_proposals_are_summed_up() -> None:
    shot = snapshot()
    fewer = replace(shot, judgement=replace(shot.judgement, proposals=shot.judgement.proposals[:2]))
    log = SessionLog()
    log.take(fewer)
    log.take(shot)
    proposed = [entry.text for entry in log.entries if entry.kind == EventKind.RULE_PROPOSED]
    assert proposed == ["new ones: the Overview lists them"]


def test_a_held_list_of_past_attacks_outlasts_the_log_that_it_came_from() -> None:
    """The log keeps the latest entries only, and a list that is held may have older ones."""
    ended = LogEntry(7, NOW, EventKind.ATTACK_ENDED, "attack ended", "", "SYN flood", TEXT, incident=3)
    done = next(column for column in PAST_VIEW.columns if column.title == "done")
    assert done.cell(ended, CellContext(NOW, log=()), 16) == [("nothing was done", DIM)]
