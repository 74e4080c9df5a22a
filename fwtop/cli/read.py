"""`fwtop read`: the same judgement on a capture file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fwtop.cli.options import add_observation
from fwtop.console.privileges import drop_privileges
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

NAME = "read"
HELP = "Judge a capture (pcap, pcapng, also gzip); in a terminal on the screen, else as text or JSON."
EXAMPLE = "fwtop read attack.pcap.gz --json"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("capture", type=Path, metavar="CAPTURE", help="a pcap or pcapng file, also gzip")
    parser.add_argument("--text", action="store_true", help="print plain text even in a terminal")
    add_observation(parser)


def run(args: argparse.Namespace) -> int:
    """Read, judge, show. As root, the file is opened first and root is given away before it is read."""
    try:
        file = open(args.capture, "rb")  # noqa: SIM115 - closed below, once root is given away
    except OSError as error:
        raise FwtopError(f"{safe_text(args.capture)}: {error.strerror}; nothing was read") from None
    from fwtop.console.capture import observe_capture

    on_screen = not args.json and not args.text and sys.stdin.isatty() and sys.stdout.isatty()
    if on_screen:
        import fwtop.console.stored_screen
    drop_privileges()
    with file:
        result = observe_capture(file, args.capture.name, top=args.top, geoip=args.geoip)
    if on_screen:
        return fwtop.console.stored_screen.show_capture(result)
    from fwtop.console.observe import show

    show(result.snapshot, as_json=args.json, top=args.top)
    return 0
