"""An alarm as a value, and as the line of JSON that commands get: docs/MONITORING.md."""

from __future__ import annotations

import json
import math
from typing import Any

from msgspec import Struct, field

from fwtop.model.text import safe_text
from fwtop.model.wire import plain, to_json

SCHEMA = 1
MAX_BYTES = 8192  # of a line
_MAX_FIELDS = 16
# Event → syslog priority: 2 critical, 4 warning, 5 notice
EVENTS = {
    "attack_began": 2,
    "attack_changed": 4,
    "attack_ended": 5,
    "rule_installed": 5,
    "rule_confirmed": 5,
    "rule_removed": 4,
    "rule_expired": 4,
    "rules_alarm": 4,
    "rules_alarm_over": 5,
    "automatic": 4,
    "watcher_degraded": 4,
    "watcher_recovered": 5,
    "test": 5,
}


class Alarm(Struct, frozen=True):
    """One event; `details` holds numbers and short texts by name."""

    event: str  # one of EVENTS
    time: str  # RFC 3339
    host: str
    subject: str  # an attack's kind, a rule's id, or what is degraded
    message: str  # one sentence
    details: dict[str, str | float] = field(default_factory=dict)

    def line(self) -> bytes:
        """Return the alarm as a line of JSON."""
        return to_json({"schema": SCHEMA, **plain(self)}) + b"\n"


def _is_number(value: object) -> bool:
    """Return whether it is a number that JSON can hold: not NaN or infinity, which Python's json writes."""
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def parse_line(line: bytes) -> Alarm | None:
    """Read a line that a console wrote, which may have been taken over: None if it is not an alarm."""
    try:
        found: dict[str, Any] = json.loads(line)
        details = {
            safe_text(name, limit=32): value if _is_number(value) else safe_text(value)
            for name, value in list(found["details"].items())[:_MAX_FIELDS]
        }
        texts = {name: safe_text(found[name], limit=400) for name in ("time", "host", "subject", "message")}
        return Alarm(event=found["event"], details=details, **texts) if found["event"] in EVENTS else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
