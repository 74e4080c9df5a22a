"""The page's tables: who sent what, and where it ended."""

from __future__ import annotations

from collections.abc import Sequence

from fwtop.report.digest import Digest
from fwtop.report.markup import Markup, tag
from fwtop.report.tops import Row
from fwtop.report.wording import duration, percent, plural, si

TABLES = (
    ("address", "Source addresses"),
    ("prefix", "Source prefixes"),
    ("asn", "Networks (AS)"),
    ("country", "Countries"),
    ("port", "Ports"),
    ("ledger", "Where packets ended"),
)


def tables_section(digest: Digest) -> Markup:
    """Return the section, or nothing where nothing was counted."""
    tops = digest.tops
    if not tops.tables:
        return Markup("")
    when = "while it was attacked" if tops.during_attack else "over the whole session"
    hint = (
        f"Summed {when} over {plural(tops.snapshots, 'snapshot')} ({duration(tops.seconds)}). Each snapshot "
        "lists its largest entries, so the sums of small ones are lower bounds."
    )
    shown = [
        _table(title, tops.tables.get(name, []), mono=name in ("address", "prefix")) for name, title in TABLES
    ]
    payloads = tops.tables.get("payload", [])
    return tag(
        "section",
        tag("h2", "Who sent what"),
        tag("p", hint, class_="hint"),
        tag("div", *shown, _payloads(payloads), class_="tables"),
    )


def _table(title: str, rows: Sequence[Row], *, mono: bool) -> Markup:
    if not rows:
        return Markup("")
    head = tag("tr", tag("th", title), tag("th", "packets", class_="n"), tag("th", "share", class_="n"))
    largest = max(row.share for row in rows) or 1.0
    body = (
        tag(
            "tr",
            _key(row, largest, mono=mono),
            tag("td", si(row.packets), class_="n"),
            tag("td", percent(row.share), class_="n"),
        )
        for row in rows
        if row.packets > 0
    )
    return tag("table", head, *body)


def _key(row: Row, largest: float, *, mono: bool) -> Markup:
    return tag(
        "td",
        tag("span", class_="fill", style=f"width:{max(row.share / largest, 0.0) * 100:.1f}%"),
        tag(
            "span",
            tag("span", row.key, class_="mono" if mono else None),
            tag("small", row.detail) if row.detail else None,
            class_="text",
        ),
        class_="key",
    )


def _payloads(rows: Sequence[Row]) -> Markup:
    if not rows:
        return Markup("")
    head = tag(
        "tr",
        tag("th", "Payloads"),
        tag("th", "where", class_="n"),
        tag("th", "packets", class_="n"),
        tag("th", "share", class_="n"),
    )
    body = (
        tag(
            "tr",
            tag(
                "td",
                tag("span", row.key, class_="mono"),
                tag("small", row.hex[:96], class_="mono"),
                class_="key",
            ),
            tag("td", row.detail, class_="n"),
            tag("td", si(row.packets), class_="n"),
            tag("td", percent(row.share), class_="n"),
        )
        for row in rows
    )
    return tag("div", tag("table", head, *body), class_="wide")
