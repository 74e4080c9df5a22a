"""A session or a snapshot in the format asked for: HTML, Markdown, text, JSON, CSV, or a script of rules."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from fwtop.dissect.client import Dissect
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.model.traffic.session import SessionInfo, SessionRecord, Trends
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.render.numbers import si
from fwtop.render.observation import SCHEMA, observation_json, rfc3339
from fwtop.render.trends import trends_json
from fwtop.report.attacks import AttackSpan
from fwtop.report.effects import RuleEffect, UserFigure
from fwtop.report.html import write_html
from fwtop.report.sections import document
from fwtop.report.summary import Digest, digest
from fwtop.report.sums import Row, resample
from fwtop.report.text import write_markdown, write_text
from fwtop.report.wording import comment, day_and_time
from fwtop.rules.costs import Costs
from fwtop.rules.kinds import command_line
from fwtop.store.directory import write_export

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def export_snapshot(snapshot: Snapshot, format: str, directories: Iterable[Path] | None = None) -> str:
    """Write a snapshot into a new file where reports go, and return its path.

    Raises FwtopError for an unknown format, or when the file can't be written.
    """
    if format == "json":
        text = json.dumps(observation_json(snapshot), indent=1, default=_number) + "\n"
    elif format == "csv":
        text = snapshot_csv(snapshot)
    else:
        raise FwtopError(
            f"a snapshot can be written as json or csv, not as {safe_text(format, limit=20)!r}", 2
        )
    return write_export(snapshot.at, format, text.encode(), directories)


def snapshot_csv(snapshot: Snapshot) -> str:
    """Write the snapshot's tables one below the other, each with its name in the first column.

    A cell that a spreadsheet would take for a formula begins with an apostrophe (CWE-1236).
    """
    return csv_text((), _tables(observation_json(snapshot, top=1_000)))


def csv_text(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Write rows as CSV in which no cell is a formula."""
    out = io.StringIO()
    writer = csv.writer(out)
    for row in (head, *rows) if head else rows:
        writer.writerow([_cell(value) for value in row])
    return out.getvalue()


def _tables(data: dict[str, Any]) -> Iterable[Sequence[object]]:
    yield ("table", "name", "value")
    for name in ("host", "started", "seconds"):
        yield ("observation", name, data[name])
    for part in ("totals", "sampling", "conntrack"):
        for name, value in data[part].items():
            yield (part, name, value)
    tables = {f"sources.{name}": rows for name, rows in data["sources"].items()}
    tables |= {name: data[name] for name in ("ports", "payloads", "ledger", "attacks", "mitigations")}
    for name, rows in tables.items():
        if not rows:
            continue
        columns = list(rows[0])
        yield ()
        yield ("table", *columns)
        for row in rows:
            yield (name, *(row[column] for column in columns))


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, list):
        value = "; ".join(str(item) for item in value)
    if isinstance(value, str):
        shown = safe_text(value, limit=1_000)
        return f"'{shown}" if shown.lstrip().startswith(_FORMULA_STARTS) else shown
    return value


def rules_script(digest: Digest) -> str:
    """Write the rules that matched anything as `fwtop` commands; those that did nothing are left out."""
    info = digest.info
    lines = [
        "#!/bin/sh",
        f"# What helped in session {comment(info.id)} on {comment(info.host)}.",
        f"# {comment(digest.headline)}; {day_and_time(info.started)}.",
        f"# Each rule expires by itself; 'fwtop undo --all{_netns(info)}' removes all. Run as root.",
        "set -eu",
    ]
    helped = [effect for effect in digest.effects if effect.dropped]
    for effect in helped:
        lines += ["", *_rule_lines(effect, _netns(info))]
    if not helped:
        lines += ["", "# No rule of that session matched anything."]
    return "\n".join(lines) + "\n"


def _netns(info: SessionInfo) -> str:
    """Return the option that makes a command act where the session was watched, not on the host."""
    return f" --netns {quote(comment(info.netns))}" if info.netns else ""


def _rule_lines(effect: RuleEffect, netns: str) -> list[str]:
    rule = effect.rule
    lines = [
        f"# Rule {comment(rule.id)}: {comment(rule.summary)}",
        f"# It stopped {si(effect.actual_pps)} packets a second, {si(effect.packets)} in total.",
    ]
    lines += [f"#   by hand: {comment(command)}" for command in effect.commands]
    line = command_line(rule, max_sources=None)
    lines.append(f"{line}{netns} --yes" if line else "# It has a condition that no command line can say.")
    return lines


_MAX_TICKS = 5_000
_TIMES = frozenset({"at", "started", "ended", "began", "peak_at", "worst_at", "applied", "confirmed"})


def render_json(digest: Digest) -> str:
    """Write one JSON document; the peak's snapshot in it is an observation as of `fwtop snapshot`."""
    return json.dumps(to_json(digest), indent=1, allow_nan=False, default=_number) + "\n"


