"""The settings of the screen: what there is, which values are good, and what the operator's files set.

Structs, from which the reader, `docs/screen.toml` and `fwtop config` are made. A wrong name or value never
keeps the screen from starting: it is told in one line, and the default holds.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from fwtop.model.files import ConfigText
from fwtop.model.settings_file import (
    Place,
    dotted,
    holds,
    keys_of,
    must,
    one_of,
    read,
    some_of,
    told,
    written,
)
from fwtop.model.text import safe_text
from fwtop.ui.graph import Unit
from fwtop.ui.keys import ACTIONS, RESERVED, key_name, key_text, remapped
from fwtop.ui.lists.panels import PANELS, column_names
from fwtop.ui.style import DEFAULT_THEME, THEMES
from fwtop.ui.tabs import TABS

AUTO: Literal["auto"] = "auto"
BUILT_IN = "built in"
MAX_KEYS = 8  # for one action
_TAB_NAMES = tuple(tab.name for tab in TABS)
_TABS = {row.name: row.tab for row in ACTIONS}  # where a key has its meaning
_NEEDED = ("quit", "help")  # without a key for these nobody finds the way out


def _help(text: str) -> Meta:
    return Meta(description=text)


class Rates(Struct, frozen=True):
    """How often something is drawn, in seconds."""

    frame_seconds: Annotated[
        float, Meta(ge=0.1, le=10), _help("between two frames; at least 1.0 on a slow screen")
    ] = 0.25
    graph_seconds: Annotated[Literal[1, 2, 3, 4, 5, 6, 10], _help("per column of the graph, at most")] = 2


class Settings(Struct, frozen=True):
    """What the screen is started with; `columns` and `keys` hold only what was set."""

    theme: Annotated[
        str,
        one_of(THEMES),
        _help("colours: " + "; ".join(f"{theme.name}: {theme.help}" for theme in THEMES.values())),
    ] = DEFAULT_THEME
    slow: Annotated[
        bool | Literal["auto"],
        _help("send less to the terminal, as --slow does; auto: once the terminal can't keep up"),
    ] = AUTO
    first_tab: Annotated[str, one_of(_TAB_NAMES), _help("the tab shown at the start")] = _TAB_NAMES[0]
    graph_unit: Annotated[Unit, _help("what the history graph counts")] = "packets"
    title: Annotated[bool, _help("write the verdict into the terminal's title")] = True
    bell: Annotated[bool, _help("ring when an attack begins, a rule does harm, or a trial ends in 10 s")] = (
        True
    )
    rates: Rates = Rates()
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@functools.cache  # it never changes
def shape() -> type[Struct]:
    """Return what a file may hold: Settings, with the columns of each list and the keys of each action."""
    columns = [
        (
            spec.name,
            Annotated[tuple[str, ...], some_of(names, once=True), _help(f"on {_tabs_with(spec.name)}")],
            names,
        )
        for spec in PANELS
        if (names := column_names(spec))
    ]
    are_keys = must(
        f'a list of at most {MAX_KEYS} keys, as ["x", "ctrl+x", "F2"]', lambda value: len(value) <= MAX_KEYS
    )
    keys = [
        (
            row.name,
            Annotated[tuple[str, ...], are_keys, _help(row.words)],
            tuple(key for key in row.keys if key not in RESERVED),
        )
        for row in ACTIONS
        if row.settable
    ]
    tables = {name: msgspec.defstruct(name, held) for name, held in (("columns", columns), ("keys", keys))}
    plain = [item for item in msgspec.structs.fields(Settings) if item.name not in tables]
    return msgspec.defstruct(
        "screen",
        [
            *((item.name, item.type, item.default) for item in plain),
            *((name, table, field(default_factory=table)) for name, table in tables.items()),
        ],
    )


class Setting(Struct, frozen=True):
    """One setting: its place in the file, its default, and what it means."""

    place: Place
    default: Any
    help: str

    @property
    def section(self) -> str:
        """The table that it stands in; "" for none."""
        return "".join(map(str, self.place[:-1]))

    @property
    def name(self) -> str:
        """Its key in the table."""
        return str(self.place[-1])

    def plain(self, value: object) -> object:
        """Return a value as it is written in a file."""
        if not isinstance(value, tuple):
            return value
        return [key_text(item) for item in value] if self.section == "keys" else list(value)


@functools.cache
def all_settings() -> tuple[Setting, ...]:
    """Return all of them, in the order of the documentation."""
    return tuple(_settings(shape(), ()))


def _settings(cls: type[Struct], place: Place) -> Iterable[Setting]:
    for name, key in keys_of(cls).items():
        if isinstance(key.info, msgspec.inspect.StructType):
            yield from _settings(key.info.cls, (*place, name))
        else:
            yield Setting((*place, name), key.default, key.help)


def _tabs_with(panel: str) -> str:
    return ", ".join(tab.title for tab in TABS if panel in tab.panels)


class Value(Struct, frozen=True):
    """An effective value and the file it comes from."""

    setting: Setting
    value: Any
    origin: str = BUILT_IN


_Found = dict[Place, Value]


class Effective(Struct, frozen=True):
    """All settings with what the files made of them, and one line for each thing that is wrong."""

    values: tuple[Value, ...]
    wrong: tuple[str, ...] = ()

    def settings(self) -> Settings:
        """Return them as the screen takes them."""
        found: dict[str, Any] = {}
        for item in self.values:
            if item.origin != BUILT_IN:
                section = item.setting.section
                (found.setdefault(section, {}) if section else found)[item.setting.name] = item.value
        return msgspec.convert(found, Settings)


def read_settings(files: Iterable[ConfigText]) -> Effective:
    """Apply the files one after the other to the defaults."""
    found = {item.place: Value(item, item.default) for item in all_settings()}
    wrong: list[str] = []
    for file in files:
        reading = read(shape(), file)
        for item in reading.mistakes:
            follows = _holds(found[item.place]) if item.place in found else item.follows
            wrong.append(told(file, item.place, item.said, follows, item.line))
        for place, value in _entries(reading.given):
            try:
                good = _keys(found, place, value, file.path) if place[0] == "keys" else value
            except ValueError as error:
                wrong.append(told(file, place, f"{dotted(place)} must be {error}", _holds(found[place])))
            else:
                found[place] = replace(found[place], value=good, origin=file.path)
                _take_over(found, found[place])
    return Effective(tuple(found.values()), (*wrong, *_lost_keys(found)))


def _holds(value: Value) -> str:
    return holds(value.setting.plain(value.value))


def _entries(given: Mapping[str, Any]) -> Iterable[tuple[Place, Any]]:
    for name, value in given.items():
        if isinstance(value, dict):
            yield from (((name, inner), held) for inner, held in value.items())
        else:
            yield (name,), value


def _keys(found: _Found, place: Place, value: tuple[str, ...], origin: str) -> tuple[str, ...]:
    """Return Textual's names of keys; raises ValueError with what they must be."""
    keys = tuple(dict.fromkeys(key_name(text) for text in value))
    if not keys and place[-1] in _NEEDED:
        raise ValueError("at least one key")
    if taken := next((key for key in keys if key in RESERVED), None):
        raise ValueError(f"other keys: {key_text(taken)} has a fixed meaning")
    for other in _rivals(found, found[place]):
        if other.origin == origin and (shared := set(keys) & set(other.value)):
            raise ValueError(f"other keys: {key_text(shared.pop())} is set for {other.setting.name}")
    return keys


