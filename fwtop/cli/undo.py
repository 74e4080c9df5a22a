"""fwtop undo: take rules back; with the last one goes everything that fwtop put into the kernel."""

from __future__ import annotations

import argparse

from fwtop.cli.options import add_netns
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Undo

NAME = "undo"
HELP = "Take rules back, or with --all everything that fwtop put into the kernel."
EXAMPLE = "fwtop undo --all"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("id", nargs="*", metavar="ID", help="numbers of rules, as 'fwtop status' shows them")
    parser.add_argument("--all", action="store_true", help="all rules, and whatever a crash left behind")
    add_netns(parser)


def run(args: argparse.Namespace) -> int:
    """Ask the guardian to take the rules out."""
    if bool(args.id) == args.all:
        raise FwtopError("name the rules to take back, or --all; nothing was changed", 2)
    from fwtop.mitigate import client

    with client.connect(netns=args.netns) as guardian:
        undone = guardian.demand(Undo(tuple(args.id), args.all)).data["undone"]
    print(f"taken back: {', '.join(undone)}" if undone else "no rule was active")
    return 0
