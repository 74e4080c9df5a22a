"""fwtop keep: confirm a provisional rule, or give a confirmed one its time again."""

from __future__ import annotations

import argparse

from fwtop.cli.mitigation import duration
from fwtop.cli.options import add_netns, ttl
from fwtop.model.protocol import Keep

NAME = "keep"
HELP = "Confirm a provisional rule, or renew a confirmed one; its time begins anew."
EXAMPLE = "fwtop keep 7 --ttl 2h"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("id", metavar="ID", help="number of the rule, as 'fwtop status' shows it")
    parser.add_argument(
        "--ttl", type=ttl, default=None, metavar="TIME", help="another time to live: 30s, 10m, 2h, 1d"
    )
    add_netns(parser)


def run(args: argparse.Namespace) -> int:
    """Ask the guardian to keep the rule."""
    from fwtop.mitigate import client

    with client.connect(netns=args.netns) as guardian:
        data = guardian.demand(Keep(args.id, args.ttl)).data
    seconds = args.ttl if args.ttl is not None else data["status"]["rule"]["ttl_seconds"]
    print(f"rule {args.id} is confirmed and ends by itself in {duration(seconds)}")
    return 0
