"""The HTML report's tables: who sent what, and where it was dropped."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fwtop.model.costs import Costs
from fwtop.model.rule import Kind
from fwtop.render.numbers import duration_words, percent, plural
from fwtop.report.facts.tops import Row, Tops
from fwtop.report.page.markup import Markup, tag
from fwtop.report.summary import Digest
from fwtop.report.wording import si

TABLES = (
    ("address", "Source addresses"),
    ("prefix", "Source prefixes"),
    ("asn", "Networks (AS)"),
    ("country", "Countries"),
    ("port", "Ports"),
    ("ledger", "Where packets ended"),
)


SOURCE_TABLES = ("address", "prefix", "asn", "country")


def forged_note(tops: Tops) -> str:
    """Say why no sources are ranked, "" where none is forged."""
    if not tops.forged:
        return ""
    named = ", ".join(tops.forged[:3])
    return (
        f"Sources were forged ({named}): whose addresses they bear did not send these packets, so that no "
        "addresses, networks and countries are ranked here. Senders of other attacks stand with each attack."
    )


def shown_tables(tops: Tops) -> list[tuple[str, str]]:
    """Return names and titles of the tables; forged sources are never ranked."""
    return [row for row in TABLES if not (tops.forged and row[0] in SOURCE_TABLES)]


def tables_section(digest: Digest) -> Markup:
    """Return the section, or nothing where nothing was counted."""
    tops = digest.tops
    if not tops.tables:
        return Markup("")
    when = "while it was attacked" if tops.during_attack else "over the whole session"
    hint = (
        f"Summed {when} over {plural(tops.snapshots, 'snapshot')} ({duration_words(tops.seconds)}). "
        "Each snapshot lists its largest entries, so the sums of small ones are lower bounds."
    )
    forged = forged_note(tops)
    shown = [
        _table(title, tops.tables.get(name, []), mono=name in ("address", "prefix"))
        for name, title in shown_tables(tops)
    ]
    payloads = tops.tables.get("payload", [])
    return tag(
        "section",
        tag("h2", "All traffic of that time"),
        tag("p", hint, class_="hint"),
        tag("p", forged, class_="hint") if forged else None,
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
            key_cell(row.key, row.detail, row.share / largest, mono=mono),
            tag("td", si(row.packets), class_="n"),
            tag("td", percent(row.share, None), class_="n"),
        )
        for row in rows
        if row.packets > 0
    )
    return tag("table", head, *body)


def key_cell(key: str, detail: str, filled: float, *, mono: bool) -> Markup:
    """Return what a row is about, over a bar that fills a part (0 to 1) of the cell."""
    return tag(
        "td",
        tag("span", class_="fill", style=f"width:{max(filled, 0.0) * 100:.1f}%"),
        tag(
            "span",
            tag("span", key, class_="mono" if mono else None),
            tag("small", detail) if detail else None,
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
            tag("td", percent(row.share, None), class_="n"),
        )
        for row in rows
    )
    return tag("div", tag("table", head, *body), class_="wide")


_PLACES = {
    Kind.XDP: "in the driver (XDP)",
    Kind.TC: "at tc ingress",
    Kind.NFTABLES: "at netdev ingress (nftables)",
    Kind.IPSET: "by source (ipset)",
    Kind.HASHLIMIT: "by rate (hashlimit)",
    Kind.STRING: "by payload (string)",
    Kind.CONNLIMIT: "by open connections (nftables ct count)",
    Kind.SYNPROXY: "half-open connections (SYNPROXY)",
}  # of the packet's way, first to last; notrack ends nothing


def cost_ladder(costs: Costs | None, used: Collection[Kind]) -> Markup:
    """Draw a bar a kind, those that the session used filled; empty where nothing was measured here."""
    rates = {
        kind: 1e9 / costs.cost_ns[kind.value] for kind in _PLACES if costs and kind.value in costs.cost_ns
    }
    if costs is None or not rates:
        return Markup("")
    fastest = max(rates.values())
    rows: list[Markup] = []
    for kind, pps in rates.items():
        look = "meter" if kind in used else "meter expected"
        bar = tag("span", class_=look, style=f"width:{pps / fastest * 100:.1f}%")
        rows += [tag("span", _PLACES[kind]), tag("span", bar), tag("span", si(pps, "pps"))]
    filled = " Filled: what this session used." if any(kind in used for kind in rates) else ""
    words = (
        f"Packets a second that one core gets rid of, measured on {costs.measured[:10]} with "
        f"{costs.machine}, kernel {costs.kernel}.{filled}"
    )
    return tag(
        "section",
        tag("h2", "What this machine can drop"),
        tag("p", words, class_="hint"),
        tag("div", *rows, class_="pair ladder"),
    )
