"""The JSON schema of the policy file (docs/policy.schema.json), made from its parser's tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fwtop.cli.policy.document import (
    LIST_KEYS,
    MAX_LIST_NAME,
    MONITOR_KEYS,
    RULE_KEYS,
    SCHEMA,
    THRESHOLD_KEYS,
    Key,
)

_TYPES = {str: "string", int: "integer", bool: "boolean", float: "number"}


def schema() -> dict[str, Any]:
    """Return the schema (JSON Schema, draft 2020-12)."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "fwtop policy",
        "type": "object",
        "required": ["schema"],
        "additionalProperties": False,
        "properties": {
            "schema": {"const": SCHEMA},
            "list": {
                "type": "object",
                "propertyNames": {"pattern": f"^[A-Za-z0-9][A-Za-z0-9_.-]{{0,{MAX_LIST_NAME - 1}}}$"},
                "additionalProperties": _table(LIST_KEYS),
            },
            "thresholds": _table(THRESHOLD_KEYS),
            "monitor": _table(MONITOR_KEYS),
            **{name: {"type": "array", "items": _table(keys)} for name, keys in RULE_KEYS.items()},
        },
    }


def _table(keys: Mapping[str, Key]) -> dict[str, Any]:
    needed = [name for name, key in keys.items() if key.needed]
    return {
        "type": "object",
        "additionalProperties": False,
        **({"required": needed} if needed else {}),
        "properties": {name: _value(key) for name, key in keys.items()},
    }


def _value(key: Key) -> dict[str, Any]:
    one: dict[str, Any] = {"type": _TYPES[key.type]}
    if key.choices:
        one["enum"] = list(key.choices)
    bounds = {"minimum": key.low, "maximum": key.high}
    one |= {word: bound for word, bound in bounds.items() if bound is not None}
    if not key.many:
        return {"description": key.help, **one}
    several: dict[str, Any] = {"type": "array", "items": one, **({"minItems": 1} if key.needed else {})}
    return {"description": key.help, "anyOf": [one, several]}
