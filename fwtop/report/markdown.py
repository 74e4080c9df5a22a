"""A document as Markdown, for a ticket or a mail; no text can become markup or a link."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import assert_never

from fwtop.model.text import safe_text
from fwtop.render.trends import spark
from fwtop.report import document as doc

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|<>~&$])")
_LINK = re.compile(r"(?i)(:)(//)|(www)(\.)|(@)")


def write_markdown(document: doc.Document) -> str:
    """Write the whole report."""
    parts = [
        f"# {escape(document.title)}",
        escape(document.where),
        *_parts(document.first),
        *_parts(document.sections),
        *_block(doc.Items(document.notes)),
        escape(document.origin),
    ]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def escape(text: str) -> str:
    """Make any text plain in Markdown: one line, no emphasis, no HTML, no link that finds itself."""
    plain = _SPECIAL.sub(r"\\\1", safe_text(text, limit=1_000))
    return _LINK.sub(_unlink, plain)


def _unlink(found: re.Match[str]) -> str:
    before, after = (found[1] or found[3] or ""), (found[2] or found[4] or found[5])
    return f"{before}\\{after}"


def _parts(blocks: Iterable[doc.Block]) -> list[str]:
    return [part for block in blocks for part in _block(block)]


def _block(block: doc.Block) -> list[str]:
    """Return the block's paragraphs, none where it has nothing to say without a picture."""
    match block:
        case doc.Text():
            words = escape(block.words)
            return [f"**{words}**" if block.strong else words]
        case doc.Items():
            numbered = enumerate(block.lines, 1)
            return ["\n".join(f"{f'{n}.' if block.ordered else '-'} {escape(line)}" for n, line in numbered)]
        case doc.Code():
            lines = "\n".join(safe_text(line, limit=4_000) for line in block.lines)
            fence = max(["```", *(f"{run}`" for run in re.findall("`+", lines))], key=len)
            return [f"{fence}\n{lines}\n{fence}"]
        case doc.Table():
            return [_table(block)] if block.rows else []
        case doc.Drawing():
            return []
        case doc.Section():
            inside = _parts(block.blocks)
            rule = f"Rule {escape(block.rule)}: " if block.rule else ""
            title = [f"{'#' * block.level} {rule}{escape(block.title)}"] if block.title else []
            return [*title, *inside] if inside else []
        case _:
            assert_never(block)


def _table(table: doc.Table) -> str:
    """Write the rows; a key and its detail are columns of their own."""
    written = [[part for cell in row for part in _cell(cell)] for row in table.fewer]
    heads = [escape(head) for head in table.heads]
    if isinstance(table.rows[0][0], doc.Key):
        heads.insert(1, "")
    width = len(written[0])
    heads += [""] * (width - len(heads))
    head, *lines = (f"| {' | '.join(row)} |" for row in (heads, *written))
    return "\n".join((head, f"|{'---|' * width}", *lines))


def _cell(cell: doc.Cell) -> tuple[str, ...]:
    match cell:
        case str():
            return (escape(cell),)
        case doc.Text():
            return (f"**{escape(cell.words)}**" if cell.strong else escape(cell.words),)
        case doc.Graph():
            return (spark(cell.values, cell.cells),)
        case doc.Meter():
            return ()
        case doc.Key():
            return escape(cell.text), escape(cell.detail)
        case _:
            assert_never(cell)