def _take_over(found: _Found, mine: Value) -> None:
    """Take the keys of an action away from those that an earlier file gave them to."""
    for other in _rivals(found, mine):
        if other.origin not in (mine.origin, BUILT_IN):
            left = tuple(key for key in other.value if key not in mine.value)
            found[other.setting.place] = replace(other, value=left)


def _rivals(found: _Found, mine: Value) -> list[Value]:
    """Return the other actions that are bound on a tab where this one is, so that they can't share a key."""
    if mine.setting.section != "keys":
        return []
    keys = (
        item for item in found.values() if item.setting.section == "keys" and item.setting != mine.setting
    )
    return [item for item in keys if _TABS[item.setting.name] == _TABS[mine.setting.name]]


def _lost_keys(found: _Found) -> list[str]:
    """Name built-in actions that lose their last key to a key that was set."""
    keys = [item for item in found.values() if item.setting.section == "keys"]
    table = remapped(ACTIONS, {item.setting.name: item.value for item in keys if item.origin != BUILT_IN})
    left = {row.name for row in table if row.keys}
    return [
        f"keys: {item.setting.name} has no key left: another action took {key_text(item.value[0])}"
        for item in keys
        if item.origin == BUILT_IN and item.setting.name not in left and item.value
    ]


_WIDTH = 110
_HEAD = """\
# Appearance and keys of fwtop's screen. Copy this file to /etc/fwtop/screen.toml for everybody, or to
# ~/.config/fwtop/screen.toml for yourself, which takes precedence. Uncomment what you change, and the heading
# of its section; the values here are the defaults. `fwtop config --check FILE` reports errors in a file,
# `fwtop config` shows the settings in force. An error never keeps the screen from starting.
"""
_SECTIONS = {
    "rates": "In seconds.",
    "columns": "The columns of each list, in order. Columns that name a row are always shown.",
    "keys": 'Keys of each action: a character, or a name such as "F2", "Space", "Ctrl+X" or "Shift+Tab".',
}


def sample() -> str:
    """Write `docs/screen.toml`: every setting with its default and what it means."""

    def lines(item: Value) -> list[str]:
        setting = item.setting
        assigned = f"#{setting.name} = {written(setting.plain(setting.default))}"
        if len(assigned) + len(setting.help) + 4 <= _WIDTH:
            return [f"{assigned}  # {setting.help}"]
        told = textwrap.wrap(setting.help, _WIDTH, initial_indent="# ", subsequent_indent="# ")
        return [*told, *textwrap.wrap(assigned, _WIDTH, subsequent_indent="#", break_on_hyphens=False)]

    defaults = [Value(item, item.default) for item in all_settings()]
    return _HEAD + "\n" + _in_sections(defaults, lines, heading="#[{}]")


def show(effective: Effective) -> str:
    """Write the effective settings, each with the file that it comes from."""

    def lines(item: Value) -> list[str]:
        assigned = f"{item.setting.name} = {written(item.setting.plain(item.value))}"
        return [f"{assigned}  # {safe_text(item.origin)}"]

    wrong = "".join(f"# wrong: {safe_text(line, limit=300)}\n" for line in effective.wrong)
    return wrong + _in_sections(effective.values, lines, heading="[{}]")


def _in_sections(items: Iterable[Value], lines: Callable[[Value], list[str]], *, heading: str) -> str:
    found: list[str] = []
    present = ""
    for item in items:
        section = item.setting.section
        if section != present:
            present = section
            intro = [f"# {_SECTIONS[section]}"] if heading.startswith("#") else []
            found += ["", *intro, heading.format(section)]
        found += lines(item)
    return "\n".join(found) + "\n"


def as_json(effective: Effective) -> dict[str, Any]:
    """Return the effective settings with their origins, and what is wrong."""
    settings = {
        dotted(item.setting.place): {
            "value": item.setting.plain(item.value),
            "default": item.setting.plain(item.setting.default),
            "from": item.origin,
        }
        for item in effective.values
    }
    return {"settings": settings, "wrong": list(effective.wrong)}
