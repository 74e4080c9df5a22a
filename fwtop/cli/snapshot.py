"""`fwtop snapshot`: one observation without a screen."""

from __future__ import annotations

import argparse
import os

from fwtop.cli.launcher import launch
from fwtop.cli.options import add_interfaces, add_observation, seconds
from fwtop.console.handoff import Options
from fwtop.model.protocol import Watch

NAME = "snapshot"
HELP = "Observe for some seconds and print what was seen, what it is and what would stop it."
EXAMPLE = "sudo fwtop snapshot --seconds 5 --json | jq '.attacks'"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    add_interfaces(parser)
    parser.add_argument("--seconds", type=seconds, default=5.0, metavar="S", help="how long (default 5)")
    parser.add_argument(
        "--xdp", action="store_true", help="attach XDP at the start (may re-initialise the NIC)"
    )
    parser.add_argument("--no-store", action="store_true", help="keep no record of this observation")
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
    return launch(options, Watch(tuple(args.interface), xdp=args.xdp))
