"""A document as Markdown, for a ticket or a mail, and as plain text, for terminals of 80 columns or more."""

from __future__ import annotations

import re
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import assert_never

from fwtop.model.text import safe_text
from fwtop.render.trends import spark
from fwtop.report import document as doc

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|<>~&$])")
_LINK = re.compile(r"(?i)(:)(//)|(www)(\.)|(@)")
_WIDTH = 80
_BAR = 20  # cells of a whole meter
_WIDEST = 48  # column, so that the numbers behind it stay on the screen


def write_markdown(document: doc.Document) -> str:
    """Write the whole report; no text in it can become markup or a link."""
    return _Markdown().whole(document)


def write_text(document: doc.Document) -> str:
    """Write the whole report."""
    return _Terminal().whole(document)


class _Writer(ABC):
    """Walks over a document; pictures are left out, and so is a section that has nothing to say without."""

    def whole(self, document: doc.Document) -> str:
        head = self.title(document.title, 1), self.text(doc.Text(document.where))
        blocks = (*document.first, *document.sections, doc.Items(document.notes), doc.Text(document.origin))
        return "\n\n".join(part for part in (*head, *self.parts(blocks)) if part.strip()) + "\n"

    def parts(self, blocks: Iterable[doc.Block]) -> list[str]:
        return [part for block in blocks for part in self.block(block)]

    def block(self, block: doc.Block) -> list[str]:
        """Return the block's paragraphs."""
        match block:
            case doc.Text():
                return [self.text(block)]
            case doc.Items():
                marks = ((f"{n}." if block.ordered else "-", line) for n, line in enumerate(block.lines, 1))
                return ["\n".join(self.item(mark, line) for mark, line in marks)]
            case doc.Code():
                return [self.code([safe_text(line, limit=4_000) for line in block.lines])]
            case doc.Table():
                rows = [[part for cell in row for part in self.cell(cell)] for row in block.fewer]
                heads = [self.plain(head) for head in block.heads]
                if rows and isinstance(block.rows[0][0], doc.Key):  # its detail is a column of its own
                    heads.insert(1, "")
                return [self.table(heads, rows)] if rows else []
            case doc.Drawing():
                return []
            case doc.Section():
                inside = self.parts(block.blocks)
                rule = f"Rule {block.rule}: " if block.rule else ""
                title = [self.title(f"{rule}{block.title}", block.level)] if block.title else []
                return [*title, *inside] if inside else []
            case _:
                assert_never(block)

    def cell(self, cell: doc.Cell) -> tuple[str, ...]:
        match cell:
            case str():
                return (self.plain(cell),)
            case doc.Text():
                return (self.words(cell),)
            case doc.Graph():
                return (spark(cell.values, cell.cells),)
            case doc.Meter():
                return self.meter(cell)
            case doc.Key():
                return self.plain(cell.text), self.plain(cell.detail)
            case _:
                assert_never(cell)

    def text(self, text: doc.Text) -> str:
        return self.words(text)

    def words(self, text: doc.Text) -> str:
        return self.plain(text.words)

    def meter(self, meter: doc.Meter) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    @abstractmethod
    def plain(self, text: str) -> str: ...

    @abstractmethod
    def title(self, title: str, level: int) -> str: ...

    @abstractmethod
    def item(self, mark: str, line: str) -> str: ...

    @abstractmethod
    def code(self, lines: Sequence[str]) -> str: ...

    @abstractmethod
    def table(self, heads: list[str], rows: list[list[str]]) -> str: ...


class _Markdown(_Writer):
    def plain(self, text: str) -> str:
        return escape(text)

    def words(self, text: doc.Text) -> str:
        return f"**{escape(text.words)}**" if text.strong else escape(text.words)

    def title(self, title: str, level: int) -> str:
        return f"{'#' * level} {escape(title)}"

    def item(self, mark: str, line: str) -> str:
        return f"{mark} {escape(line)}"

    def code(self, lines: Sequence[str]) -> str:
        fence = max(["```", *(f"{run}`" for run in re.findall("`+", "\n".join(lines)))], key=len)
        return "\n".join((fence, *lines, fence))

    def table(self, heads: list[str], rows: list[list[str]]) -> str:
        width = len(rows[0])
        head, *lines = (f"| {' | '.join(row)} |" for row in (heads + [""] * (width - len(heads)), *rows))
        return "\n".join((head, f"|{'---|' * width}", *lines))


def escape(text: str) -> str:
    """Make any text plain in Markdown: one line, no emphasis, no HTML, no link that finds itself."""
    plain = _SPECIAL.sub(r"\\\1", safe_text(text, limit=1_000))
    return _LINK.sub(lambda found: f"{found[1] or found[3] or ''}\\{found[2] or found[4] or found[5]}", plain)


class _Terminal(_Writer):
    def plain(self, text: str) -> str:
        return safe_text(text, limit=4_000)

    def text(self, text: doc.Text) -> str:
        return textwrap.fill(self.words(text), _WIDTH)

    def meter(self, meter: doc.Meter) -> tuple[str, ...]:
        return (("█" if meter.filled else "░") * max(round(meter.part * _BAR), 1),)

    def title(self, title: str, level: int) -> str:
        title = self.plain(title)
        line = f"\n{'=' * min(len(title), _WIDTH)}" if level == 2 else ""
        return f"{textwrap.fill(title, _WIDTH) if level == 1 else title}{line}"

    def item(self, mark: str, line: str) -> str:
        indent = " " * (len(mark) + 1)
        return textwrap.fill(self.plain(line), _WIDTH, initial_indent=f"{mark} ", subsequent_indent=indent)

    def code(self, lines: Sequence[str]) -> str:
        return "\n".join(f"    {line}" for line in lines)

    def table(self, heads: list[str], rows: list[list[str]]) -> str:
        """Write the rows in columns as wide as they need, numbers at the right; the last may be longer."""
        last = len(rows[0]) - 1
        numbers = {at for at in range(1, last + 1) if all(row[at].lstrip("<>")[:1].isdigit() for row in rows)}
        if any(heads[1:]):
            rows = [heads, *rows]
        widths = [min(max(len(row[at]) for row in rows), _WIDEST) for at in range(last + 1)]
        return "\n".join("  ".join(self._cells(row, widths, numbers)).rstrip() for row in rows)

    @staticmethod
    def _cells(row: Sequence[str], widths: Sequence[int], numbers: set[int]) -> Iterator[str]:
        for at, (cell, width) in enumerate(zip(row, widths, strict=True)):
            shown = cell if at == len(row) - 1 else cell[:width]
            yield shown.rjust(width) if at in numbers else shown.ljust(width)
