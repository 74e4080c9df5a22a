"""The page's section on attacks: each with its curve, its own packets in tables, and one packet decoded."""

from __future__ import annotations

from collections.abc import Sequence

from fwtop.dissect.wire import Layer
from fwtop.model.text import safe_text
from fwtop.model.traffic.flow import FULL_TABLE
from fwtop.render.numbers import duration_words, percent, plural
from fwtop.report.facts.evidence import AttackDetail, PartRow
from fwtop.report.facts.spans import AttackSpan
from fwtop.report.page.chart import attack_chart
from fwtop.report.page.markup import Markup, join, tag
from fwtop.report.page.tables import key_cell
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


def attacks_section(digest: Digest) -> Markup:
    """Return the section."""
    shown = [_attack(span) for span in digest.spans[:_MOST_ATTACKS]]
    if not shown:
        shown = [tag("p", "Nothing in the traffic looked like an attack.", class_="none")]
    chart = attack_chart(digest.ticks, digest.spans[:_MOST_ATTACKS])
    words = "Packets a second of each attack, estimated from samples; all to one scale."
    drawing = (
        join((tag("p", words, class_="hint"), tag("figure", chart, style="margin:0 0 18px")))
        if chart
        else None
    )
    return tag("section", tag("h2", "What it was"), drawing, *shown)


def attack_words(span: AttackSpan) -> list[str]:
    """Say when an attack was on, how big it was, and what became of it."""
    end = clock(span.ended) if span.ended is not None else "the end of the record"
    words = [f"{clock(span.began)} to {end} ({duration_words(span.seconds)})"]
    if span.kind != FULL_TABLE:
        words.append(f"at its height {si(span.peak_pps, 'pps')}, {percent(span.share, None)} of all packets")
    if span.target:
        words.append(f"against {span.target}")
    if span.stopped is not None and span.packets and span.kind != FULL_TABLE:
        words.append(
            f"{about(span.stopped)} of its {si(span.packets)} packets dropped by firewalls, "
            f"{percent(span.reached or 0.0, None)} reached services"
        )
    words.append(f"{percent(span.confidence, None)} sure")
    if span.spoofed:
        words.append("sources look forged")
    if span.uncertain:
        words.append("whether its sources are real can't be told")
    return words


def _attack(span: AttackSpan) -> Markup:
    return tag(
        "div",
        tag("h3", span.title, class_="name-attack"),
        tag("p", " · ".join(attack_words(span)), class_="meta"),
        tag("ul", *(tag("li", sentence) for sentence in span.evidence)) if span.evidence else None,
        _tables(span),
        _packet(span.detail),
        class_="item",
    )


def table_titles(span: AttackSpan) -> dict[str, str]:
    """Return names and titles of the attack's tables; whoever may be forged is no sender."""
    return _TITLES | ({"address": "Source addresses"} if span.uncertain else {})


def tables_note(span: AttackSpan) -> str:
    """Say what the attack's tables are of."""
    forged = "Its sources look forged, so that no senders are listed. " if span.spoofed else ""
    if span.uncertain:
        forged = "Its packets may bear the addresses of others: nobody here is known to have sent them. "
    return f"{forged}Shares of its own packets, estimated from samples ({plural(span.detail.looks, 'look')})."


def _tables(span: AttackSpan) -> Markup:
    tables = span.detail.tables
    if not tables:
        return Markup("")
    titles = table_titles(span).items()
    shown = [_table(name, title, tables[name]) for name, title in titles if tables.get(name)]
    return join(
        (
            tag("p", tables_note(span), class_="meta"),
            tag("div", *shown, class_="attack-tables"),
        )
    )


def _table(name: str, title: str, rows: Sequence[PartRow]) -> Markup:
    largest = max(row.share for row in rows) or 1.0
    body = (
        tag(
            "tr",
            key_cell(row.key, _detail(row), row.share / largest, mono=name in _MONO),
            tag("td", percent(row.share, None), class_="n"),
        )
        for row in rows
    )
    head = tag("tr", tag("th", title), tag("th", "share", class_="n"))
    return tag("table", head, *body, class_="wide" if name in _WIDE else None)


def _detail(row: PartRow) -> str:
    return " · ".join(part for part in (row.detail, row.hex[: 2 * 24]) if part)


def _packet(detail: AttackDetail) -> Markup:
    packet = detail.shown
    if packet is None:
        return Markup("")
    layers = [_layer(layer) for layer in detail.dissection.layers]
    problem = detail.dissection.problem
    words = f"One of its packets, at {clock(packet.at)}, {packet.length:,} bytes, as captured"
    return tag(
        "div",
        tag("h4", words),
        *layers,
        tag("p", problem, class_="hint") if problem else None,
        tag("pre", hex_lines(packet.data[:_HEX_BYTES])),
        class_="packet",
    )


def _layer(layer: Layer) -> Markup:
    told = [(name, value) for name, value in layer.fields if value not in ("", "[]")]
    shown = (
        join((" · ", name, " ", tag("span", safe_text(value, limit=_MOST_VALUE), class_="mono")))
        for name, value in told[:_MOST_FIELDS]
    )
    return tag("p", tag("span", layer.name, class_="layer"), *shown, class_="fields")


def hex_lines(data: bytes) -> str:
    """Write bytes as hex, 32 a line."""
    return " ".join(data[at : at + 4].hex() for at in range(0, len(data), 4))
