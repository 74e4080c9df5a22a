"""Structured entries for systemd's journal, in its native protocol.

Source: https://systemd.io/JOURNAL_NATIVE_PROTOCOL/ (a stable interface). It is one
datagram of fields; a library would be larger.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Mapping

from fwtop.alarms.message import EVENTS, Alarm

SOCKET = "/run/systemd/journal/socket"
MESSAGE_ID = "6d1f6f0a8f1e4b0c9a5c7f7e35a1d2b4"  # journalctl MESSAGE_ID=… finds all alarms
_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}")


def encode(fields: Mapping[str, str]) -> bytes:
    """Return a journal entry; a value that spans lines is sent with its length."""
    parts = []
    for name, value in fields.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a journal field")
        data = value.encode("utf-8", "replace")
        if b"\n" in data:
            parts.append(name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n")
        else:
            parts.append(name.encode() + b"=" + data + b"\n")
    return b"".join(parts)


def fields_of(alarm: Alarm) -> dict[str, str]:
    """Return the fields of an alarm; details become FWTOP_ and their name."""
    found = {
        "MESSAGE": alarm.message,
        "MESSAGE_ID": MESSAGE_ID,
        "PRIORITY": str(EVENTS[alarm.event]),
        "SYSLOG_IDENTIFIER": "fwtop",
        "FWTOP_EVENT": alarm.event,
        "FWTOP_SUBJECT": alarm.subject,
        "FWTOP_TIME": alarm.time,
    }
    for name, value in alarm.details.items():
        field = f"FWTOP_{name.upper()}"
        if _NAME.fullmatch(field):
            found.setdefault(field, f"{value:g}" if isinstance(value, float) else str(value))
    return found


def send(alarm: Alarm, path: str = SOCKET) -> None:
    """Write an alarm to the journal; raises OSError where there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(1.0)
        sock.sendto(encode(fields_of(alarm)), path)
