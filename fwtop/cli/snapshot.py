"""fwtop snapshot: one observation without a screen."""

from __future__ import annotations

import argparse
import os

from fwtop.cli.launcher import launch
from fwtop.cli.options import add_interfaces, add_observation, flag, option, seconds
from fwtop.console.handoff import Options

HELP = "Observe for a few seconds, then print the traffic, the attacks, and rules that would stop them."
EXAMPLE = "sudo fwtop snapshot --seconds 5 --json | jq '.attacks'"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_interfaces(parser)
    option(parser, "--seconds", "S", "how long (default 5)", seconds, default=5.0)
    flag(parser, "--no-store", "do not record this observation")
    add_observation(parser)


def run(args: argparse.Namespace) -> int:
    """Observe and print."""
    ready = os.environ.get("FWTOP_READY_FD", "")
    options = Options(
        mode="snapshot",
        seconds=args.seconds,
        json=args.json,
        top=args.top,
        netns=args.netns,
        geoip=args.geoip,
        store=not args.no_store,
        ready_fd=int(ready) if ready.isdigit() else None,
    )
    return launch(options, args.interface)
