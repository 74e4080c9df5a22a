"""`fwtop record`: watch and store without a screen, until stopped."""

from __future__ import annotations

import argparse

from fwtop.cli.launcher import launch
from fwtop.cli.options import add_geoip, add_interfaces
from fwtop.console.handoff import Options
from fwtop.model.protocol import Watch

NAME = "record"
HELP = "Watch and store without a screen until stopped (a service); 'fwtop report' shows it afterwards."
EXAMPLE = "sudo fwtop record -i eth0"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    add_interfaces(parser)
    add_geoip(parser)
    parser.add_argument(
        "--xdp", action="store_true", help="attach XDP at the start (may re-initialise the NIC)"
    )


def run(args: argparse.Namespace) -> int:
    """Record until stopped."""
    options = Options(mode="record", netns=args.netns, geoip=args.geoip)
    return launch(options, Watch(tuple(args.interface), xdp=args.xdp))
