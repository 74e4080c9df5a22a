"""A document as one self-contained HTML file, without scripts, pictures or links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import assert_never

from fwtop.report import document as doc
from fwtop.report.chart import bars
from fwtop.report.document import Markup, tag, text

# Nothing may be loaded or run, even if some text became markup after all.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
STYLE = Markup("\n" + Path(__file__).with_name("style.css").read_text(encoding="utf-8"))
_UNIT = re.compile(r"(?<=\d) (?=(?:%|h|min|s|[kMGT])\b|%)")


def write_html(document: doc.Document) -> str:
    """Write the whole page."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", f"{document.title} · {document.host} · fwtop"),
        tag("style", STYLE),
    )
    beginning = tag("p", document.where, class_="eyebrow"), tag("h1", document.title)
    notes = _block(doc.Items(document.notes, "notes")) if document.notes else None
    body = tag(
        "main",
        tag("div", *beginning, *map(_block, document.first), class_="first"),
        *map(_block, document.sections),
        tag("footer", notes, document.origin),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', body), lang='en')}\n"


def _block(block: doc.Block) -> Markup:
    match block:
        case doc.Text():
            words = _unbroken(block.words) if block.look == "lead" else block.words
            return tag("p", words, class_=block.look or None)
        case doc.Items():
            lines = (tag("li", line) for line in block.lines)
            return tag("ol" if block.ordered else "ul", *lines, class_=block.look or None)
        case doc.Code():
            return tag("pre", Markup("\n".join(map(text, block.lines))))
        case doc.Table():
            return _table(block)
        case doc.Drawing():
            keys = (tag("li", tag("i", class_=f"k-{key}"), words) for key, words in block.keys)
            legend = tag("ul", *keys, class_="legend") if block.keys else None
            return tag("figure", tag("h4", block.title) if block.title else None, block.picture, legend)
        case doc.Section():
            return _section(block)
        case _:
            assert_never(block)


def _section(section: doc.Section) -> Markup:
    inside = [_block(block) for block in section.blocks]
    if not any(inside):
        return Markup("")
    number = tag("span", section.rule, class_="number") if section.rule else None
    title = tag(f"h{section.level}", number, section.title) if section.title else None
    if section.look == "section":
        return tag("section", title, *inside)
    return tag("div", title, *inside, class_=section.look or None)


def _table(table: doc.Table) -> Markup:
    if not table.rows:
        return Markup("")
    if table.look == "figures":
        return tag("dl", *(_figure(*row) for row in table.rows), class_="figures")
    looks = ["n" if place and isinstance(cell, str) else None for place, cell in enumerate(table.rows[0])]
    heads = [tag("th", head, class_=look) for head, look in zip(table.heads, looks, strict=False)]
    rows = (tag("tr", *map(_cell, row, looks)) for row in table.rows)
    return tag("table", tag("tr", *heads) if heads else None, *rows, class_=table.look or None)


def _figure(name: doc.Cell, value: doc.Cell, more: doc.Cell) -> Markup:
    number = tag("dd", _unbroken(str(value)), tag("small", _unbroken(str(more))))
    return tag("div", tag("dt", str(name)), number)


def _cell(cell: doc.Cell, look: str | None) -> Markup:
    match cell:
        case str():
            return tag("td", cell, class_=look)
        case doc.Text():
            return tag("td", cell.words, class_=cell.look or None)
        case doc.Graph():
            return tag("td", bars(cell.values, cell.label))
        case doc.Meter():
            look = "meter" if cell.filled else "meter expected"
            return tag("td", tag("span", class_=look, style=_width(cell.part)))
        case doc.Key():
            key = tag("span", cell.text, class_="mono" if cell.mono else None)
            detail = tag("small", cell.detail) if cell.detail else None
            fill = tag("span", class_="fill", style=_width(cell.part))
            return tag("td", fill, tag("span", key, detail, class_="text"), class_="key")
        case _:
            assert_never(cell)


def _unbroken(words: str) -> Markup:
    """Keep numbers and their units on one line."""
    return Markup(_UNIT.sub("&nbsp;", text(words)))


def _width(part: float) -> str:
    return f"width:{max(part, 0.0) * 100:.1f}%"
