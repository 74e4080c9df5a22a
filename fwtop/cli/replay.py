"""`fwtop replay`: a session once more, on the screen or observation by observation."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator

from fwtop.cli.stored import StoredSession, add_session
from fwtop.console.privileges import drop_privileges
from fwtop.model.errors import FwtopError
from fwtop.model.observation import observation_json
from fwtop.model.snapshot import Snapshot
from fwtop.store.reader import replay

NAME = "replay"
HELP = "Play a stored session on the screen again, or print its observations, one JSON document a line."
EXAMPLE = "fwtop replay 2026-11-21T03 --json | jq .totals.pps"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    add_session(parser)
    parser.add_argument("--json", action="store_true", help="one observation a line, no screen")
    parser.add_argument(
        "--top", type=_entries, default=50, metavar="N", help="entries of each list (default 50)"
    )
    parser.add_argument(
        "--speed", type=_speed, default=1.0, metavar="X", help="on the screen: times real time"
    )


def run(args: argparse.Namespace) -> int:
    """Show or print them; root is given away before the first byte is parsed."""
    session = StoredSession(args.session, args.directory)
    on_screen = not args.json
    if on_screen:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise FwtopError("replaying on the screen needs a terminal; --json prints the observations", 2)
        import fwtop.console.stored_screen
    drop_privileges()
    with session.located() as path:
        snapshots = replay(path)
        if on_screen:
            return fwtop.console.stored_screen.show_session(snapshots, speed=args.speed)
        return _print(snapshots, args.top)


def _print(snapshots: Iterator[Snapshot], top: int) -> int:
    for snapshot in snapshots:
        sys.stdout.write(json.dumps(observation_json(snapshot, top=top), separators=(",", ":")) + "\n")
    return 0


def _entries(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError("a number from 1 on")
    return int(text)


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = math.nan
    if not 0 < speed <= 1_000:
        raise argparse.ArgumentTypeError("a factor above 0, at most 1000")
    return speed
