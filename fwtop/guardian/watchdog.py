"""The watchdog: a shell that outlives the guardian, because sysctls have no clock in the kernel.

It sleeps until the next of them is to be given back, and wakes no machine before. A guardian that has not
said by then that it did so is taken for stopped or hanging, whatever else it still does: the shell has the
sysctl given back without it (overdue.py). If the guardian is gone, the shell starts another one in time.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess

from fwtop.guardian.options import HERE
from fwtop.guardian.overdue import NOTHING, uptime_of
from fwtop.kernel.programs import GUARDIAN_ENVIRONMENT, module_argv

_NAME = "fwtop-watchdog"
# Times are those of /proc/uptime, which a shell can read, and some seconds more: the rule is over by then.
# `read -t` fails with more than 128 when the time is over, with 1 once the guardian is gone.
_SCRIPT = rf"""
at={NOTHING}
left() {{ read -r now rest </proc/uptime; seconds=$((at + $1 - ${{now%.*}})); }}
look() {{ at=$("$@" --overdue={HERE}); [ -n "$at" ] || {{ at=0; sleep 10; }}; }}
while :; do
  if [ "$at" = {NOTHING} ]; then read -r at || exit 0; continue; fi
  left 3
  if read -r -t $((seconds > 1 ? seconds : 1)) line; then at=$line
  elif [ $? -gt 128 ]; then look "$@"
  else break
  fi
done
left 1
[ $seconds -gt 0 ] && sleep $seconds
until "$@"; do
  look "$@"
  [ "$at" = {NOTHING} ] && exit 0
  sleep 10
done
"""


class Watchdog:
    """The shell, as the guardian knows it."""

    def __init__(self, *arguments: str) -> None:
        self._argv = ["/bin/bash", "-c", _SCRIPT, _NAME, *module_argv("fwtop.guardian", *arguments)]
        self._pipe: int | None = None
        self._told = NOTHING

    def set_deadline(self, ends: float | None) -> None:
        """Set when the next rule that changed sysctls ends: CLOCK_MONOTONIC seconds, None: none.

        A shell that was killed gets a successor.
        """
        text = uptime_of(ends)
        if text == self._told and (ends is None or self._is_read()):
            return
        line = f"{text}\n".encode()
        with contextlib.suppress(OSError):  # no process to be had: the guardian's own clock is left
            alive = self._pipe is not None and _written(self._pipe, line)
            if not alive and ends is not None:
                _written(self._start(), line)
            self._told = text

    def _is_read(self) -> bool:
        """Return whether the shell still has its end of the pipe (poll(2): POLLERR without a reader)."""
        poll = select.poll()
        if self._pipe is not None:
            poll.register(self._pipe, 0)
        return self._pipe is not None and not poll.poll(0)

    def _start(self) -> int:
        """Start the shell, again if it was killed; returns the pipe that it reads."""
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
