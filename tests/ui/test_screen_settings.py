"""screen.toml: every setting is documented, good values count, bad ones are told in one line."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.style import Style
from screen_factory import provisional, snapshot
from screen_run import LARGE, running

from fwtop.cli.main import main
from fwtop.model.files import ConfigText
from fwtop.ui import style
from fwtop.ui.graph import fold
from fwtop.ui.keys import ACTIONS, KEY_MAP, KeyNameError, key_name, key_text, remapped
from fwtop.ui.lists.history import History
from fwtop.ui.settings import (
    BUILT_IN,
    Effective,
    Settings,
    all_settings,
    as_json,
    read_settings,
    sample,
    show,
)
from fwtop.ui.style import PALETTE, THEMES, themed
from fwtop.ui.tabs import TABS

SAMPLE = Path(__file__).parents[2] / "docs/screen.toml"
ALL = {(setting.section, setting.name) for setting in all_settings()}


def read(text: str, path: str = "/etc/fwtop/screen.toml") -> tuple[Settings, tuple[str, ...]]:
    found = read_settings([ConfigText(path, text)])
    return found.settings(), found.wrong


def test_the_sample_is_the_table() -> None:
    assert SAMPLE.read_text() == sample(), "fwtop config --sample > docs/screen.toml"
    uncommented = re.sub(r"^#(?! )", "", SAMPLE.read_text(), flags=re.MULTILINE)
    table = tomllib.loads(uncommented)
    named = {
        (section, name) for section in table if isinstance(table[section], dict) for name in table[section]
    }
    named |= {("", name) for name in table if not isinstance(table[name], dict)}
    assert named == ALL
    found = read_settings([ConfigText("sample", uncommented)])
    assert found.wrong == ()
    assert all(item.value == item.setting.default for item in found.values)
    assert max(map(len, SAMPLE.read_text().splitlines())) <= 110


def test_every_setting_says_what_it_is() -> None:
    assert all(setting.help for setting in all_settings())


def test_good_values_count_and_the_later_file_goes_before() -> None:
    system = ConfigText(
        "/etc/s", 'theme = "dark"\nslow = true\n[rates]\nframe_seconds = 1\n[keys]\nblock = ["F2"]\n'
    )
    user = ConfigText("~/s", 'theme = "light"\n[columns]\nports = ["pps"]\n[keys]\nxdp = ["F2"]\n')
    found = read_settings([system, user])
    chosen = found.settings()
    assert found.wrong == ()
    assert (chosen.theme, chosen.slow, chosen.rates.frame_seconds) == ("light", True, 1.0)
    assert chosen.columns == {"ports": ("pps",)}
    assert chosen.keys == {"block": (), "xdp": ("f2",)}, "the user's key is taken from root's file"
    assert {item.setting.name: item.origin for item in found.values if item.origin != BUILT_IN} == {
        **dict.fromkeys(("slow", "frame_seconds", "block"), "/etc/s"),
        **dict.fromkeys(("theme", "ports", "xdp"), "~/s"),
    }


TABLES = "theme, slow, first_tab, graph_unit, title, bell, rates, columns, keys"
THEME_NAMES = '"ansi", "dark", "light", "contrast", "deuteranopia", "mono"'
BETWEEN = "rates.frame_seconds must be a number from 0.1 to 10; 0.25 holds"
WRONG = {
    "theme = 'blue'": f'/f:1: theme must be one of {THEME_NAMES}; "ansi" holds',
    "\n\nwindow = 3": f"/f:3: window is unknown; there are {TABLES}; it is ignored",
    "keys = 3": "/f:1: keys must be a table; it is ignored",
    "[keys]\nblok = ['F2']": "/f:2: keys.blok is unknown; the nearest is block; it is ignored",
    "[rates]\nframe_seconds = 99": f"/f:2: {BETWEEN}",
    "[rates]\nframe_seconds = nan": f"/f:2: {BETWEEN}",
    "rates = {frame_seconds = true}": f"/f:1: {BETWEEN}",
    "[rates]\ngraph_seconds = 1.5": "/f:2: rates.graph_seconds must be one of 1, 2, 3, 4, 5, 6, 10; 2 holds",
    "slow = 1": '/f:1: slow must be true or false, or "auto"; "auto" holds',
    "[columns]\nports = ['pps', 'pps']": (
        '/f:2: columns.ports must be a list of "service", "bar", "share", "error", "pps", each at most once; '
        '["service", "bar", "share", "error", "pps"] holds'
    ),
    "[keys]\nlimit = 'F2'": (
        '/f:2: keys.limit must be a list of at most 8 keys, as ["x", "ctrl+x", "F2"]; ["l"] holds'
    ),
    "[keys]\nquit = []": '/f:2: keys.quit must be at least one key; ["q"] holds',
    "[keys]\nblock = ['3']": '/f:2: keys.block must be other keys: 3 has a fixed meaning; ["b"] holds',
    "[keys]\nlimit = ['F2']\nblock = ['F2']": (
        '/f:3: keys.block must be other keys: F2 is set for limit; ["b"] holds'
    ),
    "[keys]\nblock = ['l']": "keys: limit has no key left: another action took l",
    "theme = = 1": "/f:1: invalid value (column 9); the defaults hold",
}


@pytest.mark.parametrize(("text", "line"), WRONG.items())
def test_what_is_wrong_is_one_line(text: str, line: str) -> None:
    assert read(text, "/f")[1] == (line,)


def test_poison_in_names_and_values_is_made_safe() -> None:
    text = '"a\\u001b[2J[/]" = 1\n[keys]\nblock = ["\\u202e\\u001b]0;x"]\n'
    _, wrong = read(text)
    assert len(wrong) == 2
    assert all(line.isprintable() for line in wrong)


def test_a_wrong_value_of_the_users_leaves_that_of_the_machine() -> None:
    files = [ConfigText("/etc/s", "theme = 'dark'"), ConfigText("~/s", "theme = 'drak'")]
    found = read_settings(files)
    assert found.settings().theme == "dark"
    assert found.wrong == (f'~/s:1: theme must be one of {THEME_NAMES}; "dark" holds',)


def test_every_key_can_be_written_and_read() -> None:
    names = {key for row in ACTIONS for key in row.keys} | {key_name(chr(code)) for code in range(0x20, 0x7F)}
    assert all(key_name(key_text(name)) == name for name in names)
    assert [key_name(text) for text in ("Ctrl+R", "shift+Tab", "PgUp", "esc", "F12", "↑", " ")] == [
        "ctrl+r", "shift+tab", "pageup", "escape", "f12", "up", "space",
    ]  # fmt: skip
    for wrong in ("", "bb", "ctrl+", "hyper+x", "ctrl+ctrl+x", "é", "F13", "\x1b", "ctrl+?"):
        with pytest.raises(KeyNameError):
            key_name(wrong)


def test_actions_have_one_name_each() -> None:
    names = [row.name for row in ACTIONS]
    assert len(set(names)) == len(names)


def test_remapping_changes_keys_and_labels_and_takes_keys_away_from_others() -> None:
    table = {row.name: row for row in remapped(ACTIONS, {"block": ("B", "x"), "quit": ("ctrl+x",)})}
    assert (table["block"].keys, table["block"].label) == (("B", "x"), "B x")
    assert (table["xdp"].keys, table["xdp"].label) == ((), "")
    assert (table["quit"].keys, table["quit"].label) == (("ctrl+x", "ctrl+c"), "Ctrl+X Ctrl+C")
    assert remapped(ACTIONS, {}) == ACTIONS


def test_show_is_toml_and_names_the_files() -> None:
    found = read_settings([ConfigText("/etc/s", 'theme = "dark"\nwrong = 1\n[keys]\nblock = ["F2", "?"]\n')])
    text = show(found)
    assert tomllib.loads(text)["keys"]["block"] == ["F2", "?"]
    assert 'theme = "dark"  # /etc/s\n' in text
    assert "# wrong: /etc/s:2: wrong is unknown" in text
    assert read_settings([ConfigText("again", text)]).settings().keys["block"] == ("f2", "question_mark")
    document = json.loads(json.dumps(as_json(found)))
    assert document["settings"]["theme"] == {"value": "dark", "default": "ansi", "from": "/etc/s"}
    assert document["settings"]["keys.limit"]["from"] == BUILT_IN
    assert len(document["wrong"]) == 1


def test_the_verb_checks_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], drops: None) -> None:
    file = tmp_path / "screen.toml"
    file.write_text('theme = "dark"\n')
    assert main(["config", "--check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: good\n"
    file.write_text('theme = "drak"\n')
    assert main(["config", "--check", str(file)]) == 1
    assert capsys.readouterr().out.startswith(f"{file}:1: theme must be one of")
    assert main(["config", "--check", str(file), "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["wrong"]) == 1
    assert main(["config", "--check", str(tmp_path / "none")]) == 2
    assert main(["config", "--sample"]) == 0
    assert capsys.readouterr().out == sample()


def test_the_verb_shows_what_is_in_force(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, drops: None
) -> None:
    files = (ConfigText("/home/a/s", "theme = 'mono'\n"),)
    monkeypatch.setattr("fwtop.cli.config.screen_files", lambda: files)
    assert main(["config"]) == 0
    assert 'theme = "mono"  # /home/a/s\n' in capsys.readouterr().out


@pytest.fixture
def drops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep root: the test goes on after the verb."""
    monkeypatch.setattr("fwtop.cli.config.drop_privileges", lambda: None)


