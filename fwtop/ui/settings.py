"""The settings of the screen: what there is, which values are good, and what the operator's files set.

One table, from which the reader, `docs/screen.toml` and `fwtop config` are made. A wrong name or value never
keeps the screen from starting: it is told in one line, and the default holds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.model.config_file import ConfigText, line_of, table_of
from fwtop.model.text import safe_text
from fwtop.ui.drawing.themes import DEFAULT_THEME, THEMES
from fwtop.ui.key_names import RESERVED, KeyNameError, key_name, key_text, remapped, setting_name
from fwtop.ui.keys import KEYS
from fwtop.ui.lists.panels import PANELS, column_names
from fwtop.ui.tabs import TABS

AUTO = "auto"
GRAPH_UNITS = ("packets", "bits")
BUILT_IN = "built in"
_WHOLE_MINUTES = (1, 2, 3, 4, 5, 6, 10)  # seconds of a column: the axis marks minutes
MAX_KEYS = 8  # for one action
_NEEDED = ("quit", "help")  # without a key for these nobody finds the way out


class WrongValue(ValueError):
    """A value can't be used; the text says which can."""


Check = Callable[[object], Any]


class Setting(Struct, frozen=True):
    """One setting: its place in the file, default, and the check that turns what was written into a value."""

    section: str
    name: str
    default: Any
    help: str
    check: Check

    def plain(self, value: object) -> object:
        """Return a value as it is written in a file."""
        if not isinstance(value, tuple):
            return value
        return [key_text(item) for item in value] if self.section == "keys" else list(value)


def _one_of(*choices: str) -> Check:
    def check(value: object) -> str:
        if isinstance(value, str) and value in choices:
            return value
        raise WrongValue("one of " + ", ".join(f'"{choice}"' for choice in choices))

    return check


def _slow(value: object) -> bool | str:
    if value is True or value is False or value == AUTO:
        return value
    raise WrongValue('true, false or "auto"')


def _number(low: float, high: float) -> Check:
    def check(value: object) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
            return float(value)
        raise WrongValue(f"a number from {low} to {high}")

    return check


