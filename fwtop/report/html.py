"""A document as one self-contained HTML file, without scripts, pictures or links."""

from __future__ import annotations

import re
from typing import assert_never

from fwtop.report import document as doc
from fwtop.report.chart import bars
from fwtop.report.document import Markup, tag, text

# Nothing may be loaded or run, even if some text became markup after all.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
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


STYLE = Markup("""
:root{color-scheme:light dark;--paper:#fcfcfa;--card:#fff;--ink:#1d2126;--soft:#5d6670;--faint:#6f7882;
--rule:#e4e5e1;--delivered:#3f7fb0;--dropped:#c9cdd2;--mine:#8d83d6;--other:#7fb3a2;--arrived:#1d2126;
--attack:#c4412f;
--attack-soft:rgba(196,65,47,.09);--act:#5a4fb0;--bar:#dfe9f1;--good:#2d7a4f}
@media (prefers-color-scheme:dark){:root{--paper:#14171a;--card:#1a1e22;--ink:#e4e7ea;--soft:#a3acb5;
--faint:#78828c;--rule:#2b3137;--delivered:#5b9bcb;--dropped:#4a525a;--mine:#6f64bd;--other:#4d8573;
--arrived:#e4e7ea;--attack:#ee7767;
--attack-soft:rgba(238,119,103,.13);--act:#a79df0;--bar:#243543;--good:#6fbf92}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.55 system-ui,-apple-system,"Segoe UI",
Roboto,"Helvetica Neue",Arial,sans-serif;font-variant-numeric:tabular-nums}
main{max-width:1040px;margin:0 auto;padding:52px 28px 72px}
.eyebrow{margin:0 0 6px;color:var(--soft);font-size:13px}
h1{margin:0;font-size:34px;line-height:1.18;font-weight:650;letter-spacing:-.018em;max-width:27em;
text-wrap:balance;
overflow-wrap:anywhere}
.lead{margin:14px 0 0;color:var(--soft);font-size:17px;max-width:50em;text-wrap:pretty;overflow-wrap:anywhere}
section{margin-top:52px}
h2{margin:0 0 14px;font-size:19px;font-weight:650;letter-spacing:-.008em}
h3{margin:0;font-size:16px;font-weight:620;overflow-wrap:anywhere}
h4{margin:0 0 6px;font-size:13px;font-weight:600;color:var(--soft)}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:22px 28px;margin:34px 0 0;
padding:20px 0 0;border-top:1px solid var(--rule)}
.figures dt{color:var(--soft);font-size:13px}
.figures dd{margin:1px 0 0;font-size:24px;font-weight:600;letter-spacing:-.012em}
.figures dd small{display:block;color:var(--faint);font-size:12.5px;font-weight:400;letter-spacing:0}
figure{margin:0 0 18px}.first figure{margin:0}
svg{display:block;width:100%;height:auto;overflow:visible}
svg text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--soft)}
.tick-y{text-anchor:end}.tick-x{text-anchor:middle}.unit{fill:var(--faint)!important}
.grid{stroke:var(--rule)}.axis{stroke:var(--faint)}
.delivered{fill:var(--delivered)}.dropped{fill:var(--dropped)}.mine{fill:var(--mine)}.other{fill:var(--other)}
.series{fill:var(--attack);fill-opacity:.75}.series-name{font-weight:600;fill:var(--ink)!important}
.usual{stroke:var(--good);stroke-width:1.3;stroke-dasharray:5 4;fill:none}
.arrived{fill:none;stroke:var(--arrived);stroke-width:1.4;stroke-linejoin:round}
.unstored{fill:var(--rule)}.attack{fill:var(--attack-soft)}.attack-bar{stroke:var(--attack);stroke-width:3}
svg .attack-name{fill:var(--attack);font-weight:600;paint-order:stroke;stroke:var(--paper);stroke-width:5px}
.rule{stroke:var(--act);stroke-width:1.4}.rule-end{stroke:var(--act);stroke-width:1.2;stroke-dasharray:3 4}
.rule-dot{fill:var(--act)}.rule-over{fill:var(--paper);stroke:var(--act);stroke-width:1.4}
svg .rule-number,svg .rule-over-number{text-anchor:middle;font-size:11px;font-weight:650;fill:var(--paper)}
svg .rule-over-number{fill:var(--act)}
.gauge{fill:var(--bar)}.gauge-line{fill:none;stroke:var(--delivered);stroke-width:1.3}
.legend{display:flex;flex-wrap:wrap;gap:4px 22px;margin:10px 0 0;padding:0;color:var(--soft);font-size:13px;
list-style:none}
.legend i{display:inline-block;width:12px;height:12px;margin-right:7px;border-radius:2px;vertical-align:-1px}
.legend .k-arrived{height:2px;vertical-align:4px;background:var(--arrived)}
.legend .k-delivered{background:var(--delivered)}.legend .k-dropped{background:var(--dropped)}
.legend .k-mine{background:var(--mine)}.legend .k-other{background:var(--other)}
.legend .k-attack{background:var(--attack-soft);border-top:3px solid var(--attack)}
.legend .k-unstored{background:var(--rule)}
.legend .k-rule{border-radius:50%;background:var(--act)}
.state{margin:26px 0 0;padding:11px 16px;border-left:4px solid var(--good);background:var(--card);
font-weight:600;
overflow-wrap:anywhere}
.state.bad{border-color:var(--attack)}
.first h2{margin-top:34px}.first .legend{margin-bottom:0}
.todo{display:grid;grid-template-columns:minmax(0,1fr) minmax(0,1fr);gap:0 44px}
.todo h2{margin:34px 0 10px}.todo ol,.todo ul{margin:0;padding-left:20px}.todo li{margin:5px 0;
overflow-wrap:anywhere}
.todo li::marker{color:var(--faint)}
.attack-tables{display:grid;align-items:start;grid-template-columns:minmax(0,1fr) minmax(0,1fr);
gap:22px 44px;margin-top:16px}
.attack-tables .wide{grid-column:1/-1}
.packet{margin-top:18px}
.item{padding:18px 0;border-top:1px solid var(--rule)}
.item:last-child{padding-bottom:0}
.item .meta{margin:2px 0 0;color:var(--soft);font-size:14px}
.item ul{margin:10px 0 0;padding-left:19px;max-width:48em}
.item li{margin:3px 0;overflow-wrap:anywhere}
.name-attack,.item.attack h3{color:var(--attack)}
.number{display:inline-block;min-width:21px;height:21px;margin-right:9px;padding:0 4px;border-radius:11px;
background:var(--act);color:var(--paper);font-size:12px;line-height:21px;text-align:center}
.effect{display:grid;grid-template-columns:minmax(0,1fr) minmax(0,1fr);gap:14px 44px;margin-top:14px}
.effect div+div h4{margin-top:14px}.effect .hint{margin:0 0 4px}
.pair td{padding:2px 10px 2px 0;border:0;font-size:14px;vertical-align:middle}
.pair .n{padding-right:0}.pair td:first-child{width:86px;white-space:nowrap;color:var(--soft)}
.pair.ladder{max-width:720px}.pair.ladder td:first-child{width:1%}
.meter{display:block;height:9px;border-radius:2px;background:var(--act)}
.meter.expected{background:none;box-shadow:inset 0 0 0 1.3px var(--act)}
pre{margin:14px 0 0;padding:11px 14px;border:1px solid var(--rule);border-radius:5px;background:var(--card);
font:12.5px/1.55 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre-wrap;
overflow-wrap:anywhere}
table{width:100%;border-collapse:collapse;font-size:13.5px}
th{padding:0 0 6px;color:var(--faint);font-size:12.5px;font-weight:500;text-align:left}
td{padding:5px 0;border-top:1px solid var(--rule);vertical-align:top}
th+th,td+td{padding-left:14px}
.n{width:1%;white-space:nowrap;text-align:right}
td:first-child{overflow-wrap:anywhere}.key{position:relative}
.key .fill{position:absolute;top:3px;bottom:3px;left:0;border-radius:3px;background:var(--bar)}
.key .text{position:relative;display:block;padding:1px 0 1px 8px}
.key small{display:block;color:var(--soft);font-size:12.5px;overflow-wrap:anywhere}
.mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:12.5px}
.tables th:first-child{padding-left:8px}.tables th{color:var(--soft);font-weight:600}
.tables{display:grid;align-items:start;grid-template-columns:minmax(0,1fr) minmax(0,1fr);gap:38px 48px}
.wide{grid-column:1/-1}.wide td:first-child{padding-left:8px}
.log td:first-child{width:1%;padding-right:6px;color:var(--faint);white-space:nowrap}
.log td{overflow-wrap:anywhere}
.log .what{width:1%;white-space:nowrap;font-weight:550}
.hint,.notes{margin:0 0 18px;color:var(--soft);font-size:14px;max-width:62em}
.notes{padding-left:19px}
.none{margin:0;color:var(--soft)}
footer{margin-top:60px;padding-top:16px;border-top:1px solid var(--rule);color:var(--faint);font-size:13px;
max-width:none}
@media (max-width:720px){main{padding:28px 18px 48px}h1{font-size:27px}.tables,.effect,.todo,.attack-tables{
grid-template-columns:minmax(0,1fr)}section{margin-top:40px}svg text{font-size:17px}}
@media print{:root{color-scheme:light;--paper:#fff;--card:#fff;--ink:#000;--soft:#444;--faint:#666;
--rule:#ccc;--delivered:#3f7fb0;--dropped:#c9cdd2;--mine:#8d83d6;--other:#7fb3a2;--arrived:#000;
--attack:#b03223;--attack-soft:rgba(196,65,47,.1);
--act:#4a3fa0;--bar:#e4edf4}
body{font-size:10pt;line-height:1.4;print-color-adjust:exact;-webkit-print-color-adjust:exact}
main{max-width:none;padding:0}h1{font-size:17pt}.lead{margin-top:6pt;font-size:10pt;max-width:none}
.first{break-after:page}.first .state{margin-top:8pt;padding:5pt 10pt}
.figures{margin-top:10pt;padding-top:8pt;gap:6pt 12pt;grid-template-columns:repeat(5,1fr)}
.figures dt{font-size:8.5pt}.figures dd{font-size:14pt}.figures dd small{font-size:8pt;line-height:1.3}
.first h2,.todo h2{margin-top:10pt;margin-bottom:4pt}.todo{font-size:8.5pt}.todo li{margin:1pt 0}
svg text{font-size:15px}
.legend{margin-top:4pt;font-size:8.5pt}
section{margin-top:22pt}tr,svg,figure,.figures,.effect,.packet{break-inside:avoid}h2,h3,h4{break-after:avoid}
@page{margin:12mm 15mm}}
""")
