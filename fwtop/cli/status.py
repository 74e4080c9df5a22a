"""fwtop status: active rules, what they drop, and who is never cut off."""

from __future__ import annotations

import argparse
import json
import time

from fwtop.cli.mitigation import status_lines
from fwtop.cli.options import add_netns
from fwtop.model.observation import SCHEMA, mitigation_json
from fwtop.model.protocol import Status
from fwtop.model.rule import rule_status_from_dict
from fwtop.model.text import safe_text

NAME = "status"
HELP = "List active rules with what they matched, and the allow-list."
EXAMPLE = "fwtop status --json"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("--all", action="store_true", help="also rules that are over")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_netns(parser)


def run(args: argparse.Namespace) -> int:
    """Ask the guardian and print."""
    from fwtop.mitigate import client

    with client.connect(netns=args.netns, readonly=True) as guardian:
        data = guardian.demand(Status(finished=args.all)).data
    statuses = [rule_status_from_dict(item) for item in data["rules"]]
    if args.json:
        mitigations = [
            {**mitigation_json(status), "entries": status.entries, "sources_total": item["sources_total"]}
            for status, item in zip(statuses, data["rules"], strict=True)
        ]
        about = {"allow": data["allow"], "guardian": data["guardian"]}
        print(json.dumps({"schema": SCHEMA, "mitigations": mitigations, **about}))
        return 0
    print("\n".join(status_lines(statuses, time.time())) if statuses else "no active rules")
    print("never cut off:")
    for entry in data["allow"]:
        print(f"  {safe_text(entry['prefix']):<40} {safe_text(entry['why'])}")
    return 0
