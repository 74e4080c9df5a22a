"""An alarm as a value and as what is delivered: a line of JSON, an entry of systemd's journal, an e-mail.

docs/MONITORING.md tells of the line, https://systemd.io/JOURNAL_NATIVE_PROTOCOL/ (a stable interface) of the
entry: one datagram of fields; a library would be larger.
"""

from __future__ import annotations

import json
import math
import re
import socket
import struct
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from fwtop.model.text import safe_text
from fwtop.model.wire import plain, to_json

SCHEMA = 1
MAX_BYTES = 8192  # of a line
_MAX_FIELDS = 16
# Event → syslog priority: 2 critical (of abuse 4), 4 warning, 5 notice
EVENTS = {
    "attack_began": 2, "attack_changed": 4, "attack_ended": 5,
    "rule_installed": 5, "rule_confirmed": 5, "rule_removed": 4, "rule_expired": 4, "rule_harms": 2,
    "rules_alarm": 4, "rules_alarm_over": 5, "automatic": 4,
    "watcher_degraded": 4, "watcher_recovered": 5, "test": 5,
}  # fmt: skip
JOURNAL = "/run/systemd/journal/socket"
MESSAGE_ID = "6d1f6f0a8f1e4b0c9a5c7f7e35a1d2b4"  # journalctl MESSAGE_ID=… finds all alarms
_FIELD_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
SENDMAIL = ("/usr/sbin/sendmail", "-i", "--")  # -i: a line with only a full stop does not end the message
_MAX_LINE = 500  # a whole subject: folded, it would begin with an empty line
_ADDRESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._%+-]{0,63}(@[A-Za-z0-9][A-Za-z0-9.-]{0,253})?")


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


def journal_entry(fields: Mapping[str, str]) -> bytes:
    """Return a journal entry; a value that spans lines is sent with its length."""
    parts = []
    for name, value in fields.items():
        if not _FIELD_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a journal field")
        data = value.encode("utf-8", "replace")
        if b"\n" in data:
            parts.append(name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n")
        else:
            parts.append(name.encode() + b"=" + data + b"\n")
    return b"".join(parts)


def journal_fields(alarm: Alarm) -> dict[str, str]:
    """Return the fields of an alarm; details become FWTOP_ and their name."""
    found = {
        "MESSAGE": alarm.message,
        "MESSAGE_ID": MESSAGE_ID,
        "PRIORITY": str(max(EVENTS[alarm.event], 4 if alarm.details.get("class") == "abuse" else 0)),
        "SYSLOG_IDENTIFIER": "fwtop",
        "FWTOP_EVENT": alarm.event,
        "FWTOP_SUBJECT": alarm.subject,
        "FWTOP_TIME": alarm.time,
    }
    for name, value in alarm.details.items():
        field = f"FWTOP_{name.upper()}"
        if _FIELD_NAME.fullmatch(field):
            found.setdefault(field, f"{value:g}" if isinstance(value, float) else str(value))
    return found


def send_to_journal(alarm: Alarm, path: str = JOURNAL) -> None:
    """Write an alarm to the journal; raises OSError where there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(1.0)
        sock.sendto(journal_entry(journal_fields(alarm)), path)


def is_address(text: str) -> bool:
    """Return whether a recipient is a plain address or local name that no program takes for an option."""
    return _ADDRESS.fullmatch(text) is not None


def mail_text(alarm: Alarm, to: tuple[str, ...]) -> bytes:
    """Return the message: the sentence, the details a line each, and the JSON as an attachment."""
    from email.message import EmailMessage  # 3 MB that few need
    from email.policy import default

    mail = EmailMessage(policy=default.clone(max_line_length=_MAX_LINE))
    mail["Subject"] = f"[fwtop] {alarm.host}: {alarm.message}"
    mail["To"] = ", ".join(to)
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: no holiday notice answers it
    lines = [alarm.message, "", f"host     {alarm.host}", f"time     {alarm.time}", f"event    {alarm.event}"]
    lines += [
        f"{name:<24} {value:g}" if isinstance(value, float) else f"{name:<24} {value}"
        for name, value in alarm.details.items()
    ]
    lines += ["", "sudo fwtop           the live screen", "sudo fwtop report    what was recorded"]
    mail.set_content("\n".join(lines) + "\n")
    mail.add_attachment(json.dumps(plain(alarm), indent=1), subtype="json", filename="alarm.json")
    return mail.as_bytes()
