"""The program of the fleet's servers, from the wheel that the lock pins; starting one for lab and tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fwtop.model.errors import FwtopError

PROGRAM = Path(sys.prefix) / "bin/nats-server"


def argv(directory: Path) -> list[str]:
    """Return the command that runs the server of a directory of `founding.found`; raises FwtopError."""
    if not PROGRAM.exists():
        raise FwtopError(f"{PROGRAM} is missing: run 'make setup' again", 3)
    return [str(PROGRAM), "-c", str(directory / "nats.conf")]


def start(directory: Path, log: Path, netns: str | None = None) -> subprocess.Popen[bytes]:
    """Start a server, perhaps in a named network namespace; it writes to `log`."""
    inside = ["ip", "netns", "exec", netns] if netns is not None else []
    with log.open("ab") as file:
        return subprocess.Popen(
            [*inside, *argv(directory)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
