"""Where a recording also goes, besides its session: JSON lines, metrics, alarms, and its state to systemd."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress

from fwtop.alarms.config import AlarmConfig
from fwtop.alarms.message import Alarm
from fwtop.console.handoff import Options
from fwtop.console.publish.alarm_events import Alarms
from fwtop.console.publish.json_lines import JsonLines
from fwtop.console.publish.scrapes import ScrapeServer
from fwtop.console.running_totals import RunningTotals
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.model.wire import of_plain


class ServiceState:
    """Writes to a socket that root connected: the sandbox forbids that. Never waits for its reader."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._status = ""
        self._ready = False

    def take(self, snapshot: Snapshot, *, session: str) -> None:
        """Reset the watchdog, and tell what has changed since the last call."""
        lines = ["WATCHDOG=1"]
        if not self._ready:
            lines.append("READY=1")
            self._ready = True
        status = _status(snapshot, session)
        if status != self._status:
            lines.append(f"STATUS={status}")
            self._status = status
        self._send(lines)

    def close(self) -> None:
        """Tell that the recording ends."""
        self._send(["STOPPING=1"])

    def _send(self, lines: list[str]) -> None:
        with suppress(OSError):  # systemd is busy or was replaced: the next tick tries again
            os.write(self._descriptor, "\n".join(lines).encode())


def _status(snapshot: Snapshot, session: str) -> str:
    """Return what seldom changes, so that calm seconds cost systemd nothing but the watchdog."""
    kinds = sorted({attack.title for attack in snapshot.judgement.attacks if attack.ended is None})
    stored = f"session {session}" if session else "not stored"
    if snapshot.judgement.not_judged:
        return f"not judged; {stored}"
    return f"{', '.join(kinds) or 'no attack'}; {stored}"


_STDOUT = 1


class Outputs:
    """What the command line asked for; none of them delays the observation or ends it by failing."""

    def __init__(self, options: Options, stop: Callable[[], None]) -> None:
        """Open them; `stop` ends a recording that is piped to a program when that program ends."""
        self._stop = stop if options.jsonl_fd == _STDOUT else None
        self._lines: JsonLines | None = None
        self._scrapes: ScrapeServer | None = None
        self._alarms: Alarms | None = None
        self._service = None if options.service_fd is None else ServiceState(options.service_fd)
        if options.jsonl_fd is not None:
            self._lines = JsonLines(
                options.jsonl_fd,
                top=options.jsonl_top,
                every_seconds=options.jsonl_seconds,
                most_bytes=options.jsonl_bytes,
            )
        if options.metrics_fd is not None:
            self._scrapes = ScrapeServer(socket.socket(fileno=options.metrics_fd))
        self.totals = None if self._scrapes is None else RunningTotals()
        if options.alarms_fd is not None:
            self._alarms = Alarms(options.alarms_fd, of_plain(AlarmConfig, options.alarms))

    def take(self, snapshot: Snapshot, *, session: str) -> None:
        """Hand a snapshot to every output; returns at once. `session`: what is being written, if anything."""
        if self._service is not None:
            self._service.take(snapshot, session=session)
        if self._alarms is not None:
            self._alarms.take(snapshot, storing=bool(session))
        if self._lines is not None:
            self._lines.take(snapshot)
            if self._lines.ended.is_set() and self._stop is not None:
                self._stop()
        if self._scrapes is not None and self.totals is not None:
            from fwtop.console.publish.metrics import exposition  # few want it, and it takes 14 MB and 0.2 s

            self._scrapes.publish(exposition(snapshot, self.totals))

    def tell(self, alarm: Alarm) -> None:
        """Send an alarm that no snapshot tells."""
        if self._alarms is not None:
            self._alarms.send(alarm)

    def problems(self) -> list[str]:
        """Return a line per output that fails."""
        outputs = (self._lines, self._alarms)
        return [output.problem for output in outputs if output is not None and output.problem]

    def close(self) -> None:
        """Finish what was begun."""
        if self._service is not None:
            self._service.close()
        if self._lines is not None:
            self._lines.close()
