"""fwtop undo: remove rules; with the last one, everything of fwtop's leaves the kernel."""

from __future__ import annotations

import argparse

from fwtop.cli.options import add_netns
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Undo

HELP = "Remove rules, or with --all everything that fwtop installed in the kernel."
EXAMPLE = "fwtop undo --all"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("id", nargs="*", metavar="ID", help="rule numbers from 'fwtop status'")
    parser.add_argument("--all", action="store_true", help="all rules, and anything a crash left behind")
    add_netns(parser)


def run(args: argparse.Namespace) -> int:
    """Remove the rules."""
    if bool(args.id) == args.all:
        raise FwtopError("name the rules to remove, or --all; nothing was changed", 2)
    from fwtop.client import discovery

    with discovery.connect(netns=args.netns) as guardian:
        undone = guardian.demand(Undo(tuple(args.id), args.all)).data["undone"]
    print(f"removed: {', '.join(undone)}" if undone else "no rule was active")
    return 0
