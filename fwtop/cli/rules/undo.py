"""fwtop undo: remove rules; with the last one, everything of fwtop's leaves the kernel."""

from __future__ import annotations

import argparse
import os

from fwtop.cli.options import add_netns, flag
from fwtop.client import discovery
from fwtop.model.errors import FwtopError
from fwtop.model.paths import RUN_DIRECTORY
from fwtop.model.protocol import Undo

HELP = "Remove rules, or with --all everything that fwtop installed in the kernel."
EXAMPLE = "fwtop undo --all"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("id", nargs="*", metavar="ID", help="rule numbers from 'fwtop status'")
    flag(parser, "--all", "all rules, and anything a crash left behind")
    flag(
        parser,
        "--overdue",
        "no rules: give back sysctls whose time is over and whose guardian is gone or hangs",
    )
    add_netns(parser)


def run(args: argparse.Namespace) -> int:
    """Remove the rules."""
    if bool(args.id) + args.all + args.overdue != 1:
        raise FwtopError("name the rules to remove, or --all, or --overdue; nothing was changed", 2)
    if args.overdue:
        return _give_back()
    undone = discovery.ask(args.netns, Undo(tuple(args.id), args.all))["undone"]
    print(f"removed: {', '.join(undone)}" if undone else "no rule was active")
    return 0


def _give_back() -> int:
    """Give back what is overdue in every network namespace; the journal of the system says what."""
    from fwtop.guardian.overdue import give_back_everywhere

    if os.geteuid() != 0:
        raise FwtopError("giving sysctls back needs root; nothing was changed; try: sudo fwtop", 3)
    given_back = give_back_everywhere(RUN_DIRECTORY)
    print("\n".join(given_back) if given_back else "no sysctl was overdue")
    return 0
