"""`fwtop replay`: a session once more, observation by observation."""

from __future__ import annotations

import argparse
import json
import sys

from fwtop.cli.stored import StoredSession, add_session
from fwtop.console.privileges import drop_privileges
from fwtop.store.reader import replay

NAME = "replay"
HELP = "Print a stored session's observations in order, one JSON document a line."
EXAMPLE = "fwtop replay 2026-11-21T03 --json | jq .totals.pps"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    add_session(parser)
    parser.add_argument("--json", action="store_true", required=True, help="one observation a line")
    parser.add_argument("--top", type=int, default=50, metavar="N", help="entries of each list (default 50)")


def run(args: argparse.Namespace) -> int:
    """Print them; root is given away before the first byte is parsed."""
    session = StoredSession(args.session, args.directory)
    drop_privileges()
    with session.located() as path:
        for snapshot in replay(path):
            sys.stdout.write(json.dumps(snapshot.to_json(top=args.top), separators=(",", ":")) + "\n")
    return 0