STYLES = [item for item in vars(style).values() if isinstance(item, Style)]


@pytest.mark.parametrize("name", THEMES)
def test_a_theme_keeps_what_carries_meaning_without_colour(name: str) -> None:
    for before in STYLES:
        after = themed(name, before)
        assert bool(after.reverse) == bool(before.reverse)
        assert bool(after.bold) >= bool(before.bold)
        if before.color is not None and name != "mono":
            assert after.color is not None
    assert themed("ansi", style.BAD) == style.BAD


def test_mono_has_no_colour_and_contrast_nothing_dim() -> None:
    assert all(themed("mono", item).color is None for item in STYLES)
    assert not any(themed("contrast", item).dim for item in STYLES)
    assert themed("mono", Style(color="#123456", bgcolor="blue")) == Style.null() + Style()


def test_settings_are_values() -> None:
    assert replace(Settings(), theme="dark") != Settings()


# -- in force on the screen


def effective(text: str) -> Effective:
    return read_settings([ConfigText("/etc/fwtop/screen.toml", text)])


async def test_keys_are_remapped_in_bindings_footer_and_help() -> None:
    keys = '[keys]\nblock = ["F4"]\nquit = ["Ctrl+X"]\nnext_tab = ["b"]\n'
    async with running(snapshot(), LARGE, settings=effective(keys)) as run:
        await run.press("b")
        assert run.app.main.tabs.shown.name == TABS[1].name, "b is another action's key now"
        assert "F4 block" in run.lines()[-1]
        assert "Ctrl+X" in run.lines()[-1]
        await run.press("f4")
        assert run.dialog == "RuleDialog"
        await run.press("escape", "question_mark", "question_mark")
        assert "F4 " in run.text()
        await run.press("escape", "q")
        assert run.app.return_code is None, "q has no meaning any more"
        await run.press("ctrl+x")
        assert run.app.return_code == 0
    assert KEY_MAP.action("b", "overview").name == "next_tab"
    async with running(snapshot()) as run:
        assert KEY_MAP.actions == ACTIONS, "a screen without settings has the built-in keys"


