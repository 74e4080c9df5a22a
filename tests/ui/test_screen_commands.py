"""The command line: every kind of command, completion, history, errors in one line, at any size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from screen_factory import calm, poison, protected, provisional, snapshot, spoofed
from screen_run import LARGE, SMALL, Run, running

from fwtop.model.rule import Kind
from fwtop.ui.actions.commands import (
    Choice,
    CommandDialog,
    CommandError,
    History,
    commands,
    complete,
    fuzzy,
    parse,
)
from fwtop.ui.actions.rule_dialog import RuleDialog
from fwtop.ui.keys import ACTIONS
from fwtop.ui.style import PALETTE, THEMES
from fwtop.ui.tabs import TABS

OFFER = {
    "tab": [Choice(tab.name, tab.title) for tab in TABS],
    "rule": [Choice("118", "block [/] x"), Choice("7", "limit")],
    "proposal": [Choice("1", "drop")],
    "column": [Choice("bytes"), Choice("rare in normal")],
    "view": [Choice("address"), Choice("prefix")],
    "theme": [Choice(name) for name in THEMES],
    "sources": [Choice("203.0.113.1"), Choice("203.0.113.2")],
    "attack": [Choice("A"), Choice("all")],
}
KNOWN = commands(ACTIONS, OFFER)


def called(line: str) -> tuple[str, str]:
    action, argument = parse(line, KNOWN)
    return action.name, argument


def refused(line: str) -> str:
    with pytest.raises(CommandError) as error:
        parse(line, KNOWN)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_every_action_every_tab_and_every_command_of_the_brief_is_known() -> None:
    names = {command.name for command in KNOWN}
    keys_only = {"up", "down", "page_up", "page_down", "top", "bottom", "next_panel", "previous_panel"}
    assert {row.name for row in ACTIONS} - names == {*keys_only, "command", "go_rules"}
    assert {tab.name for tab in TABS} <= names
    assert {"tab", "theme", "filter", "sort", "view", "quit", "undo", "block"} <= names
    assert all(command.action.words for command in KNOWN)


@pytest.mark.parametrize(
    ("line", "call"),
    [
        ("undo 118", ("undo", "118")),
        ("  keep   118 ", ("keep", "118")),
        ("why", ("why", "")),
        ("und 7", ("undo", "7")),
        ("UNDO 7", ("undo", "7")),
        ("tab traffic", ("tab", "traffic")),
        ("tab tra", ("tab", "traffic")),
        ("traffic", ("traffic", "")),
        ("theme light", ("theme", "light")),
        ("sort rare in normal", ("sort", "rare in normal")),
        ("filter AS64500 [/]", ("filter", "AS64500 [/]")),
        ("block 1.2.3.4", ("block", "1.2.3.4")),
        ("block 1.2.3.0/24 2001:db8::/32", ("block", "1.2.3.0/24 2001:db8::/32")),
        ("limit country:nl", ("limit", "country:nl")),
        ("3", ("proposal", "3")),
        ("only a", ("only", "A")),
    ],
)
def test_a_line_calls_its_command_with_its_words(line: str, call: tuple[str, str]) -> None:
    if line == "3":
        assert "there is no '3'" in refused(line)
        line, call = "1", ("proposal", "1")
    assert called(line) == call


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nonsense", "there is no command 'nonsense'; Tab lists them"),
        ("un", "could be"),
        ("undo 11", "undo: there is no '11'; there are: 118, 7"),
        ("theme", "theme needs one of: ansi, dark, light, contrast, deuteranopia, mono"),
        ("theme blue", "there is no 'blue'"),
        ("quit now", "quit takes nothing more"),
        ("block 1.2.3.4.5", "'1.2.3.4.5' is not an address or prefix; nothing was changed"),
        ("block asn:x", "'x' is not an AS"),
        ("block country:Netherlands", "'Netherlands' is not a country"),
        ("block @/etc/shadow", "the screen can't read files"),
        ("\x1b[2J", "there is no command"),
    ],
)
def test_refused_in_one_line(line: str, words: str) -> None:
    assert words in refused(line)
    assert refused(line).isprintable()


def test_an_id_is_never_guessed() -> None:
    only = commands(ACTIONS, {"rule": [Choice("118")]})
    with pytest.raises(CommandError, match="there is no '11'"):
        parse("undo 11", only)


@given(st.text(max_size=40))
def test_any_text_is_parsed_or_refused_and_completed(line: str) -> None:
    try:
        parse(line, KNOWN)
    except CommandError as error:
        assert str(error).count("\n") == 0  # noqa: PT017 - most texts are refused
    assert isinstance(complete(line, KNOWN), list)


def test_completion_is_fuzzy_and_puts_the_likeliest_first() -> None:
    assert fuzzy("", "x") == 0
    assert fuzzy("tr", "traffic") == 0
    assert fuzzy("ff", "traffic") == 1
    found = fuzzy("tfc", "traffic")
    assert found is not None
    assert found > 1
    assert fuzzy("tz", "traffic") is None
    assert complete("tra", KNOWN)[0].line == "traffic"
    assert "export" in [item.line for item in complete("xprt", KNOWN)]
    assert [item.line for item in complete("undo 1", KNOWN)] == ["undo 118"]
    assert [item.line for item in complete("undo ", KNOWN)] == ["undo 118", "undo 7"]
    assert [item.line for item in complete("block 1.2.3.4 203", KNOWN)] == [
        "block 1.2.3.4 203.0.113.1",
        "block 1.2.3.4 203.0.113.2",
    ]
    assert complete("th", KNOWN)[0].line == "theme ", "room for the argument"
    assert complete("nonsense x", KNOWN) == []


def test_history_walks_back_to_what_was_typed() -> None:
    history = History()
    for line in ("one", "two", "one"):
        history.add(line)
    assert history.lines == ["two", "one"]
    assert [history.walk(-1, "typed") for _ in range(3)] == ["one", "two", "two"]
    assert [history.walk(1, "typed") for _ in range(3)] == ["one", "typed", "typed"]


# -- on the screen


async def enter(run: Run, line: str) -> None:
    await run.press(":", *line, "enter")
    await run.settle()


def dialog(run: Run) -> CommandDialog:
    assert isinstance(run.app.screen, CommandDialog)
    return run.app.screen


async def test_a_tab_is_opened_by_its_name_and_by_tab() -> None:
    async with running(snapshot()) as run:
        for line, name in (("tab path", "path"), ("traffic", "traffic"), ("tab over", "overview")):
            await enter(run, line)
            assert run.app.main.tabs.shown.name == name
            assert run.app.screen is run.app.main


async def test_rules_are_kept_explained_and_removed_by_id() -> None:
    async with running(provisional()) as run:
        await enter(run, "keep 7")
        await enter(run, "why 5")
        await run.press("escape")
        assert run.feed.controls.calls == [("keep", "7"), ("why", "5")]
        await enter(run, "undo 5")
        assert run.dialog == "ChoiceDialog", "it is confirmed, so fwtop asks"
        await run.press("tab", "enter")
        assert run.feed.controls.calls[-1] == ("undo", "5")
        await enter(run, "extend 7")
        assert run.dialog == "ChoiceDialog"
        await run.press("escape")
        await enter(run, "change 7")
        assert run.dialog == "RuleDialog"


async def test_an_action_without_a_rule_does_what_its_key_does() -> None:
    async with running(provisional()) as run:
        await enter(run, "undo")
        assert run.feed.controls.calls == [("undo", "7")]
        await enter(run, "pause")
        assert run.app.main.session.paused


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("block 1.2.3.4", Kind.IPSET),
        ("limit 10.0.0.0/8", Kind.HASHLIMIT),
        ("xdp 2001:db8::1", Kind.XDP),
        ("notrack 192.0.2.1", Kind.NOTRACK),
    ],
)
async def test_addresses_are_previewed_before_anything_changes(line: str, kind: Kind) -> None:
    async with running(snapshot()) as run:
        await enter(run, line)
        assert isinstance(run.app.screen, RuleDialog)
        rule = run.app.screen.rule
        assert (rule.kind, str(rule.match.sources[0])) == (kind, line.split()[1])
        assert "apply" not in run.feed.controls.verbs()
        await run.press("escape")
        assert "nothing was changed" in run.status


async def test_an_as_is_expanded_by_the_preview() -> None:
    async with running(snapshot()) as run:
        await enter(run, "block asn:64500")
        assert isinstance(run.app.screen, RuleDialog)
        assert (run.app.screen.rule.origin, run.app.screen.rule.match.sources) == ("asn:64500", ())
        assert run.feed.controls.verbs()[0] == "expand"


async def test_filter_sort_view_and_graph() -> None:
    async with running(snapshot()) as run:
        await enter(run, "traffic")
        await enter(run, "filter BR")
        assert {row.country for row in run.app.main.tabs.panel.rows.items} == {"BR"}
        await run.press("escape")
        await enter(run, "sort bytes")
        assert run.app.main.tabs.panel.rows.sort_name == "bytes"
        await enter(run, "sort packets")
        assert run.app.main.tabs.panel.rows.sort_name == ""
        await enter(run, "view country")
        assert run.app.main.tabs.panel.view.name == "country"
        await enter(run, "graph bits")
        assert run.app.main.bars.unit == "bits"


async def test_a_theme_repaints_everything() -> None:
    async with running(snapshot()) as run:
        try:
            await enter(run, "theme mono")
            strips = [strip for lines in run.app.main.query("Lines") for strip in lines._strips]
            colours = {segment.style.color for strip in strips for segment in strip if segment.style}
            assert colours == {None}
            assert PALETTE.name == "mono"
            await enter(run, "theme ansi")
            strips = [strip for lines in run.app.main.query("Lines") for strip in lines._strips]
            assert any(segment.style and segment.style.color for strip in strips for segment in strip)
        finally:
            PALETTE.use("ansi")


async def test_proposals_and_scopes() -> None:
    async with running(spoofed(), LARGE) as run:
        await enter(run, "only A")
        assert run.app.main.desk.scope.chosen == spoofed().judgement.attacks[0].id
        await enter(run, "only all")
        assert run.app.main.desk.scope.chosen == 0
        await enter(run, "proposal 1")
        assert run.dialog == "RuleDialog"


async def test_help_and_quit() -> None:
    async with running(calm()) as run:
        await enter(run, "help")
        assert run.dialog == "HelpDialog"
        await run.press("escape")
        await enter(run, "quit")
        assert run.app.return_code == 0


async def test_an_error_stays_with_the_line() -> None:
    async with running(snapshot(), (60, 15)) as run:
        await enter(run, "block 1.2.3")
        assert dialog(run).line == "block 1.2.3"
        assert "'1.2.3' is not an address or prefix" in run.text()
        await run.press("backspace")
        assert "is not an address" not in run.text()
        await run.press("escape")
        assert run.app.screen is run.app.main


async def test_tab_completes_and_the_arrows_bring_back_earlier_lines() -> None:
    async with running(provisional(), (60, 15)) as run:
        await run.press(":", "u", "n", "d", "tab", "tab")
        assert dialog(run).line == "undo 7"
        await run.press("tab")
        assert dialog(run).line == "undo 5"
        await run.press("shift+tab", "enter")
        assert run.feed.controls.calls == [("undo", "7")]
        await run.press(":", "x", "up")
        assert dialog(run).line == "undo 7"
        await run.press("down")
        assert dialog(run).line == "x"
        await run.press("ctrl+u", "enter")
        assert run.app.screen is run.app.main


@pytest.mark.parametrize("size", [(60, 15), SMALL, LARGE])
async def test_it_lists_everything_and_the_line_is_always_in_sight(size: tuple[int, int]) -> None:
    async with running(snapshot(), size) as run:
        await run.press(":")
        count = len(dialog(run)._found)
        assert count > 30
        for _ in range(count):
            await run.press("tab")
            lines = run.lines()
            assert any(":" + dialog(run).line.rstrip() in line for line in lines)
            assert sum("▸" in line for line in lines if "│" in line) >= 1
            assert all(len(line) <= size[0] for line in lines)
            if dialog(run)._marked < 0:
                break


async def test_read_only_refuses_what_changes_rules() -> None:
    async with running(protected()) as run:
        run.feed.controls.readonly = "started with --readonly"
        await enter(run, f"undo {protected().mitigations[0].rule.id}")
        assert "nothing can be changed here" in run.status
        assert run.feed.controls.calls == []


async def test_markup_in_data_is_text() -> None:
    shot = poison()
    rule = replace(provisional().mitigations[0].rule, summary="[bold]x[/] [@click=app.quit]")
    shot = replace(shot, mitigations=(replace(provisional().mitigations[0], rule=rule),))
    async with running(shot, LARGE) as run:
        await run.press(":", *"undo ")
        assert "[bold]x[/] [@click=app.quit]" in run.text()


@pytest.mark.parametrize("tab", ["overview", "packets"])
async def test_no_command_breaks_a_tab(tab: str) -> None:
    async with running(provisional()) as run:
        main = run.app.main
        main.tabs.show(tab)
        for command in main.commands():
            if command.name != "quit" and not command.argument.needed:
                main.run_command((command.action, ""))
                await run.settle()
                await run.press("escape")
                main.tabs.show(tab)
        assert run.app.is_running


async def test_the_actions_of_a_tab_are_commands_there_only() -> None:
    special = {row.name for row in ACTIONS if row.tab}
    async with running(snapshot()) as run:
        for tab in TABS:
            run.app.main.tabs.show(tab.name)
            names = {command.name for command in run.app.main.commands()}
            own = {row.name for row in ACTIONS if row.tab == tab.name}
            assert special & names == special & own


async def test_text_that_comes_at_once_with_its_key_is_not_taken_for_keys() -> None:
    async with running(snapshot()) as run:
        await run.press_at_once(*"/pub:1")
        assert run.app.main.tabs.filtered.filter_text == "pub:1"
        assert not run.feed.controls.calls
        await run.press("enter")
        await run.press_at_once(*":tab path", "enter")
        assert run.app.main.tabs.shown.name == "path"
