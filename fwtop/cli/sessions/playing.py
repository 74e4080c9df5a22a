"""Verbs that play what was recorded, a capture or a stored session: on the screen, as text or as JSON."""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fwtop.capture.reader import STDIN, CaptureSource, open_source
from fwtop.cli.files import make_exports_directory, screen_files
from fwtop.cli.options import Verb, add_observation, flag, option, positive
from fwtop.dissect.supervisor import start_dissector
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.render.observation import observation_json
from fwtop.sandbox.confine import Profile, close_inherited, confine, drop_privileges


def _read_arguments(parser: argparse.ArgumentParser) -> None:
    what = "a pcap or pcapng file, also gzip, or a named pipe; -: standard input"
    parser.add_argument("capture", type=Path, metavar="CAPTURE", help=what)
    flag(parser, "--text", "print plain text even in a terminal")
    explain = "print for each group of packets the three likeliest explanations and their evidence"
    flag(parser, "--explain", explain)
    add_observation(parser)


@contextmanager
def _watched(source: CaptureSource) -> Iterator[Progress]:
    """Show how far a capture is read; Ctrl-C ends a stream, which has perhaps no other end."""
    progress = Progress(source)
    source.while_waiting = progress.wait

    def end(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the next one ends the program
        source.end()

    if source.is_stream:
        signal.signal(signal.SIGINT, end)
    try:
        with source:
            yield progress
    finally:
        progress.end()
        if source.is_stream:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _read(args: argparse.Namespace) -> int:
    """Open the file as the caller, then judge it unprivileged and sandboxed, and show the result."""
    source = open_source(args.capture)  # closed below, once root is given away
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads started earlier would escape the sandbox
    from fwtop.analysis.engine.compete import print_explanations
    from fwtop.console.headless import show
    from fwtop.console.playback.capture import observe_capture
    from fwtop.enrich.geoip import open_lookup

    if args.json and args.explain:
        raise FwtopError("--explain prints text; leave out --json, or --explain; nothing was read")
    on_screen = (
        not args.json and not args.explain and not args.text and sys.stdin.isatty() and sys.stdout.isatty()
    )
    if on_screen:
        import fwtop.console.playback.screens
    lookup = open_lookup(args.geoip)
    dissector = start_dissector() if on_screen else None
    files = screen_files() if on_screen else ()
    exports = make_exports_directory() if on_screen else ()
    close_inherited()
    drop_privileges()
    confine(Profile.READER, read=(args.geoip,), write=exports)
    with _watched(source) as progress:
        name = source.name if str(args.capture) == STDIN else args.capture.name
        result = observe_capture(
            source, name, top=args.top, lookup=lookup, explains=args.explain, progress=progress.read
        )
    if on_screen:
        return fwtop.console.playback.screens.show_capture(result, lookup, dissector, files=files)
    if args.explain:
        print_explanations(result.whole.advisor.explained)
        return 0
    return show(result.snapshot, as_json=args.json, top=args.top, fail_on=args.fail_on)


_SILENT_SECONDS = 0.5  # what is over sooner needs no line
_EVERY_SECONDS = 0.2
_WIDTH = 24
_CLEAR = "\r\x1b[K"


class Progress:
    """The line of one source. Not on a terminal, it says once that data is waited for."""

    def __init__(self, source: CaptureSource) -> None:
        self._source = source
        self._packets = 0
        self._due = time.monotonic() + _SILENT_SECONDS
        self._shown = False
        self._is_terminal = sys.stderr.isatty()

    def read(self, packets: int) -> None:
        """Tell how many packets were read by now."""
        self._packets = packets
        if self._is_terminal:
            self._draw()

    def wait(self) -> None:
        """Tell that a stream has no data now."""
        if self._is_terminal or not (self._packets or self._shown):
            self._draw()

    def end(self) -> None:
        """Take the line away."""
        if self._shown and self._is_terminal:
            _put(_CLEAR)

    def _draw(self) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._due, self._shown = now + _EVERY_SECONDS, True
        _put(f"{_CLEAR}{self._text()}" if self._is_terminal else f"fwtop: {self._text()}\n")

    def _text(self) -> str:
        source, name = self._source, safe_text(os.path.basename(self._source.name), limit=30)
        if source.is_stream and not source.position:
            return f"waiting for data from {name}; Ctrl-C ends"
        if source.is_stream:
            read = f"{source.position / 1e6:,.1f} MB"
            return f"reading {name}: {self._packets:,} packets, {read}; Ctrl-C ends, and shows them"
        share = min(1.0, source.position / source.size) if source.size else 1.0
        bar = ("█" * round(share * _WIDTH)).ljust(_WIDTH, "░")
        return f"reading {name} {bar} {share:4.0%}  {self._packets:,} packets"


def _put(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _replay_arguments(parser: argparse.ArgumentParser) -> None:
    from fwtop.cli.sessions.stored import add_session

    add_session(parser)
    flag(parser, "--json", "print one observation per line instead")
    option(parser, "--top", "N", "entries of each list", positive, default=50)
    option(parser, "--speed", "X", "playback speed on the screen (default 1)", _speed, default=1.0)


def _replay(args: argparse.Namespace) -> int:
    """Play or print the session, parsed unprivileged and sandboxed."""
    from fwtop.cli.sessions.stored import StoredSession  # brings the store
    from fwtop.store.reader import replay

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


VERBS = {
    "read": Verb(
        "Analyse a capture (pcap or pcapng, also gzipped): on the screen in a terminal, else as text or "
        "JSON.",
        "fwtop read attack.pcap.gz --json",
        _read_arguments,
        _read,
    ),
    "replay": Verb(
        "Play a stored session on the screen, or print its observations, one JSON document per line.",
        "fwtop replay 2026-11-21T03 --json | jq .totals.pps",
        _replay_arguments,
        _replay,
    ),
}
