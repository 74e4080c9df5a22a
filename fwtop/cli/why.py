"""fwtop why: what a rule matches, or what keeps it from matching."""

from __future__ import annotations

import argparse
import json

from fwtop.cli.options import add_netns
from fwtop.model.protocol import Why
from fwtop.model.text import safe_text

NAME = "why"
HELP = "Say why a rule does nothing: what stands before it, and where the packets are instead."
EXAMPLE = "fwtop why 7"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("id", metavar="ID", help="number of the rule, as 'fwtop status' shows it")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_netns(parser)


def run(args: argparse.Namespace) -> int:
    """Ask the guardian, which watches the counters for a second, and print."""
    from fwtop.mitigate import client

    with client.connect(netns=args.netns, readonly=True) as guardian:
        sentences = guardian.demand(Why(args.id)).data["sentences"]
    if args.json:
        print(json.dumps({"id": args.id, "sentences": sentences}))
        return 0
    print("\n".join(safe_text(sentence, limit=1000) for sentence in sentences))
    return 0
