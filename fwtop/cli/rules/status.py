"""fwtop status: active rules with their counters, and the allow-list."""

from __future__ import annotations

import argparse
import json
import time

from fwtop.cli.options import add_netns, flag
from fwtop.cli.rules.mitigation import status_lines
from fwtop.client import discovery
from fwtop.model.protocol import Status
from fwtop.model.rule import RuleStatus
from fwtop.model.text import safe_text
from fwtop.render.observation import SCHEMA, mitigation_json

HELP = "List active rules with their counters, and the allow-list."
EXAMPLE = "fwtop status --json"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    flag(parser, "--all", "include rules that have ended")
    flag(parser, "--json", "print one JSON document")
    add_netns(parser)


def run(args: argparse.Namespace) -> int:
    """Print the guardian's status."""
    data = discovery.ask(args.netns, Status(finished=args.all), readonly=True)
    statuses = [RuleStatus.from_dict(item) for item in data["rules"]]
    if args.json:
        mitigations = [
            {
                **mitigation_json(status),
                "created_by": status.rule.created_by,
                "entries": status.entries,
                "sources_total": status.sources_total,
            }
            for status in statuses
        ]
        about = {name: data[name] for name in ("allow", "guardian", "warnings")}
        print(json.dumps({"schema": SCHEMA, "mitigations": mitigations, **about}))
        return 0
    print("\n".join(status_lines(statuses, time.time())) if statuses else "no active rules")
    for warning in data["warnings"]:
        print(f"warning: {safe_text(warning, limit=1000)}")
    print("never cut off (the operator's own entries in full, others in their role only):")
    for entry in sorted(data["allow"], key=lambda entry: entry["tier"] == "learned"):
        tier = f"{entry['tier']}: {entry['passes']}"
        print(f"  {safe_text(entry['prefix']):<40} {safe_text(entry['why'])} ({safe_text(tier)})")
    return 0
