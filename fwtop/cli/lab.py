"""fwtop lab: run an attack on a victim in network namespaces, watched by fwtop."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from fwtop.cli.options import ending_by_signals, flag, option, seconds, whole
from fwtop.model.errors import FwtopError

HELP = "Attack a victim in network namespaces and watch it with fwtop. No packet leaves them."
EXAMPLE = "sudo fwtop lab dns_amplification --seconds 5 --json | jq .truth"
_DEFAULT = "few_sources"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    scenario = f"a scenario's name, a TOML file of your own, or 'list' (default {_DEFAULT})"
    parser.add_argument("scenario", nargs="?", default=None, help=scenario)
    option(parser, "--seconds", "S", "without a screen: how long (default 5)", seconds, default=5.0)
    pps = "packets per second (default: the scenario's; 0: unlimited)"
    option(parser, "--pps", "N", pps, whole("a rate from 0 to 100,000,000", 0, 100_000_000))
    capture = (
        "replay a capture (pcap, pcapng, gzip) to the victim at its own rate: its first 16,384 packets "
        "in a loop, readdressed, each cut to 640 bytes and padded with zeros"
    )
    option(parser, "--capture", "FILE", capture)
    flag(parser, "--json", "print what was sent and observed as JSON")
    flag(parser, "--store", "without a screen: keep the observation as a session (the screen always does)")


def run(args: argparse.Namespace) -> int:
    """Run a scenario, or list them."""
    if args.scenario == "list":
        return _list(as_json=args.json)
    from fwtop.lab import watch
    from fwtop.lab.run import Lab

    if args.capture and args.scenario:
        raise FwtopError("a scenario and --capture exclude each other", 2)
    lab = Lab("calm", capture=Path(args.capture)) if args.capture else Lab(args.scenario or _DEFAULT)
    if not args.json and sys.stdin.isatty() and sys.stdout.isatty():
        with ending_by_signals(), lab:
            status = watch.show(lab, args.pps)
        print("fwtop: the lab is gone, with its namespaces and all rules in them")
        return status
    with ending_by_signals(), lab:
        result = watch.observe(lab, args.seconds, args.pps, store=args.store)
    print(json.dumps(result, indent=None if args.json else 1))
    return 0


def _list(*, as_json: bool) -> int:
    from fwtop.lab import scenario

    found = [scenario.load(name) for name in scenario.names()]
    if as_json:
        rows = [{"scenario": item.name, "title": item.title, "kinds": list(item.kinds)} for item in found]
        print(json.dumps(rows))
        return 0
    width = max(len(item.name) for item in found)
    for item in found:
        print(f"{item.name:<{width}}  {item.title}")
    return 0
