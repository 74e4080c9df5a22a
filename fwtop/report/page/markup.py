"""HTML and SVG built so that text can't become markup: whatever is not `Markup` is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from fwtop.model.text import safe_text

_VOID = frozenset({"meta", "br", "rect", "line", "path", "circle", "col"})


class Markup(str):
    """Finished markup; only `tag`, `join` and literals of this package make it."""

    __slots__ = ()


Child = str | Markup | None


def tag(name: str, /, *children: Child, **attributes: str | float | None) -> Markup:
    """Build one element; `class_` is `class`, underscores become hyphens, None leaves one out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID and not children:
        return Markup(f"<{name}{given}/>" if name != "meta" else f"<{name}{given}>")
    return Markup(f"<{name}{given}>{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Markup:
    """Put elements and texts one after the other."""
    return Markup("".join(text(child) for child in children if child))


def text(value: str | float) -> Markup:
    """Make any text harmless within an element or a quoted attribute; numbers are cut to 2 decimals."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, float):
        return Markup(f"{value:.2f}".rstrip("0").rstrip("."))
    return Markup(escape(safe_text(value, limit=4_000), quote=True))
