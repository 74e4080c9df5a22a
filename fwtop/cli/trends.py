"""fwtop trends: the last hour, day and 15 days."""

from __future__ import annotations

import argparse
import json
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from fwtop.cli.options import flag, option
from fwtop.cli.stored import StoredSession, run_unprivileged, sanitised
from fwtop.model.errors import FwtopError
from fwtop.model.paths import STATE_DIRECTORY
from fwtop.render.trends import trends_json, trends_text
from fwtop.store.history import FILE_NAME
from fwtop.store.trends import read_trends

HELP = (
    "Show the averages of the last hour, day and 15 days: traffic, sources, target ports and addresses. "
    "Every screen and 'fwtop record' adds to them."
)
EXAMPLE = "fwtop trends --json | jq '.countries[0]'"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    flag(parser, "--json", "print one JSON document")
    interface = "the history of these interfaces; repeatable (default: those recorded last)"
    parser.add_argument("-i", "--interface", action="append", metavar="IF", help=interface)
    option(parser, "--netns", "NAME", "the history of this network namespace")
    directory = f"where {FILE_NAME} is (default {STATE_DIRECTORY})"
    option(parser, "--directory", "DIR", directory, Path, default=STATE_DIRECTORY)


def run(args: argparse.Namespace) -> int:
    """Print the trends, read without root."""
    directory: Path = args.directory
    path, now = directory / FILE_NAME, time.time()
    # Elsewhere the file is the caller's: it is opened with the caller's rights, and a copy is read.
    own = directory == STATE_DIRECTORY or not path.is_file()
    located = nullcontext(path) if own else StoredSession(str(path.absolute()), directory).located()

    def document() -> dict[str, Any]:
        with located as place:
            return trends_json(read_trends(place, now, interfaces=args.interface, netns=args.netns))

    told = run_unprivileged(document)
    try:
        checked = sanitised(told)
        text = json.dumps(checked, indent=1) + "\n" if args.json else trends_text(checked)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        raise FwtopError("the unprivileged reader gave no trends; nothing was changed") from None
    print(text, end="")
    return 0
