"""Names of keys and of their actions, as the operator writes them in screen.toml, and the table remapped."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace
from textual.keys import _character_to_key

from fwtop.model.text import safe_text
from fwtop.ui.keys import Key

_NAMED = {
    **{name: name for name in ("up", "down", "left", "right", "home", "end", "insert", "delete", "space")},
    **{name: name for name in ("tab", "enter", "escape", "backspace", "pageup", "pagedown")},
    **{f"f{number}": f"f{number}" for number in range(1, 13)},
    "pgup": "pageup",
    "pgdn": "pagedown",
    "esc": "escape",
    "del": "delete",
}
_SHOWN = {
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "escape": "Esc",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
}
_CHARACTERS = {_character_to_key(chr(code)): chr(code) for code in range(0x21, 0x7F)}
_ARROWS = {shown: name for name, shown in _SHOWN.items() if len(shown) == 1}
_SETTING_NAMES = {
    "move(-1)": "up",
    "move(1)": "down",
    "page(-1)": "page_up",
    "page(1)": "page_down",
    "faster(1)": "faster",
    "faster(-1)": "slower",
    "skip(1)": "next_event",
    "skip(-1)": "previous_event",
    "leave": "quit",
    "confirm": "keep",
}


RESERVED = ("escape", "ctrl+c", *"123456789")  # these always mean the same


class KeyNameError(ValueError):
    """There is no such key; the text says how keys are written."""


def key_name(text: str) -> str:
    """Return Textual's name of a key written as `b`, `?`, `Ctrl+R`, `F2` or `Space`."""
    if len(text) == 1 and text.isascii() and text.isprintable():
        return "space" if text == " " else _character_to_key(text)
    *modifiers, last = text.split("+") if not text.endswith("++") else [*text[:-2].split("+"), "+"]
    last = _ARROWS.get(last, last.lower() if len(last) > 1 else last)
    base = _NAMED.get(last)
    if base is None and len(last) == 1 and last.isascii() and last.isalnum() and modifiers:
        base = last.lower()
    lowered = [modifier.lower() for modifier in modifiers]
    if base is None or not set(lowered) <= {"ctrl", "shift", "alt"} or len(set(lowered)) < len(lowered):
        raise KeyNameError(
            f'keys like "x", "?", "Ctrl+X", "F2" or "Space", not "{safe_text(text, limit=20)}"'
        )
    return "+".join([name for name in ("alt", "ctrl", "shift") if name in lowered] + [base])


def key_text(name: str) -> str:
    """Write a key for people: the inverse of `key_name`."""
    *modifiers, last = name.split("+")
    shown = _SHOWN.get(last)
    if shown is None:
        shown = _CHARACTERS.get(last, last.capitalize())
        if modifiers and len(shown) == 1:
            shown = shown.upper()
    return "+".join([*(modifier.capitalize() for modifier in modifiers), shown])


def setting_name(row: Key) -> str:
    """Return the name of a row's action in screen.toml and on the command line; "" if its keys are fixed."""
    if row.action.startswith("proposal"):
        return ""
    if row.action in _SETTING_NAMES:
        return _SETTING_NAMES[row.action]
    if inner := re.fullmatch(r"rule\('(\w+)'\)", row.action):
        return inner[1]
    if step := re.fullmatch(r"(\w+)\((-?)1\)", row.action):
        return f"{'previous' if step[2] else 'next'}_{step[1]}"
    return re.sub(r"\W+", "_", row.action).strip("_")


def remapped(rows: Sequence[Key], keys: Mapping[str, tuple[str, ...]]) -> tuple[Key, ...]:
    """Return the table with keys that were set; an action loses the keys that were set for another."""
    found: list[Key] = []
    for row in rows:
        left = _keys_of(rows, row, keys)
        if left == row.keys:
            found.append(row)
            continue
        words = row.help or setting_name(row).replace("_", " ")
        found.append(replace(row, keys=left, label=_label(left), help=re.sub(r" \(also [^)]*\)", "", words)))
        if not row.label and found[-2:-1] and found[-2].help:  # the row before named these keys, too
            found[-2] = replace(found[-2], label=_label(found[-2].keys))
    return tuple(found)


def _keys_of(rows: Sequence[Key], row: Key, keys: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    name = setting_name(row)
    if name in keys:
        return (*keys[name], *(key for key in row.keys if key in RESERVED))
    taken = {key for other, given in keys.items() for key in given if _same_tab(rows, other, row)}
    return tuple(key for key in row.keys if key not in taken)


def _label(keys: Sequence[str]) -> str:
    return " ".join(key_text(key) for key in keys[:2])


def _same_tab(rows: Sequence[Key], name: str, row: Key) -> bool:
    return any(_tab(other) == _tab(row) for other in rows if setting_name(other) == name)


def _tab(row: Key) -> str:
    return str(getattr(row, "tab", ""))
