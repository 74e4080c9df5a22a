"""An alarm as a value and as what is delivered, and /etc/fwtop/alarms.toml: where it goes, and when.

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
from typing import Annotated, Any
from urllib.parse import urlsplit

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from fwtop.model.files import ConfigText
from fwtop.model.paths import CONSOLE_USER
from fwtop.model.settings_file import must, read, some_of
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


FILE = "/etc/fwtop/alarms.toml"
_MAX_WORDS = 64
_EVENTS = tuple(name for name in EVENTS if name != "test")


def _are_words(value: tuple[str, ...]) -> bool:
    return len(value) <= _MAX_WORDS and not any("\0" in word for word in value)


def _is_command(value: tuple[str, ...]) -> bool:
    return _are_words(value) and bool(value) and value[0].startswith("/")


def _are_addresses(value: tuple[str, ...]) -> bool:
    return _are_words(value) and all(map(is_address, value))


def _is_url(value: str) -> bool:
    if not (value.isascii() and value.isprintable()) or " " in value:
        return False
    parts = urlsplit(value)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0


def _is_path(value: str) -> bool:
    return value.startswith("/") and "\0" not in value


class AlarmConfig(Struct, frozen=True):
    """The settings; docs/alarms.toml documents each."""

    journal: bool = True
    # an argv; nothing passes through a shell
    command: Annotated[
        tuple[str, ...], must("a list of words, the first a program's full path", _is_command)
    ] = ()
    command_seconds: Annotated[float, Meta(ge=0.1, le=300)] = 10.0
    webhook: Annotated[str, must("a URL that begins with https:// or http://", _is_url)] = ""
    # its content signs what is posted
    webhook_secret_file: Annotated[str, must("the full path of a file", _is_path)] = ""
    webhook_seconds: Annotated[float, Meta(ge=0.1, le=60)] = 10.0
    mail_to: Annotated[tuple[str, ...], must("a list of plain e-mail addresses", _are_addresses)] = ()
    # whom the command runs as
    user: Annotated[
        str, must("the name of a user other than root", lambda value: value not in ("", "root"))
    ] = CONSOLE_USER
    events: Annotated[tuple[str, ...], some_of(_EVENTS)] = _EVENTS
    began_seconds: Annotated[float, Meta(ge=0, le=3600)] = 3.0
    ended_seconds: Annotated[float, Meta(ge=0, le=86400)] = 30.0
    changed_factor: Annotated[float, Meta(ge=1.1, le=1000)] = 2.0
    changed_seconds: Annotated[float, Meta(ge=1, le=86400)] = 60.0

    def for_console(self) -> AlarmConfig:
        """Return what decides on alarms, without where they go: URLs often hold a password."""
        return replace(self, command=(), webhook="", webhook_secret_file="", mail_to=())


def read_alarms(file: ConfigText | None) -> tuple[AlarmConfig, tuple[str, ...]]:
    """Return the settings, and a line for each wrong one, which has its default."""
    found = read(AlarmConfig, file)
    return found.value, found.lines()
