"""The settings as text: `docs/screen.toml`, the effective ones as TOML, and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable
from typing import Any

from fwtop.model.settings_file import dotted, written
from fwtop.model.text import safe_text
from fwtop.ui.settings import Effective, Setting, Value, all_settings

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

    def lines(setting: Setting) -> list[str]:
        assigned = f"#{setting.name} = {written(setting.plain(setting.default))}"
        if len(assigned) + len(setting.help) + 4 <= _WIDTH:
            return [f"{assigned}  # {setting.help}"]
        return [*textwrap.wrap(setting.help, _WIDTH, initial_indent="# ", subsequent_indent="# "), assigned]

    return _HEAD + "\n" + _in_sections(all_settings(), lambda item: item, lines, heading="#[{}]")


def show(effective: Effective) -> str:
    """Write the effective settings, each with the file that it comes from."""

    def lines(item: Value) -> list[str]:
        assigned = f"{item.setting.name} = {written(item.setting.plain(item.value))}"
        return [f"{assigned}  # {safe_text(item.origin)}"]

    wrong = "".join(f"# wrong: {safe_text(line, limit=300)}\n" for line in effective.wrong)
    return wrong + _in_sections(effective.values, lambda item: item.setting, lines, heading="[{}]")


def _in_sections(
    items: Iterable[Any],
    setting: Callable[[Any], Setting],
    lines: Callable[[Any], list[str]],
    *,
    heading: str,
) -> str:
    found: list[str] = []
    present = ""
    for item in items:
        section = setting(item).section
        if section != present:
            present = section
            intro = [f"# {_SECTIONS[section]}"] if heading.startswith("#") else []
            found += ["", *intro, heading.format(section)]
        found += lines(item)
    return "\n".join(found) + "\n"


def as_json(effective: Effective) -> dict[str, Any]:
    """Return the effective settings with their origins, and what is wrong."""
    settings: dict[str, dict[str, Any]] = {}
    for item in effective.values:
        settings[dotted(item.setting.place)] = {
            "value": item.setting.plain(item.value),
            "default": item.setting.plain(item.setting.default),
            "from": item.origin,
        }
    return {"settings": settings, "wrong": list(effective.wrong)}
