"""Names of keys, as people write them and as Textual does."""

from __future__ import annotations

from textual.keys import _character_to_key

from fwtop.model.text import safe_text

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
