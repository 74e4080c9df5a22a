"""The alarms' process: alarms in, a line each; the journal and commands out.

It runs outside of the console's sandbox, which forbids both, without privileges and reads no packets. It
ends when the console closes the pipe.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from typing import BinaryIO

from fwtop.alarms import journal
from fwtop.alarms.command import CommandRunner
from fwtop.alarms.config import AlarmConfig
from fwtop.alarms.message import MAX_BYTES, Alarm, parse_line

Send = Callable[[Alarm], None]


class Courier:
    """Delivers alarms, and says on standard error what could not be delivered."""

    def __init__(self, config: AlarmConfig, *, send: Send = journal.send) -> None:
        self._config = config
        self._send = send
        self.failures = 0
        self._runner = None
        if config.command:
            self._runner = CommandRunner(config.command, config.command_seconds, self._failed)

    def deliver(self, alarm: Alarm) -> None:
        """Write an alarm to the journal, else to standard error, and hand it to the command."""
        if alarm.event not in (*self._config.events, "test"):
            return
        if self._config.journal:
            try:
                self._send(alarm)
            except OSError:
                _say(f"alarm: {alarm.message}")
        if self._runner is not None:
            self._runner.put(alarm)

    def close(self) -> None:
        """Finish what is queued."""
        if self._runner is not None:
            self._runner.close()

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


def main() -> int:
    """Deliver alarms until standard input ends; 1 if the command failed for any."""
    # Stopping the service signals this process, too. Commands inherit SIG_IGN, but no handlers.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    courier = Courier(AlarmConfig.from_dict(json.loads(sys.argv[1])))
    try:
        for alarm in alarms(sys.stdin.buffer):
            courier.deliver(alarm)
    finally:
        courier.close()
    return int(courier.failures > 0)


if __name__ == "__main__":
    sys.exit(main())