async def test_the_command_line_names_the_keys_that_were_set() -> None:
    async with running(snapshot(), LARGE, settings=effective('[keys]\nexport = ["F9"]\n')) as run:
        await run.press(":", *"export")
        assert "F9" in run.text()


async def test_theme_first_tab_unit_columns_and_rates() -> None:
    text = """
    theme = "mono"
    first_tab = "traffic"
    graph_unit = "bits"
    slow = false
    [rates]
    frame_seconds = 0.5
    graph_seconds = 5
    [columns]
    sources = ["pps", "who"]
    """
    async with running(snapshot(), LARGE, settings=effective(text)) as run:
        main = run.app.main
        assert (main.tabs.shown.name, main.bars.unit, main.bars.graph.seconds) == ("traffic", "bits", 5)
        assert (PALETTE.name, run.app._frame_seconds, main.desk.slow) == ("mono", 0.5, False)
        heads = next(line for line in run.lines() if "address" in line and "who" in line)
        assert heads.index("address") < heads.index("pps") < heads.index("who")
        assert "network" not in heads
        await run.press("v")
        assert [column.name for column in main.tabs.panel.view.columns] == ["", "pps", "who"]
    async with running(snapshot()) as run:
        assert PALETTE.name == "ansi"


async def test_a_mistake_is_told_and_the_screen_starts() -> None:
    async with running(snapshot(), settings=effective("theme = 3\nx = 1\n")) as run:
        await run.settle()
        assert run.status.startswith("/etc/fwtop/screen.toml:1: theme must be one of")
        assert run.app.main.tabs.shown.name == "overview"
        await run.press(":", *"log", "enter")
        await run.settle()
        assert "screen.toml:2: x is" in run.text()
    async with running(snapshot(), LARGE, settings=effective("theme = = 3\n")) as run:
        await run.settle()
        assert "screen.toml:1: invalid value (column 9); the defaults hold" in run.status


