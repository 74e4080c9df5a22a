"""The process that delivers alarms: it reads the settings, then one alarm per line.

It runs outside of the console's sandbox, which forbids what it does, without privileges and reads no packets.
It ends when the console closes the pipe. Alarms are rare: unless some wait on disk already, nothing is
imported before the first one.
"""

from __future__ import annotations

import io
import signal
import sys

from fwtop.alarms import AT_ONCE


def main() -> int:
    """Deliver alarms until standard input ends; 1 if any could not be delivered."""
    # Stopping the service signals this process, too. Commands inherit SIG_IGN, but no handlers.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    source = io.BufferedReader(io.FileIO(0, closefd=False))
    settings = source.readline()
    if AT_ONCE not in sys.argv and not source.peek(1):
        return 0
    from fwtop.alarms.courier import serve

    return serve(settings, source)


if __name__ == "__main__":
    sys.exit(main())
