"""The report as JSON: all that the other formats show, and the figures behind it."""

from __future__ import annotations

import json
from typing import Any

from fwtop.model.wire import plain
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


def render_json(digest: Digest) -> str:
    """Write one JSON document; the peak's snapshot in it is an observation as of `fwtop snapshot`."""
    return json.dumps(to_json(digest), indent=1, allow_nan=False, default=_number) + "\n"


def to_json(digest: Digest) -> dict[str, Any]:
    """Return the document."""
    info = digest.info
    return {
        "schema": SCHEMA,
        "session": {
            "id": info.id,
            "host": info.host,
            "interfaces": list(info.interfaces),
            "netns": info.netns,
            "version": info.version,
            "started": rfc3339(info.started),
            "ended": rfc3339(info.ended),
            "seconds": round(info.seconds, 3),
            "state": info.state,
            "geoip": info.geoip or None,
        },
        "headline": digest.headline,
        "summary": list(digest.summary),
        "state": digest.state,
        "next_steps": list(digest.next_steps),
        "protection": _rounded(plain(digest.protection)),
        "users": [_user_figure(item) for item in digest.user_figures],
        "totals": _rounded(plain(digest.sums)) | {"peak_at": rfc3339(digest.sums.peak_at)},
        "attacks": [_span(span) for span in digest.spans],
        "rules": [_effect(effect) for effect in digest.effects],
        "tops": {
            "during_attack": digest.tops.during_attack,
            "forged": list(digest.tops.forged),
            "seconds": round(digest.tops.seconds, 3),
            "snapshots": digest.tops.snapshots,
            **{name: [_row(row) for row in rows] for name, rows in digest.tops.tables.items()},
        },
        "events": [
            {"at": rfc3339(event.at), "kind": event.kind.value, "subject": event.subject, "text": event.text}
            for event in digest.events
        ],
        "timeline": [
            _rounded(plain(tick)) | {"at": rfc3339(tick.at)} for tick in resample(digest.ticks, _MAX_TICKS)
        ],
        "trends": trends_json(digest.trends) if digest.trends else None,
        "peak": observation_json(digest.peak) if digest.peak else None,
        "notes": list(digest.notes),
    }


def _span(span: AttackSpan) -> dict[str, Any]:
    return {
        "kind": span.kind,
        "title": span.title,
        "began": rfc3339(span.began),
        "ended": _time(span.ended),
        "seconds": round(span.seconds, 3),
        "peak_pps": round(span.peak_pps, 3),
        "peak_at": rfc3339(span.peak_at),
        "share": round(span.share, 6),
        "confidence": round(span.confidence, 3),
        "spoofed": span.spoofed,
        "uncertain": span.uncertain,
        "evidence": list(span.evidence),
        "target": span.target,
        "packets": round(span.packets, 3),
        "stopped_share": span.stopped,
        "reached_share": span.reached,
        "tables": {
            name: [
                {"key": row.key, "detail": row.detail, "hex": row.hex or None, "share": round(row.share, 6)}
                for row in rows
            ]
            for name, rows in span.detail.tables.items()
        },
        "sample": _sample(span),
    }


def _sample(span: AttackSpan) -> dict[str, Any] | None:
    packet, decoded = span.detail.shown, span.detail.dissection
    if packet is None:
        return None
    return {
        "at": rfc3339(packet.at),
        "length": packet.length,
        "link": "ethernet" if packet.is_ethernet else "ip",
        "hex": packet.data.hex(),
        "layers": [{"name": layer.name, "fields": dict(layer.fields)} for layer in decoded.layers],
        "problem": decoded.problem or None,
    }


def _user_figure(item: UserFigure) -> dict[str, Any]:
    return {
        "name": item.name,
        "usual_per_s": item.normal,
        "under_attack_per_s": item.attacked,
        "worst_per_s": item.worst,
        "worst_at": _time(item.worst_at),
        "at_end_per_s": item.at_end,
    }


def _effect(effect: RuleEffect) -> dict[str, Any]:
    rule = effect.rule
    return {
        "id": rule.id,
        "kind": rule.kind.value,
        "summary": rule.summary,
        "created_by": rule.created_by,
        "applied": _time(effect.applied),
        "confirmed": _time(effect.confirmed),
        "ended": _time(effect.ended),
        "ending": effect.ending or None,
        "packets": effect.packets,
        "bytes": effect.bytes,
        "predicted_pps": rule.predicted_pps,
        "actual_pps": round(effect.actual_pps, 3),
        "predicted_collateral_share": rule.predicted_collateral_share,
        "predicted_guess": rule.predicted_guess,
        "users_share_of_usual": dict(effect.users),
        "changes": [_rounded(plain(change)) for change in effect.changes],
        "fwtop": command_line(rule, max_sources=None),
        "commands": list(effect.commands),
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "key": row.key,
        "detail": row.detail,
        "hex": row.hex or None,
        "packets": round(row.packets),
        "share": round(row.share, 6),
        "peak_pps": round(row.peak_pps, 3),
        "dropped_share": 0.0,
        **{measure.name: measure.rounded(value) for measure, value in row.averages().items()},
    }


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {key: round(value, 6) if isinstance(value, float) else value for key, value in values.items()}


def _time(at: float | None) -> str | None:
    return rfc3339(at) if at is not None else None


def _number(value: object) -> object:
    item = getattr(value, "item", None)  # a numpy scalar out of an aggregation
    if item is None:
        raise TypeError(f"{type(value).__name__} is no JSON")
    return item()
