"""Observations, and rules and sets of the whole machine, as JSON and text: docs/JSON.md, schema 1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from fwtop.model.rule import RuleStatus
from fwtop.model.ruleset import ListedRule, ListedSet
from fwtop.model.traffic.counters import ConntrackSample
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.render.numbers import number
from fwtop.render.rows import ROW_TYPES
from fwtop.render.rows.field import Field, Unit
from fwtop.render.rows.traffic import SOURCE_LISTS
from fwtop.render.verdict import verdict_of

SCHEMA = 1


def observation_json(snapshot: Snapshot, *, top: int = 50) -> dict[str, Any]:
    """Return an observation for JSON, with lists cut to `top` entries."""
    tables, judgement, around = snapshot.tables, snapshot.judgement, snapshot.surroundings
    conntrack = snapshot.conntrack or ConntrackSample(0, 0)
    return {
        "schema": SCHEMA,
        "host": snapshot.host,
        "source": _values(snapshot.origin),
        "started": rfc3339(snapshot.started),
        "seconds": round(snapshot.seconds, 6),
        "totals": _values(tables.totals),
        "sampling": _values(tables.sampling, watched=4),
        "ledger": _rows(tables.ledger[:top]),
        "sources": {name: _rows(getattr(tables.sources, name)[:top]) for name in SOURCE_LISTS},
        "destinations": _rows(tables.destinations[:top]),
        "ports": _rows(tables.ports[:top]),
        "payloads": _rows((judgement.payloads or tables.payloads)[:top]),
        "signatures": _rows(judgement.signatures[:top]),
        "protocols": {
            name: _values(share, share=6, share_low=6, share_high=6)
            for name, share in tables.protocols.items()
        },
        "conntrack": {
            "count": conntrack.count,
            "max": conntrack.max,
            "fill": round(conntrack.fill, 6),
            **_values(conntrack, seconds_to_full=None),
        },
        "tcp": None if snapshot.tcp is None else _values(snapshot.tcp),
        "listeners": [_values(item) for item in around.listeners[:top]],
        "asks": [_values(item) for item in around.asks[:top]],
        "rings": [_values(ring) for ring in around.rings],
        "cores": [_values(core) for core in around.cores],
        "queues": [_values(queue) for queue in around.queues],
        "packet_sockets": [_values(item) for item in around.packet_sockets],
        "firewall_chains": [_values(chain) for chain in around.chains[:top]],
        "not_judged": judgement.not_judged,
        "verdict": _verdict(snapshot),
        "attacks": _rows(judgement.attacks[:top]),
        "proposals": _rows(judgement.proposals[:top]),
        "mitigations": _rows(snapshot.mitigations[:top]),
        "baseline": {
            "summary": judgement.baseline,
            "packets": judgement.baseline_packets,
            "normal_pps": judgement.normal_pps and [round(pps, 3) for pps in judgement.normal_pps],
            "services": _rows(judgement.services[:top]),
        },
        "notes": list(snapshot.notes),
    }


def _verdict(snapshot: Snapshot) -> dict[str, Any]:
    verdict = verdict_of(snapshot, snapshot.at)
    shares = {f"{name}_share": getattr(verdict, name) for name in ("mine", "other", "kernel")}
    return {
        "state": verdict.badge.name.lower(),
        "attack_pps": round(verdict.attack_pps, 3),
        **{name: round(share, 4) for name, share in shares.items()},
        "reaching_share": round(max(1.0 - sum(shares.values()), 0.0), 4) if verdict.attack_pps else 0.0,
        "cores": None if verdict.cores is None else round(verdict.cores, 4),
        "advice": verdict.advice,
        "harm": None if verdict.loss is None else _values(verdict.loss),
    }


def rfc3339(unix_seconds: float) -> str:
    """Format a time as RFC 3339 in UTC with milliseconds."""
    moment = datetime.fromtimestamp(unix_seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def mitigation_json(status: RuleStatus) -> dict[str, Any]:
    """Return one entry of `mitigations`."""
    return _rows([status])[0]


def _rows(items: Iterable[Struct]) -> list[dict[str, Any]]:
    return [
        {field.name: _plain(field, item) for field in ROW_TYPES[type(item)].fields if field.json}
        for item in items
    ]


def _plain(field: Field, item: Struct) -> Any:  # noqa: ANN401 - what JSON can hold
    value = field.of(item)
    if field.unit is Unit.MOMENT and value is not None:
        return rfc3339(value)
    return [*value] if isinstance(value, tuple) else field.rounded(value)


def _values(item: Struct, **digits: int | None) -> dict[str, Any]:
    """Return all values of an item, those that aren't whole with three digits or as many as are given."""
    values: dict[str, Any] = {}
    for name, value in asdict(item).items():
        after = digits.get(name, 3)
        cut = isinstance(value, float) and after is not None
        values[name] = round(value, after) if cut else [*value] if isinstance(value, tuple) else value
    return values


_BLOCKS = "▁▂▃▄▅▆▇█"
SPARK = 12  # characters of a history


def spark(values: Sequence[float], width: int = SPARK) -> str:
    """Draw the last rates, each as high as its share of the greatest; "" where there is none."""
    shown = values[-width:]
    top = max(shown, default=0.0)
    if not top:
        return "▁" * len(shown)
    return "".join(_BLOCKS[round((len(_BLOCKS) - 1) * max(value, 0.0) / top)] for value in shown)


def quantity(value: float | None) -> str:
    """Format a count or rate; "-" where nothing is counted."""
    return "-" if value is None else number(value)


def rule_json(rule: ListedRule) -> dict[str, Any]:
    """Return a rule's own fields."""
    values = asdict(rule).items()
    return {"rule" if name == "text" else name: value for name, value in values}


def set_json(item: ListedSet) -> dict[str, Any]:
    """Return a set's fields."""
    fill = None if item.fill is None else round(item.fill, 4)
    return {**asdict(item), "fill": fill, "nearly_full": item.nearly_full}


def where(rule: ListedRule) -> str:
    """Say what made a rule and where it is."""
    family = f" {rule.family}" if rule.family else ""
    return f"{rule.source}{family} {rule.place}"


def set_line(item: ListedSet) -> str:
    """Write a set with how many entries it has."""
    entries = "?" if item.entries is None else f"{item.entries:,}"
    size = f" of {item.size:,}" if item.size else ""
    full = f", {100 * item.fill:.0f} % full" if item.fill is not None and item.nearly_full else ""
    family = f" {item.family}" if item.family else ""
    return f"{item.source}{family} {item.name} ({item.type}): {entries}{size} entries{full}"
