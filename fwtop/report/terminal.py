"""A document as plain text, for a terminal of 80 columns or wider."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import assert_never

from fwtop.model.text import safe_text
from fwtop.render.trends import spark
from fwtop.report import document as doc

_WIDTH = 80
_BAR = 20  # cells of a whole meter
_WIDEST = 48  # column, so that the numbers behind it stay on the screen


def write_text(document: doc.Document) -> str:
    """Write the whole report."""
    head = doc.Text(document.title), doc.Text(document.where)
    notes = doc.Items(document.notes), doc.Text(document.origin)
    parts = _parts((*head, *document.first, *document.sections, *notes))
    return "\n\n".join(part for part in parts if part.strip()) + "\n"


def _parts(blocks: Iterable[doc.Block]) -> list[str]:
    return [part for block in blocks for part in _block(block)]


def _block(block: doc.Block) -> list[str]:
    match block:
        case doc.Text():
            return [textwrap.fill(_plain(block.words), _WIDTH)]
        case doc.Items():
            marks = ((f"{n}. " if block.ordered else "- ", line) for n, line in enumerate(block.lines, 1))
            return ["\n".join(_item(mark, line) for mark, line in marks)]
        case doc.Code():
            return ["\n".join(f"    {_plain(line)}" for line in block.lines)]
        case doc.Table():
            return [_table(block)] if block.rows else []
        case doc.Drawing():
            return []
        case doc.Section():
            inside = _parts(block.blocks)
            rule = f"Rule {block.rule}: " if block.rule else ""
            title = _plain(f"{rule}{block.title}")
            if title and block.level == 2:
                title = f"{title}\n{'=' * min(len(title), _WIDTH)}"
            return [title, *inside] if inside else []
        case _:
            assert_never(block)


def _item(mark: str, line: str) -> str:
    indent = " " * len(mark)
    return textwrap.fill(_plain(line), _WIDTH, initial_indent=mark, subsequent_indent=indent)


def _table(table: doc.Table) -> str:
    """Write the rows in columns as wide as they need, numbers at the right; the last may be longer."""
    rows = [[part for cell in row for part in _cell(cell)] for row in table.fewer]
    last = len(rows[0]) - 1
    numbers = {at for at in range(1, last + 1) if all(row[at].lstrip("<>")[:1].isdigit() for row in rows)}
    if any(table.heads[1:]):
        heads = [*table.heads[:1], *([""] if isinstance(table.rows[0][0], doc.Key) else []), *table.heads[1:]]
        rows.insert(0, [_plain(head) for head in heads])
    widths = [min(max(len(row[at]) for row in rows), _WIDEST) for at in range(last + 1)]
    lines = []
    for row in rows:
        cells = []
        for at, (cell, width) in enumerate(zip(row, widths, strict=True)):
            shown = cell if at == last else cell[:width]
            cells.append(shown.rjust(width) if at in numbers else shown.ljust(width))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _cell(cell: doc.Cell) -> tuple[str, ...]:
    match cell:
        case str():
            return (_plain(cell),)
        case doc.Text():
            return (_plain(cell.words),)
        case doc.Graph():
            return (spark(cell.values, cell.cells),)
        case doc.Meter():
            return (("█" if cell.filled else "░") * max(round(cell.part * _BAR), 1),)
        case doc.Key():
            return _plain(cell.text), _plain(cell.detail)
        case _:
            assert_never(cell)


def _plain(text: str) -> str:
    return safe_text(text, limit=4_000)
