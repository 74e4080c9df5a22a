"""Tell systemd how a recording is (sd_notify(3)): that it runs, that it is not stuck, and what it sees."""

from __future__ import annotations

import os
from contextlib import suppress

from fwtop.model.traffic.snapshot import Snapshot


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
