"""The report as JSON: all that the other formats show, and the figures behind it."""

from __future__ import annotations

import json
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from fwtop.render.observation import SCHEMA, observation_json, rfc3339
from fwtop.render.trends import trends_json
from fwtop.report.facts.effects import RuleEffect
from fwtop.report.facts.periods import resample
from fwtop.report.facts.spans import AttackSpan
from fwtop.report.facts.tops import Row
from fwtop.report.facts.users import UserFigure
from fwtop.report.summary import Digest
from fwtop.rules.command_line import command_line

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
    """Return some attributes by their names."""
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
    return _told(span, f"kind title {when} {how} target packets") | {
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
    rule = effect.rule
    return (
        _told(rule, "id kind summary created_by predicted_pps predicted_collateral_share predicted_guess")
        | _told(effect, "applied confirmed ended packets bytes actual_pps changes commands")
        | {
            "ending": effect.ending or None,
            "users_share_of_usual": dict(effect.users),
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
