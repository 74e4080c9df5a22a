"""fwtop why: what a rule matches, or what prevents it from matching."""

from __future__ import annotations

import argparse
import json

from fwtop.cli.options import add_netns, flag
from fwtop.client import discovery
from fwtop.model.protocol import Why
from fwtop.model.text import safe_text

HELP = "Explain why a rule has no effect: what takes precedence over it, and where the packets go instead."
EXAMPLE = "fwtop why 7"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("id", metavar="ID", help="rule number from 'fwtop status'")
    flag(parser, "--json", "print one JSON document")
    add_netns(parser)


def run(args: argparse.Namespace) -> int:
    """Print the guardian's explanation; it watches the counters for a second."""
    sentences = discovery.ask(args.netns, Why(args.id), readonly=True)["sentences"]
    if args.json:
        print(json.dumps({"id": args.id, "sentences": sentences}))
        return 0
    print("\n".join(safe_text(sentence, limit=1000) for sentence in sentences))
    return 0
