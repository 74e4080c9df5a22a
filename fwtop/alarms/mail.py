"""An alarm as an e-mail, handed to the machine's own sendmail(8)."""

from __future__ import annotations

import json
import re

from fwtop.alarms.message import Alarm
from fwtop.model.wire import plain

SENDMAIL = "/usr/sbin/sendmail"
_MAX_LINE = 500  # a whole subject: folded, it would begin with an empty line
_ADDRESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._%+-]{0,63}(@[A-Za-z0-9][A-Za-z0-9.-]{0,253})?")


def is_address(text: str) -> bool:
    """Return whether a recipient is a plain address or local name that no program takes for an option."""
    return _ADDRESS.fullmatch(text) is not None


def sendmail_argv(to: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command; -i: a line with only a full stop does not end the message."""
    return (SENDMAIL, "-i", "--", *to)


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
