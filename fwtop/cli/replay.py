"""fwtop replay: play a session on the screen, or print its observations."""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fwtop.cli.files import screen_files
from fwtop.cli.options import flag, option, positive
from fwtop.cli.stored import StoredSession, add_session, make_exports_directory
from fwtop.model.errors import FwtopError
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.render.observation import observation_json
from fwtop.sandbox.confine import Profile, close_inherited, confine, drop_privileges
from fwtop.store.reader import replay

HELP = "Play a stored session on the screen, or print its observations, one JSON document per line."
EXAMPLE = "fwtop replay 2026-11-21T03 --json | jq .totals.pps"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_session(parser)
    flag(parser, "--json", "print one observation per line instead")
    option(parser, "--top", "N", "entries of each list", positive, default=50)
    option(parser, "--speed", "X", "playback speed on the screen (default 1)", _speed, default=1.0)


def run(args: argparse.Namespace) -> int:
    """Play or print the session, parsed unprivileged and sandboxed."""
    session = StoredSession(args.session, args.directory)
    on_screen = not args.json
    if on_screen:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise FwtopError("replaying on the screen needs a terminal; --json prints the observations", 2)
        import fwtop.console.playback.screens
    files = screen_files() if on_screen else ()
    exports = make_exports_directory() if on_screen else ()
    close_inherited()
    drop_privileges()
    with _scratch() as scratch, session.located() as path:
        read, write = (path.parent.absolute(),), (scratch, *exports)
        confine(Profile.READER, read=read, write=write, remove=(scratch.parent,))
        if on_screen:
            return fwtop.console.playback.screens.show_session(path, speed=args.speed, files=files)
        return _print(replay(path), args.top)


@contextmanager
def _scratch() -> Iterator[Path]:
    """Make a directory for all temporary files, copies of sessions among them, and remove it at the end."""
    with tempfile.TemporaryDirectory(prefix="fwtop-") as name:
        before, tempfile.tempdir = tempfile.tempdir, name
        try:
            yield Path(name)
        finally:
            tempfile.tempdir = before


def _print(snapshots: Iterator[Snapshot], top: int) -> int:
    for snapshot in snapshots:
        sys.stdout.write(json.dumps(observation_json(snapshot, top=top), separators=(",", ":")) + "\n")
    return 0


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = math.nan
    if not 0 < speed <= 1_000:
        raise argparse.ArgumentTypeError("a factor above 0, at most 1000")
    return speed
