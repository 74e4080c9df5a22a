"""fwtop keep: confirm a provisional rule, or renew a confirmed one."""

from __future__ import annotations

import argparse

from fwtop.cli.options import add_netns, option, ttl
from fwtop.client import discovery
from fwtop.model.protocol import Keep
from fwtop.render.numbers import duration

HELP = "Confirm a provisional rule, or restart the time to live of a confirmed one."
EXAMPLE = "fwtop keep 7 --ttl 2h"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("id", metavar="ID", help="rule number from 'fwtop status'")
    option(parser, "--ttl", "TIME", "new time to live: 30s, 10m, 2h, 1d", ttl)
    add_netns(parser)


def run(args: argparse.Namespace) -> int:
    """Ask the guardian to keep the rule."""
    data = discovery.ask(args.netns, Keep(args.id, args.ttl))
    seconds = args.ttl if args.ttl is not None else data["status"]["rule"]["ttl_seconds"]
    print(f"rule {args.id} is confirmed and expires in {duration(seconds)}")
    return 0
