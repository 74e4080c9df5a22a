"""Verbs that observe: the live screen, and one observation without a screen."""

from __future__ import annotations

import argparse
import os
import sys

from fwtop.cli.launcher import launch, require_root
from fwtop.cli.options import Verb, add_geoip, add_interfaces, add_observation, flag, option, seconds
from fwtop.console.handoff import Options
from fwtop.model.errors import FwtopError


def _watch_arguments(parser: argparse.ArgumentParser) -> None:
    add_interfaces(parser)
    add_geoip(parser)
    flag(parser, "--slow", "send less to the terminal, for a slow SSH link")
    flag(parser, "--readonly", "never change anything")
    flag(parser, "--no-store", "do not record this session")


def _watch(args: argparse.Namespace) -> int:
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


def _snapshot_arguments(parser: argparse.ArgumentParser) -> None:
    add_interfaces(parser)
    option(parser, "--seconds", "S", "how long (default 5)", seconds, default=5.0)
    flag(parser, "--no-store", "do not record this observation")
    add_observation(parser)


def _snapshot(args: argparse.Namespace) -> int:
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


VERBS = {
    "watch": Verb(
        "Watch the traffic that hits this machine, and stop attacks with one key.",
        "sudo fwtop -i eth0",
        _watch_arguments,
        _watch,
    ),
    "snapshot": Verb(
        "Observe for a few seconds, then print the traffic, the attacks, and rules that would stop them.",
        "sudo fwtop snapshot --seconds 5 --json | jq '.attacks'",
        _snapshot_arguments,
        _snapshot,
    ),
}
