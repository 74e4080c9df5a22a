"""fwtop doctor: what this machine supports, what is missing, and the command that installs it."""

from __future__ import annotations

import argparse
import json
import os
from itertools import groupby

from fwtop.cli.doctor.checks import MISSING, OK, UNKNOWN, WARNING, Check
from fwtop.cli.options import add_geoip, add_interface, flag
from fwtop.model.text import safe_text
from fwtop.model.wire import plain
from fwtop.render.observation import SCHEMA

HELP = "Check what this machine supports, and show the command that installs what is missing."
EXAMPLE = "sudo fwtop doctor -i eth0"
_SIGNS = {OK: "ok     ", WARNING: "warning", MISSING: "MISSING", UNKNOWN: "unknown"}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_interface(parser, "check")
    flag(parser, "--json", "print one JSON document")
    add_geoip(parser)


def run(args: argparse.Namespace) -> int:
    """Run and print all checks; return 3 if something essential is missing."""
    checks = examine(args.interface, args.geoip)
    fatal = [check for check in checks if check.fatal]
    if args.json:
        document = {
            "schema": SCHEMA,
            "host": safe_text(os.uname().nodename),
            "ok": not fatal,
            "checks": plain(checks),
        }
        print(json.dumps(document))
    else:
        print("\n".join(lines(checks)))
    return 3 if fatal else 0


def examine(interfaces: list[str], geoip: str | None = None) -> list[Check]:
    """Return all checks, grouped. Raises FwtopError (code 2) for an unknown interface."""
    from fwtop.cli.doctor import checks, features
    from fwtop.cli.doctor import interfaces as links

    of_links = list(links.checks(interfaces))  # first: it may raise
    looked = [*checks.kernel_checks(), *checks.filter_checks()]
    found = [*looked, *features.run(), *of_links, *checks.installed_checks(geoip)]
    order = list(dict.fromkeys(check.group for check in found))
    return sorted(found, key=lambda check: order.index(check.group))


def lines(checks: list[Check]) -> list[str]:
    """Format the checks, each with its fix below it, and a verdict at the end."""
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
        shown.append(f"fwtop does not work here yet: {', '.join(fatal)}")
    elif unknown:
        shown.append(f"nothing essential is missing, as far as could be checked ({unknown} skipped)")
    else:
        shown.append("fwtop works here")
    return shown
