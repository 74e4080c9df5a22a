"""fwtop read: analyse a capture file."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from fwtop.cli.files.exports import make_exports_directory
from fwtop.cli.files.screen_files import screen_files
from fwtop.cli.options import add_observation
from fwtop.dissect.supervisor import start_dissector
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.sandbox.confine import confine
from fwtop.sandbox.privileges import close_inherited, drop_privileges
from fwtop.sandbox.syscalls import Profile

HELP = "Analyse a capture (pcap or pcapng, also gzipped): on the screen in a terminal, else as text or JSON."
EXAMPLE = "fwtop read attack.pcap.gz --json"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("capture", type=Path, metavar="CAPTURE", help="a pcap or pcapng file, also gzip")
    parser.add_argument("--text", action="store_true", help="print plain text even in a terminal")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="print for each group of packets the three likeliest explanations and their evidence",
    )
    add_observation(parser)


def run(args: argparse.Namespace) -> int:
    """Open the file as the caller, then judge it unprivileged and sandboxed, and show the result."""
    try:
        file = open(args.capture, "rb")  # noqa: SIM115 - closed below, once root is given away
    except OSError as error:
        raise FwtopError(f"{safe_text(args.capture)}: {error.strerror}; nothing was read") from None
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads started earlier would escape the sandbox
    from fwtop.analysis.engine.explain import print_explanations
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
    with file:
        result = observe_capture(file, args.capture.name, top=args.top, lookup=lookup, explains=args.explain)
    if on_screen:
        return fwtop.console.playback.screens.show_capture(result, lookup, dissector, files=files)
    if args.explain:
        print_explanations(result.whole.advisor.explained)
        return 0
    return show(result.snapshot, as_json=args.json, top=args.top)
