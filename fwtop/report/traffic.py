"""The sections on all traffic of the time, on users, on the machine, and on the days before."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from fwtop.model.rule import Kind
from fwtop.model.traffic.session import TREND_HOURS, Tick, TrendRow, Trends
from fwtop.render.numbers import duration_words, percent, plural, si
from fwtop.render.rows.field import Unit
from fwtop.render.rows.traffic import SOURCE_LISTS
from fwtop.render.trends import TITLES, TRAFFIC_WORDS, coverage
from fwtop.report.chart import rate_chart
from fwtop.report.document import Block, Cell, Drawing, Graph, Key, Meter, Section, Table, Text, tag
from fwtop.report.effects import FIGURES
from fwtop.report.summary import Digest
from fwtop.report.sums import Row, Tops
from fwtop.report.wording import day_and_time
from fwtop.rules.costs import Costs
from fwtop.rules.kinds import KINDS

_TABLES = {
    "address": "Source addresses",
    "prefix": "Source prefixes",
    "asn": "Networks (AS)",
    "country": "Countries",
    "port": "Ports",
    "ledger": "Where packets ended",
    "payload": "Payloads",
}
_MONO = ("address", "prefix", "payload")
_MOST_HEX = 96  # digits
_TREND_ROWS = 8
_DAY_CELLS = 30  # of 15 days


def traffic_section(digest: Digest) -> Section:
    """Return who sent what, and where it was dropped; forged sources are never ranked."""
    tops = digest.tops
    when = "while it was attacked" if tops.during_attack else "over the whole session"
    hint = (
        f"Summed {when} over {plural(tops.snapshots, 'snapshot')} ({duration_words(tops.seconds)}). "
        "Each snapshot lists its largest entries, so the sums of small ones are lower bounds."
    )
    shown = [
        _table(name, title, rows)
        for name, title in _TABLES.items()
        if (rows := tops.tables.get(name)) and not (tops.forged and name in SOURCE_LISTS)
    ]
    blocks: list[Block] = [Text(hint, "hint"), *_forged(tops), Section("", shown, "tables")]
    return Section("All traffic of that time", blocks if tops.tables else [])


def _forged(tops: Tops) -> list[Block]:
    if not tops.forged:
        return []
    words = (
        f"Sources were forged ({', '.join(tops.forged[:3])}): whose addresses they bear did not send these "
        "packets, so that no addresses, networks and countries are ranked here. Senders of other attacks "
        "stand with each attack."
    )
    return [Text(words, "hint", strong=True)]


def _table(name: str, title: str, rows: list[Row]) -> Table:
    largest = max(row.share for row in rows) or 1.0
    shown = [measure for measure in rows[0].averages() if measure.reported]
    cells: list[Sequence[Cell]] = [
        [
            Key(row.key, row.about(_MOST_HEX), row.share / largest, name in _MONO),
            si(row.packets),
            percent(row.share, None),
            *(
                percent(value, None) if measure.unit is Unit.SHARE else si(value)
                for measure, value in row.averages().items()
                if measure.reported
            ),
        ]
        for row in rows
        if row.packets > 0
    ]
    heads = (title, "packets", "share", *(measure.heading for measure in shown))
    return Table(heads, cells, "wide" if name == "payload" else "")


def users_section(digest: Digest) -> Section:
    """Return the curves of what users felt."""
    takes = dict(FIGURES)
    words = "Of this host's own TCP: handshakes that clients finished, and segments that they acknowledged."
    drawn: list[Block] = []
    for item in digest.user_figures:
        label = f"{item.name[:1].upper()}{item.name[1:]} a second"
        chart = rate_chart(digest.ticks, digest.spans, takes[item.name], label, usual=item.normal)
        if chart:
            usual = f"; dashed: the usual {si(item.normal)}" if item.normal else ""
            drawn.append(Drawing(chart, f"{label}{usual}"))
    hint = Drawing(tag("p", words, class_="hint"))  # of no use without the curves
    return Section("What users felt", [hint, *drawn] if drawn else [])


def machine_section(digest: Digest) -> Section:
    """Return how full the connection table was, and how busy the cores."""
    charts: tuple[tuple[str, str, Callable[[Tick], float | None]], ...] = (
        ("Connection table", "how full", lambda tick: tick.conntrack_fill),
        ("CPU time in softirq", "of all cores", lambda tick: tick.softirq_share),
    )
    drawn: list[Block] = [
        Drawing(chart, f"{title}, {what}")
        for title, what, take in charts
        if (chart := rate_chart(digest.ticks, digest.spans, take, title, is_share=True))
    ]
    if drawn and digest.sums.conntrack_max:
        most = si(digest.sums.conntrack_new_peak)
        drawn.insert(0, Text(f"Up to {most} new connections a second were tracked.", "hint"))
    return Section("How the machine fared", drawn)


def costs_section(costs: Costs | None, used: Collection[Kind]) -> Section:
    """Return a bar a kind, those that the session used filled; empty where nothing was measured here."""
    title = "What this machine can drop"
    rates = {
        kind: 1e9 / costs.cost_ns[kind.value]
        for kind, known in KINDS.items()
        if known.ladder and costs and kind.value in costs.cost_ns
    }
    if costs is None or not rates:
        return Section(title, [])
    fastest = max(rates.values())
    meters = [
        (KINDS[kind].ladder, Meter(pps / fastest, filled=kind in used), si(pps, "pps"))
        for kind, pps in rates.items()
    ]
    filled = " Filled: what this session used." if any(kind in used for kind in rates) else ""
    words = (
        f"Packets a second that one core gets rid of, measured on {costs.measured[:10]} with "
        f"{costs.machine}, kernel {costs.kernel}.{filled}"
    )
    return Section(title, [Text(words, "hint"), Table((), meters, "pair ladder")])


def trends_section(trends: Trends | None) -> Section:
    """Return averages of the last hour, day and 15 days; empty without a history."""
    title = "The days before"
    if trends is None:
        return Section(title, [])
    observed = coverage(trends.hour_seconds, trends.day_seconds, trends.days_seconds)
    hint = (
        f"Packets a second on average, up to {day_and_time(trends.at)}; of this, {observed} were observed. "
        "Each graph has a scale of its own. Only the largest entries of each minute are kept, so averages "
        "of small ones are lower bounds."
    )
    tables = [
        Table(
            (words, "last hour", "24 hours", "last day", "15 days", "dropped"),
            [_trend(kind, row) for row in rows],
            "wide",
        )
        for kind, words in TITLES.items()
        if (rows := trends.group(kind)[:_TREND_ROWS])
    ]
    note = [Text(trends.note, "hint", strong=True)] if trends.note else []
    return Section(title, [Text(hint, "hint"), *note, Section("", tables, "tables")])


def _trend(kind: str, row: TrendRow) -> tuple[str | Graph, ...]:
    name = TRAFFIC_WORDS.get(row.key, row.key) if kind == "traffic" else row.key
    return (
        f"{name} {row.label}".rstrip(),
        _rate(row.hour),
        Graph(row.hours, "24 hours", TREND_HOURS),
        _rate(row.day),
        Graph(row.days, "15 days", _DAY_CELLS),
        "" if row.dropped_share is None else percent(row.dropped_share, None),
    )


def _rate(value: float | None) -> str:
    return "–" if value is None else si(value)
