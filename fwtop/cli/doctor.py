"""`fwtop doctor`: what this machine can do, what is missing, and the command that mends it."""

from __future__ import annotations

import argparse
import json
import os
from itertools import groupby

from fwtop.cli.options import add_geoip, add_interface
from fwtop.cli.probes.check import MISSING, OK, UNKNOWN, WARNING, Check
from fwtop.model.observation import SCHEMA
from fwtop.model.text import safe_text

NAME = "doctor"
HELP = "Say what this machine can do, what is missing, and the command that mends it."
EXAMPLE = "sudo fwtop doctor -i eth0"
_SIGNS = {OK: "ok     ", WARNING: "warning", MISSING: "MISSING", UNKNOWN: "unknown"}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    add_interface(parser, "look at")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_geoip(parser)


def run(args: argparse.Namespace) -> int:
    """Look at everything and print; 3 when something is missing that fwtop can't do without."""
    checks = examine(args.interface, args.geoip)
    fatal = [check for check in checks if check.fatal]
    if args.json:
        document = {
            "schema": SCHEMA,
            "host": safe_text(os.uname().nodename),
            "ok": not fatal,
            "checks": [check.to_json() for check in checks],
        }
        print(json.dumps(document))
    else:
        print("\n".join(lines(checks)))
    return 3 if fatal else 0


def examine(interfaces: list[str], geoip: str | None = None) -> list[Check]:
    """Return all checks, grouped. Raises FwtopError (code 2) for an unknown interface."""
    from fwtop.cli.probes import filters, installed, machine, sandbox
    from fwtop.cli.probes import interfaces as links

    of_links = list(links.checks(interfaces))
    checks = [*machine.checks(), *filters.checks(), *sandbox.run(), *of_links, *installed.checks(geoip)]
    order = list(dict.fromkeys(check.group for check in checks))
    return sorted(checks, key=lambda check: order.index(check.group))


def lines(checks: list[Check]) -> list[str]:
    """Write the checks for people, what mends a thing below it, and the verdict last."""
    width = max(len(check.name) for check in checks)
    shown: list[str] = []
    for group, members in groupby(checks, key=lambda check: check.group):
        shown.append(group)
        for check in members:
            shown.append(f"  {_SIGNS[check.state]}  {check.name:<{width}}  {check.detail}")
            if check.mend and check.state != OK:
                shown.append(f"{'':<{width + 13}}→ {check.mend}")
    fatal = [check.name for check in checks if check.fatal]
    unknown = sum(check.state == UNKNOWN for check in checks)
    if fatal:
        shown.append(f"fwtop can't work here yet: {', '.join(fatal)}")
    elif unknown:
        shown.append(f"nothing essential is missing as far as could be seen ({unknown} not tried)")
    else:
        shown.append("fwtop can work here")
    return shown