async def test_a_terminal_that_can_t_keep_up_gets_less_unless_that_was_refused() -> None:
    for value, slow in (('"auto"', True), ("false", False)):
        async with running(snapshot(), settings=effective(f"slow = {value}\n")) as run:
            for _ in range(25):
                run.app._note_stall()
            assert run.app.main.desk.slow is slow
            assert ("can't keep up" in run.status) is slow
            assert run.app._frame_seconds == (1.0 if slow else 0.25)
            await run.press(":", *"slow off", "enter")
            await run.settle()
            assert run.app._frame_seconds == 0.25


@pytest.mark.parametrize("seconds", [1, 5, 10])
def test_a_column_of_the_graph_stands_for_no_more_seconds_than_were_set(seconds: int) -> None:
    history = History()
    for second in range(600):
        history.take(snapshot(), 1_000_000.0 + second)
    columns = fold(history, 75, seconds)
    assert columns.seconds == seconds if seconds < 600 / 75 else 600 / 75 <= columns.seconds <= seconds
    assert columns.points.count(None) <= 7


async def test_an_action_without_a_key_is_nowhere_but_on_the_command_line() -> None:
    async with running(provisional(), LARGE, settings=effective("[keys]\nkeep = []\nblock = []\n")) as run:
        assert "block" not in run.lines()[-1]
        await run.press("y", "b")
        assert run.feed.controls.calls == []
        await run.press(":", *"keep", "enter")
        await run.settle()
        assert run.feed.controls.calls == [("keep", "7")]


async def test_texts_name_the_keys_that_were_set() -> None:
    keys = '[keys]\nkeep = ["F2"]\nundo = []\nnext_tab = ["F3"]\npause = ["z"]\n'
    async with running(provisional(), LARGE, settings=effective(keys)) as run:
        assert "F2 keep  :undo remove" in run.lines()[1]
        assert "[ F3 tab" in run.text()
        await run.press("z")
        assert "lists paused until z" in run.status
