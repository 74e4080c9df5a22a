"""fwtop repair: reinstall a rule that something else removed or overrode."""

from __future__ import annotations

import argparse

from fwtop.cli.options import add_netns
from fwtop.client import discovery
from fwtop.model.protocol import Repair

NAME = "repair"
HELP = "Reinstall the parts of a rule that are missing from the kernel; its time to live runs on."
EXAMPLE = "fwtop repair 7"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("id", metavar="ID", help="rule number from 'fwtop status'")
    add_netns(parser)


def run(args: argparse.Namespace) -> int:
    """Reinstall the rule."""
    discovery.ask(args.netns, Repair(args.id))
    print(f"rule {args.id} is in effect again")
    return 0
