"""What the lab's processes have in common: they answer in lines of JSON, and end when their input does."""

from __future__ import annotations

import json
import signal
import sys
from typing import Any


def leave_signals_to_the_lab() -> None:
    """Ignore what a terminal sends to all processes: the lab takes them down in order."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def answer(value: dict[str, Any]) -> None:
    """Write one line, at once."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()
