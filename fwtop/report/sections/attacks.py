"""The section on attacks: each with its curve, its own packets in tables, and one packet decoded."""

from __future__ import annotations

from collections.abc import Iterator

from fwtop.dissect.wire import Layer
from fwtop.model.text import safe_text
from fwtop.model.traffic.flow import FULL_TABLE
from fwtop.render.numbers import duration_words, percent, plural
from fwtop.report.document import Block, Code, Drawing, Items, Key, Section, Table, Text
from fwtop.report.facts.evidence import AttackDetail
from fwtop.report.facts.spans import AttackSpan
from fwtop.report.facts.tops import Row
from fwtop.report.page.chart import attack_chart
from fwtop.report.summary import Digest
from fwtop.report.wording import about, clock, si

_TITLES = {
    "address": "Senders",
    "asn": "Their networks",
    "country": "Their countries",
    "prefix": "Their prefixes",
    "port": "Ports",
    "target": "Targets",
    "signature": "What its packets have in common",
    "payload": "Payloads",
}
_WIDE = ("signature", "payload")
_MONO = ("address", "prefix", "target", "payload")
_MOST_ATTACKS = 20
_MOST_FIELDS = 24  # of each layer of a decoded packet
_MOST_VALUE = 80
_HEX_BYTES = 96


def attacks_section(digest: Digest) -> Section:
    """Return the section."""
    spans = digest.spans[:_MOST_ATTACKS]
    blocks: list[Block] = []
    if chart := attack_chart(digest.ticks, spans):
        words = "Packets a second of each attack, estimated from samples; all to one scale."
        blocks.append(Drawing(chart, words))
    blocks += [Section(span.title, list(_attack(span)), "item attack", level=3) for span in spans]
    if not spans:
        blocks.append(Text("Nothing in the traffic looked like an attack.", "none"))
    return Section("What it was", blocks)


def _attack(span: AttackSpan) -> Iterator[Block]:
    yield Text(" · ".join(_words(span)), "meta")
    if span.evidence:
        yield Items(span.evidence)
    tables = span.detail.tables
    if tables:
        yield Text(_tables_note(span), "meta")
        titles = _TITLES | ({"address": "Source addresses"} if span.uncertain else {})
        shown = [_table(name, title, tables[name]) for name, title in titles.items() if tables.get(name)]
        yield Section("", shown, "attack-tables")
    yield from _packet(span.detail)


def _words(span: AttackSpan) -> Iterator[str]:
    """Say when an attack was on, how big it was, and what became of it."""
    end = clock(span.ended) if span.ended is not None else "the end of the record"
    yield f"{clock(span.began)} to {end} ({duration_words(span.seconds)})"
    if span.kind != FULL_TABLE:
        yield f"at its height {si(span.peak_pps, 'pps')}, {percent(span.share, None)} of all packets"
    if span.target:
        yield f"against {span.target}"
    if span.stopped is not None and span.packets and span.kind != FULL_TABLE:
        yield (
            f"{about(span.stopped)} of its {si(span.packets)} packets dropped by firewalls, "
            f"{percent(span.reached or 0.0, None)} reached services"
        )
    yield f"{percent(span.confidence, None)} sure"
    if span.spoofed:
        yield "sources look forged"
    if span.uncertain:
        yield "whether its sources are real can't be told"


def _tables_note(span: AttackSpan) -> str:
    forged = "Its sources look forged, so that no senders are listed. " if span.spoofed else ""
    if span.uncertain:
        forged = "Its packets may bear the addresses of others: nobody here is known to have sent them. "
    return f"{forged}Shares of its own packets, estimated from samples ({plural(span.detail.looks, 'look')})."


def _table(name: str, title: str, rows: tuple[Row, ...]) -> Table:
    largest = max(row.share for row in rows) or 1.0
    cells = [
        (Key(row.key, _detail(row), row.share / largest, name in _MONO), percent(row.share, None))
        for row in rows
    ]
    return Table((title, "share"), cells, "wide" if name in _WIDE else "")


def _detail(row: Row) -> str:
    return " · ".join(part for part in (row.detail, row.hex[: 2 * 24]) if part)


def _packet(detail: AttackDetail) -> Iterator[Section]:
    packet = detail.shown
    if packet is None:
        return
    words = f"One of its packets, at {clock(packet.at)}, {packet.length:,} bytes, as captured"
    decoded, shown = detail.dissection, packet.data[:_HEX_BYTES]
    lines = [_layer(layer) for layer in decoded.layers]
    lines.append(" ".join(shown[at : at + 4].hex() for at in range(0, len(shown), 4)))
    problem = [Text(decoded.problem, "hint")] if decoded.problem else []
    yield Section(words, [*problem, Code(lines)], "packet", level=4)


def _layer(layer: Layer) -> str:
    fields = [(name, value) for name, value in layer.fields if value not in ("", "[]")]
    told = (f"{name} {safe_text(value, limit=_MOST_VALUE)}" for name, value in fields[:_MOST_FIELDS])
    return " · ".join((layer.name, *told))
