"""Somebody who outlives a killed guardian where the kernel has no clock of its own: for sysctls.

A shell that reads a pipe, a megabyte of memory: the guardian writes the time at which the next such rule
ends; when the pipe breaks the shell sleeps until then and starts another guardian, which finds the rule in
the journal and gives the old values back.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path

from fwtop.mitigate.run import GUARDIAN_ENVIRONMENT
from fwtop.model.modules import module_argv

_NAME = "fwtop-watchdog"
_NOTHING = "none"
# Times are those of /proc/uptime, which a shell can read; a second more, so that the rule is over by then.
_SCRIPT = """at=none; while read -r line; do at=$line; done; [ "$at" = none ] && exit 0
read -r now rest </proc/uptime; now=${now%.*}; [ "$at" -gt "$now" ] && sleep $((at - now + 1)); exec "$@" """


class Watchdog:
    """The shell, started with the first rule that needs it. `arguments` are the next guardian's."""

    def __init__(self, *arguments: str) -> None:
        self._argv = ["/bin/sh", "-c", _SCRIPT, _NAME, *module_argv("fwtop.mitigate.guardian", *arguments)]
        self._pipe: int | None = None
        self._told = _NOTHING

    def tell(self, ends: float | None) -> None:
        """Say when the next rule without a clock in the kernel ends: CLOCK_MONOTONIC seconds, None: none."""
        text = _NOTHING
        if ends is not None:
            uptime = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
            text = str(int(uptime + ends - time.monotonic()))
        if text == self._told:
            return
        line = f"{text}\n".encode()
        with contextlib.suppress(OSError):  # no process to be had: the guardian's own clock is left
            alive = self._pipe is not None and _written(self._pipe, line)
            if not alive and ends is not None:
                _written(self._start(), line)
            self._told = text

    def _start(self) -> int:
        """Start one, the first or in place of one that was killed; returns where it reads."""
        if self._pipe is not None:
            os.close(self._pipe)
        reader, self._pipe = os.pipe2(os.O_CLOEXEC)
        with os.fdopen(reader) as end:
            # Not waited for: it is there to outlive us.
            subprocess.Popen(
                self._argv,
                stdin=end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=GUARDIAN_ENVIRONMENT,
                cwd="/",
                start_new_session=True,
            )
        return self._pipe


def _written(pipe: int, line: bytes) -> bool:
    try:
        os.write(pipe, line)
    except BrokenPipeError:
        return False
    return True
