"""What a report says, in an order to be read: blocks that writers put into HTML, Markdown or plain text.

A block holds plain text, which each writer makes harmless in its format; it measures and rounds nothing.
Pictures are markup, built so that text can't become markup: whatever is not `Markup` is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from msgspec import Struct

from fwtop.model.text import safe_text

_MOST_ROWS, _MOST_EVENTS = 10, 60


class Text(Struct, frozen=True):
    """A paragraph or cell; `look` is its class in HTML, a `strong` one stands out where there are none."""

    words: str
    look: str = ""
    strong: bool = False


class Items(Struct, frozen=True):
    """A list of sentences, numbered if `ordered`."""

    lines: Sequence[str]
    look: str = ""
    ordered: bool = False


class Code(Struct, frozen=True):
    """Lines to be copied as they are: a command, a packet."""

    lines: Sequence[str]


class Key(Struct, frozen=True):
    """What a row is about, over a bar that fills a part (0 to 1) of the cell."""

    text: str
    detail: str
    part: float
    mono: bool = False


class Graph(Struct, frozen=True):
    """Averages side by side, `cells` of them where they are drawn with characters."""

    values: Sequence[float | None]
    label: str
    cells: int


class Meter(Struct, frozen=True):
    """A bar of a length (0 to 1) to compare with those of other rows; hollow unless it is `filled`."""

    part: float
    filled: bool


Cell = str | Text | Key | Graph | Meter


class Table(Struct, frozen=True):
    """Rows, perhaps under headings; cells of plain text after the first are numbers."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    look: str = ""

    @property
    def fewer(self) -> Sequence[Sequence[Cell]]:
        """The largest rows, or the last of a log: as many as one reads in a text."""
        return self.rows[-_MOST_EVENTS:] if self.look == "log" else self.rows[:_MOST_ROWS]


class Drawing(Struct, frozen=True):
    """A finished picture with what is to be read with it; formats without pictures leave all of it out."""

    picture: Markup
    title: str = ""
    keys: Sequence[tuple[str, str]] = ()  # class and meaning of its colours


class Section(Struct, frozen=True):
    """Blocks under a title, or only beside one another; one without any content is left out."""

    title: str
    blocks: Sequence[Block]
    look: str = "section"
    level: int = 2
    rule: str = ""  # whose number stands before the title


Block = Text | Items | Code | Table | Drawing | Section


class Document(Struct, frozen=True):
    """A whole report: its title, where and when, the first page, sections, and how it was made."""

    title: str
    host: str
    where: str
    first: Sequence[Block]
    sections: Sequence[Section]
    notes: Sequence[str]
    origin: str


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