def to_json(digest: Digest) -> dict[str, Any]:
    """Return the document."""
    tops = digest.tops
    return {
        "schema": SCHEMA,
        "session": _told(digest.info, "id host interfaces netns version started ended seconds state")
        | {"geoip": digest.info.geoip or None},
        **_told(digest, "headline summary state next_steps protection"),
        "users": [_user_figure(item) for item in digest.user_figures],
        "totals": _value("totals", digest.sums),
        "attacks": [_span(span) for span in digest.spans],
        "rules": [_effect(effect) for effect in digest.effects],
        "tops": _told(tops, "during_attack forged seconds snapshots")
        | {name: [_row(row) for row in rows] for name, rows in tops.tables.items()},
        "events": [_told(event, "at kind subject text") for event in digest.events],
        "timeline": _value("timeline", resample(digest.ticks, _MAX_TICKS)),
        "trends": trends_json(digest.trends) if digest.trends else None,
        "peak": observation_json(digest.peak) if digest.peak else None,
        "notes": list(digest.notes),
    }


def _told(source: object, names: str) -> dict[str, Any]:
    return {name: _value(name, getattr(source, name)) for name in names.split()}


def _value(name: str, value: object) -> object:
    """Return a value as JSON, times as text."""
    if isinstance(value, float):
        return rfc3339(value) if name in _TIMES else round(value, 6)
    if isinstance(value, Struct):
        return {key: _value(key, item) for key, item in asdict(value).items()}
    if isinstance(value, list | tuple):
        return [_value(name, item) for item in value]
    return value


def _span(span: AttackSpan) -> dict[str, Any]:
    when, how = "began ended seconds peak_pps peak_at", "share confidence spoofed uncertain evidence"
    return _told(span, f"kind title {when} {how} target holding packets") | {
        "stopped_share": span.stopped,
        "reached_share": span.reached,
        "tables": {
            name: [_told(row, "key detail") | {"hex": row.hex or None} | _told(row, "share") for row in rows]
            for name, rows in span.detail.tables.items()
        },
        "sample": _sample(span),
    }


def _sample(span: AttackSpan) -> dict[str, Any] | None:
    packet, decoded = span.detail.shown, span.detail.dissection
    if packet is None:
        return None
    return _told(packet, "at length") | {
        "link": "ethernet" if packet.is_ethernet else "ip",
        "hex": packet.data.hex(),
        "layers": [{"name": layer.name, "fields": dict(layer.fields)} for layer in decoded.layers],
        "problem": decoded.problem or None,
    }


def _user_figure(item: UserFigure) -> dict[str, Any]:
    rates = {"usual": item.normal, "under_attack": item.attacked, "worst": item.worst, "at_end": item.at_end}
    return _told(item, "name worst_at") | {f"{name}_per_s": rate for name, rate in rates.items()}


def _effect(effect: RuleEffect) -> dict[str, Any]:
    rule, status = effect.rule, effect.status
    return (
        _told(rule, "id kind summary created_by predicted_pps predicted_collateral_share predicted_guess")
        | _told(effect, "applied confirmed ended packets bytes actual_pps changes commands")
        | {
            "ending": effect.ending or None,
            "predicted_clients": rule.predicted_clients and rule.predicted_clients.to_dict(),
            "users_share_of_usual": dict(effect.users),
            "harm": effect.harm or None,
            "mode": rule.mode.value,
            "busiest": dict(status.busiest) if status is not None else {},
            "hits": status.hits.to_dict() if status is not None and status.hits is not None else None,
            "fwtop": command_line(rule, max_sources=None),
        }
    )


def _row(row: Row) -> dict[str, Any]:
    averages = {measure.name: measure.rounded(value) for measure, value in row.averages().items()}
    packets = {"hex": row.hex or None, "packets": round(row.packets), "dropped_share": 0.0}
    return _told(row, "key detail share peak_pps") | packets | averages


def _number(value: object) -> object:
    item = getattr(value, "item", None)  # a numpy scalar out of an aggregation
    if item is None:
        raise TypeError(f"{type(value).__name__} is no JSON")
    return item()


_WRITERS: dict[str, Callable[[Digest], str]] = {
    "html": lambda digest: write_html(document(digest)),
    "md": lambda digest: write_markdown(document(digest)),
    "txt": lambda digest: write_text(document(digest)),
    "json": render_json,
    "sh": rules_script,
}
FORMATS = tuple(_WRITERS)


def render(
    session: SessionRecord,
    format_name: str = "html",
    costs: Costs | None = None,
    trends: Trends | None = None,
    dissect: Dissect | None = None,
) -> str:
    """Write a session as html, md, txt, json, or as a shell script of the rules that helped (sh).

    With `costs`, as measured on this machine, html shows them as a ladder; with `trends`, there is a section
    on the days before; `dissect` decodes sample packets.
    Reads the snapshots through `session.snapshots`; raises FwtopError for an unknown format.
    """
    return written(digest(session, costs, trends, dissect), format_name)


def written(found: Digest, format_name: str) -> str:
    """Write what a session was condensed to; raises FwtopError for an unknown format."""
    if format_name not in _WRITERS:
        shown = safe_text(format_name, limit=20)
        raise FwtopError(f"a report can be {', '.join(FORMATS)}, not {shown!r}; nothing was written", 2)
    return _WRITERS[format_name](found)
