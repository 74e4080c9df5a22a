"""Trends as JSON, and as text: averages beside small graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fwtop.model.traffic.session import PARTED, PLACES, TREND_DAYS, TREND_HOURS, TrendRow, Trends
from fwtop.render.numbers import duration, number
from fwtop.render.observation import SCHEMA, rfc3339

_PARTS = {
    "country": "Sources by country",
    "network": "Sources by network",
    "city": "Sources by city",
    "port": "Target ports",
}
TITLES = {
    "traffic": "Traffic",
    **_PARTS,
    "service": "Service addresses",
    "dark": "Dark addresses",
    **{f"{place} {kind}": f"{words}, {place}" for place in PLACES for kind, words in _PARTS.items()},
}
TRAFFIC_WORDS = {
    "arrived": "arrived",
    "mine": "blocked by fwtop's rules",
    "other": "blocked by other firewalls",
    "kernel": "dropped by the kernel",
    "accepted": "accepted",
    "service": "to service addresses",
    "dark": "to dark addresses",
}
_NAMES = {
    "traffic": "traffic", "country": "countries", "network": "networks", "city": "cities", "port": "ports",
    "service": "service_addresses", "dark": "dark_addresses",
}  # fmt: skip
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_ROWS = 10


def trends_json(trends: Trends) -> dict[str, Any]:
    """Return the document of `fwtop trends --json`."""
    return {
        "schema": SCHEMA,
        "at": rfc3339(trends.at),
        "interfaces": list(trends.interfaces),
        "netns": trends.netns,
        "note": trends.note,
        "observed_seconds": {
            "last_hour": round(trends.hour_seconds, 3),
            "last_day": round(trends.day_seconds, 3),
            "last_15_days": round(trends.days_seconds, 3),
        },
        **{name: [_row(row) for row in trends.group(kind)] for kind, name in _NAMES.items()},
        **{
            place: {_NAMES[kind]: [_row(row) for row in trends.group(f"{place} {kind}")] for kind in PARTED}
            for place in PLACES
        },
    }


def _row(row: TrendRow) -> dict[str, Any]:
    return {
        "key": row.key,
        "label": row.label or None,
        "last_hour_pps": _rounded(row.hour),
        "last_hour_packets": row.packets,
        "trend_24h_pps": [_rounded(value) for value in row.hours],
        "last_day_pps": _rounded(row.day),
        "trend_15d_pps": [_rounded(value) for value in row.days],
        "dropped_share": None if row.dropped_share is None else round(row.dropped_share, 6),
        "answers": row.answers,
    }


def trends_text(document: dict[str, Any]) -> str:
    """Write the document for a terminal of 80 columns; its texts must be sanitised."""
    where = " ".join(document["interfaces"]) + (f" in {document['netns']}" if document["netns"] else "")
    observed = document["observed_seconds"]
    when = f"{document['at'][:16].replace('T', ' ')} UTC"
    lines = [
        f"{where or 'all interfaces'}, {when}; packets a second, each graph with a scale of its own",
        "observed: " + coverage(*(observed[name] for name in ("last_hour", "last_day", "last_15_days"))),
    ]
    counts = {row["key"]: row["last_hour_packets"] for row in document["traffic"]}
    if counts.get("arrived") is not None:
        parts = [
            f"{counts[place]:,} {TRAFFIC_WORDS[place]}" for place in PLACES if counts.get(place) is not None
        ]
        lines.append(", ".join([f"last hour: {counts['arrived']:,} packets", *parts]))
    if document["note"]:
        lines.append(document["note"])
    lists = {kind: document[name] for kind, name in _NAMES.items()}
    lists |= {f"{place} {kind}": document[place][_NAMES[kind]] for place in PLACES for kind in PARTED}
    for kind, found in lists.items():
        if rows := found[: len(TRAFFIC_WORDS) if kind == "traffic" else _ROWS]:
            lines += ["", f"{TITLES[kind]:<27.27}  last hour  {'24 hours':<24}   last day  15 days"]
            lines += [_line(kind, row) for row in rows]
    return "\n".join(lines) + "\n"


def coverage(hour: float, day: float, days: float) -> str:
    """Say how much of each period was observed."""
    parts = ((hour, "the last hour"), (day, "the last 24 hours"), (days, "15 days"))
    return ", ".join(f"{duration(round(part))} of {words}" for part, words in parts)


def _line(kind: str, row: dict[str, Any]) -> str:
    name = TRAFFIC_WORDS.get(row["key"], row["key"]) if kind == "traffic" else row["key"]
    if row["label"]:
        name = f"{name} {row['label']}"
    last, day = (
        "-" if row[field] is None else number(row[field]) for field in ("last_hour_pps", "last_day_pps")
    )
    hours, days = spark(row["trend_24h_pps"], TREND_HOURS), spark(row["trend_15d_pps"], TREND_DAYS)
    return f"{name:<27.27}  {last:>9}  {hours}  {day:>9}  {days}"


def spark(values: Sequence[float | None], width: int) -> str:
    """Draw values in `width` cells, averaging as many a cell as needed; `·` where nothing is known."""
    cells = averaged(values, width)
    top = max((value for value in cells if value is not None), default=0.0)
    levels = (
        None if value is None else max(round(7 * value / top), 1) if value > 0 else 0 for value in cells
    )
    return "".join("·" if level is None else _EIGHTHS[level] for level in levels)


def averaged(values: Sequence[float | None], width: int) -> list[float | None]:
    """Divide the values into at most `width` equal parts, and average the known values of each."""
    count = min(width, len(values))
    cells: list[float | None] = []
    for place in range(count):
        part = values[place * len(values) // count : (place + 1) * len(values) // count]
        known = [value for value in part if value is not None]
        cells.append(sum(known) / len(known) if known else None)
    return cells


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