def _graph_seconds(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value in _WHOLE_MINUTES:
        return value
    raise WrongValue(f"one of {', '.join(map(str, _WHOLE_MINUTES))}")


def _column_list(choices: tuple[str, ...]) -> Check:
    def check(value: object) -> tuple[str, ...]:
        good = isinstance(value, list) and len(set(map(str, value))) == len(value)
        if good and all(name in choices for name in value):  # type: ignore[attr-defined]
            return tuple(value)  # type: ignore[arg-type]
        raise WrongValue(f"a list of {', '.join(choices)}, each at most once")

    return check


def _key_list(name: str) -> Check:
    def check(value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or len(value) > MAX_KEYS or not all(isinstance(k, str) for k in value):
            raise WrongValue(f'a list of at most {MAX_KEYS} keys, as ["x", "ctrl+x", "F2"]')
        try:
            keys = tuple(dict.fromkeys(key_name(text) for text in value))
        except KeyNameError as error:
            raise WrongValue(str(error)) from None
        if not keys and name in _NEEDED:
            raise WrongValue("at least one key")
        if taken := next((key for key in keys if key in RESERVED), None):
            raise WrongValue(f"other keys: {key_text(taken)} has a fixed meaning")
        return keys

    return check


class Settings(Struct, frozen=True):
    """What the screen is started with; `columns` and `keys` hold only what was set."""

    theme: str = DEFAULT_THEME
    slow: bool | str = AUTO
    first_tab: str = TABS[0].name
    graph_unit: str = GRAPH_UNITS[0]
    frame_seconds: float = 0.25
    graph_seconds: int = 2
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


_PLAIN: dict[str, tuple[str, str, Check]] = {
    "theme": (
        "",
        "colours: " + "; ".join(f"{theme.name}: {theme.help}" for theme in THEMES.values()),
        _one_of(*THEMES),
    ),
    "slow": (
        "",
        "send less to the terminal, as --slow does; auto: once the terminal can't keep up",
        _slow,
    ),
    "first_tab": ("", "the tab shown at the start", _one_of(*(tab.name for tab in TABS))),
    "graph_unit": ("", "what the history graph counts", _one_of(*GRAPH_UNITS)),
    "frame_seconds": ("rates", "between two frames; at least 1.0 on a slow screen", _number(0.1, 10)),
    "graph_seconds": ("rates", "per column of the graph", _graph_seconds),
}


@functools.cache  # it never changes
def all_settings() -> tuple[Setting, ...]:
    """Return the whole table, in the order of the documentation."""
    defaults = Settings()
    plain = [
        Setting(*(_PLAIN[name][0], name, getattr(defaults, name)), *_PLAIN[name][1:])
        for name in Settings.__struct_fields__
        if name in _PLAIN
    ]
    lists = [
        Setting("columns", spec.name, names, f"on {_tabs_with(spec.name)}", _column_list(names))
        for spec in PANELS
        if (names := column_names(spec))
    ]
    built_in = default_keys()
    keys = [
        Setting("keys", name, built_in[name], words, _key_list(name)) for name, words in _actions().items()
    ]
    return (*plain, *lists, *keys)


def _tabs_with(panel: str) -> str:
    return ", ".join(tab.title for tab in TABS if panel in tab.panels)


def _actions() -> dict[str, str]:
    """Return the actions whose keys can be set, each with its words."""
    words: dict[str, str] = {}
    for row in KEYS:
        name = setting_name(row)
        if name:
            words[name] = words.get(name) or row.help or name.replace("_", " ")
    return words


def default_keys() -> dict[str, tuple[str, ...]]:
    """Return the built-in keys of every action by its name, "" for those whose keys are fixed."""
    found: dict[str, tuple[str, ...]] = {}
    for row in KEYS:
        name = setting_name(row)
        found[name] = (*found.get(name, ()), *(key for key in row.keys if key not in RESERVED))
    return found


class Value(Struct, frozen=True):
    """An effective value and the file it comes from."""

    setting: Setting
    value: Any
    origin: str = BUILT_IN


class Effective(Struct, frozen=True):
    """All settings with what the files made of them, and one line for each thing that is wrong."""

    values: tuple[Value, ...]
    wrong: tuple[str, ...] = ()

    def settings(self) -> Settings:
        """Return them as the screen takes them."""
        found: dict[str, Any] = {"columns": {}, "keys": {}}
        for item in self.values:
            setting = item.setting
            if setting.section not in ("columns", "keys"):
                found[setting.name] = item.value
            elif item.origin != BUILT_IN:
                found[setting.section][setting.name] = item.value
        return Settings(**found)


def read_settings(files: Iterable[ConfigText]) -> Effective:
    """Apply the files one after the other to the defaults."""
    found = {(item.section, item.name): Value(item, item.default) for item in all_settings()}
    wrong: list[str] = []
    for file in files:
        table, unusable = table_of(file)
        wrong += unusable
        for section, name, value in _entries(table):
            try:
                found[section, name] = _checked(found, section, name, value, file)
                if section == "keys":
                    _take_over(found, name, file.path)
            except WrongValue as error:
                line = line_of(file.text, name, section)
                where = f"{file.path}:{line}" if line else file.path
                wrong.append(safe_text(f"{where}: {error}", limit=300))
    return Effective(tuple(found.values()), (*wrong, *_lost_keys(found)))


def _entries(table: Mapping[str, Any]) -> Iterable[tuple[str, str, object]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from ((name, inner, held) for inner, held in value.items())
        else:
            yield "", name, value


def _checked(
    found: Mapping[tuple[str, str], Value], section: str, name: str, value: object, file: ConfigText
) -> Value:
    title = f"{section}.{name}" if section else name
    present = found.get((section, name))
    if present is None:
        raise WrongValue(f"{title} is unknown and ignored; 'fwtop config --sample' lists the names")
    try:
        good = present.setting.check(value)
        if section == "keys":
            _refuse_shared(found, name, good, file.path)
    except WrongValue as error:
        raise WrongValue(
            f"{title} must be {error}; {written(present.setting.plain(present.value))} holds"
        ) from None
    return Value(present.setting, good, file.path)


def _refuse_shared(
    found: Mapping[tuple[str, str], Value], name: str, keys: tuple[str, ...], origin: str
) -> None:
    """Refuse keys that the same file gives to another action of the same tab."""
    for other, item in _rivals(found, name):
        if item.origin == origin and (shared := set(keys) & set(item.value)):
            raise WrongValue(f"other keys: {key_text(shared.pop())} is set for {other}")


def _take_over(found: dict[tuple[str, str], Value], name: str, origin: str) -> None:
    """Take the keys of an action away from those that an earlier file gave them to."""
    keys = found["keys", name].value
    for other, item in _rivals(found, name):
        if item.origin not in (origin, BUILT_IN):
            left = tuple(key for key in item.value if key not in keys)
            found["keys", other] = replace(item, value=left)


def _rivals(found: Mapping[tuple[str, str], Value], name: str) -> list[tuple[str, Value]]:
    """Return the other actions that are bound where this one is."""
    return [
        (other, item)
        for (section, other), item in found.items()
        if section == "keys" and other != name and _meet(name, other)
    ]


def _meet(name: str, other: str) -> bool:
    """Whether two actions are bound on the same tab, so that they can't share a key."""
    return bool(_tabs(name) & _tabs(other))


@functools.cache
def _tabs(name: str) -> frozenset[str]:
    return frozenset(str(getattr(row, "tab", "")) for row in KEYS if setting_name(row) == name)


def _lost_keys(found: Mapping[tuple[str, str], Value]) -> list[str]:
    """Name built-in actions that lose their last key to a key that was set."""
    table = remapped(
        KEYS, {n: item.value for (s, n), item in found.items() if s == "keys" and item.origin != BUILT_IN}
    )
    left = {setting_name(row) for row in table if row.keys}
    return [
        f"keys: {name} has no key left: another action took {key_text(keys[0])}"
        for (section, name), item in found.items()
        if section == "keys" and item.origin == BUILT_IN and name not in left and (keys := item.value)
    ]


def written(value: object) -> str:
    """Write a value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return str(value)
