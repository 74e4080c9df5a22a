"""fwtop watch: the live screen; the default verb."""

from __future__ import annotations

import argparse
import sys

from fwtop.cli.launcher import launch, require_root
from fwtop.cli.options import add_geoip, add_interfaces, flag
from fwtop.console.handoff import Options
from fwtop.model.errors import FwtopError

HELP = "Watch the traffic that hits this machine, and stop attacks with one key."
EXAMPLE = "sudo fwtop -i eth0"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_interfaces(parser)
    add_geoip(parser)
    flag(parser, "--slow", "send less to the terminal, for a slow SSH link")
    flag(parser, "--readonly", "never change anything")
    flag(parser, "--no-store", "do not record this session")


def run(args: argparse.Namespace) -> int:
    """Open the screen; returns when the operator quits."""
    require_root("watching")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise FwtopError("the screen needs a terminal; nothing was started; use 'fwtop snapshot' instead", 2)
    options = Options(
        mode="tui",
        slow=args.slow,
        readonly=args.readonly,
        netns=args.netns,
        geoip=args.geoip,
        store=not args.no_store,
    )
    return launch(options, args.interface)
