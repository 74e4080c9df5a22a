"""Deliver alarms, read one per line, to the journal, a command, a webhook and mail."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from fwtop.alarms import journal
from fwtop.alarms.command import CommandRunner
from fwtop.alarms.config import AlarmConfig
from fwtop.alarms.mail import mail_text, sendmail_argv
from fwtop.alarms.message import MAX_BYTES, Alarm, parse_line
from fwtop.alarms.spool import Spool
from fwtop.alarms.supervisor import Settings
from fwtop.model.wire import of_json

if TYPE_CHECKING:
    from fwtop.alarms.webhook import WebhookSender

_END_SECONDS = 10.0  # less than what the unit gives them (TimeoutStopSec)

Send = Callable[[Alarm], None]


class Courier:
    """Delivers alarms, and says on standard error what could not be delivered."""

    def __init__(
        self, config: AlarmConfig, *, secret: str = "", spool: str = "", send: Send = journal.send
    ) -> None:
        self._config = config
        self._send = send
        self.failures = 0
        self._targets: list[CommandRunner | WebhookSender] = []
        if config.command:
            self._targets.append(CommandRunner(config.command, config.command_seconds, self._failed))
        if config.mail_to:
            argv, text = sendmail_argv(config.mail_to), partial(mail_text, to=config.mail_to)
            self._targets.append(CommandRunner(argv, config.command_seconds, self._failed, text))
        if config.webhook:
            from fwtop.alarms.webhook import Webhook, WebhookSender  # 3 MB that few need

            webhook = Webhook(config.webhook, secret, config.webhook_seconds)
            self._targets.append(WebhookSender(webhook, Spool(Path(spool)), self._failed))

    def deliver(self, alarm: Alarm) -> None:
        """Write an alarm to the journal, else to standard error, and hand it to the other targets."""
        if alarm.event not in (*self._config.events, "test"):
            return
        if self._config.journal:
            try:
                self._send(alarm)
            except OSError:
                _say(f"alarm: {alarm.message}")
        for target in self._targets:
            target.put(alarm)

    def close(self) -> None:
        """Finish what is queued, as far as that is possible in some seconds."""
        at = time.monotonic() + _END_SECONDS
        for target in self._targets:
            target.end(at)
        for target in self._targets:
            target.join()

    def _failed(self, line: str) -> None:
        self.failures += 1
        _say(line)


def alarms(source: BinaryIO) -> Iterator[Alarm]:
    """Yield the alarms of a stream; what is none, or too long, is skipped."""
    skipping = False
    while line := source.readline(MAX_BYTES):
        whole = line.endswith(b"\n")
        if whole and not skipping and (alarm := parse_line(line)) is not None:
            yield alarm
        skipping = not whole


def _say(line: str) -> None:
    print(f"fwtop: {line}", file=sys.stderr, flush=True)


def serve(settings: bytes, source: BinaryIO) -> int:
    """Deliver alarms until `source` ends; return 1 if any could not be delivered."""
    found = of_json(Settings, settings)
    courier = Courier(found.config, secret=found.secret, spool=found.spool)
    try:
        for alarm in alarms(source):
            courier.deliver(alarm)
    finally:
        courier.close()
    return int(courier.failures > 0)
