"""`fwtop group`: rules that are switched together, in one transaction, without being loaded again.

What a policy's group was switched to stays, over a reboot and over the next policy that has the group.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from fwtop.cli.options import add_netns, flag
from fwtop.cli.rules.policy import versions_of
from fwtop.client import discovery
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import DEFAULT_CONFIRM_SECONDS, Keep, RuleMode
from fwtop.model.rule import POLICY, Mode, RuleStatus
from fwtop.model.text import safe_text
from fwtop.render.numbers import plural

if TYPE_CHECKING:
    from fwtop.client.discovery import GuardianClient

HELP = "List groups of rules, or switch one at once: on, off, or to counting (docs/POLICY.md)."
EXAMPLE = "fwtop group count web"
MODES = {"on": Mode.DROP, "count": Mode.COUNT, "off": Mode.OFF}
_NAMES = {mode: name for name, mode in MODES.items()}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("action", choices=("list", *MODES), help="list the groups, or switch one")
    parser.add_argument("name", nargs="?", metavar="NAME", help="of the group")
    flag(parser, "--yes", "on: without a trial")
    flag(parser, "--force", "on: also overly broad rules")
    flag(parser, "--json", "with list: print one JSON document")
    add_netns(parser)


def run(args: argparse.Namespace) -> int:
    """List or switch."""
    if (args.name is None) != (args.action == "list"):
        raise FwtopError("'fwtop group list' takes no name, the others take one; nothing was changed", 2)
    with discovery.connect(netns=args.netns, readonly=args.action == "list") as guardian:
        groups: dict[str, list[RuleStatus]] = {}
        for status in guardian.rules():
            if status.rule.group:
                groups.setdefault(status.rule.group, []).append(status)
        return _list(groups, as_json=args.json) if args.action == "list" else _switch(args, guardian, groups)


def _list(groups: dict[str, list[RuleStatus]], *, as_json: bool) -> int:
    told = []
    for name, rules in sorted(groups.items()):
        ids = [safe_text(status.rule.id) for status in rules]
        modes = sorted({_NAMES[status.rule.mode] for status in rules})
        packets = sum(status.packets for status in rules)
        told.append({"name": safe_text(name), "rules": ids, "modes": modes, "packets": packets})
        if not as_json:
            said = " and ".join(modes)
            print(f"{safe_text(name):<16} {said:<12} {packets:>12,} packets  rules {', '.join(ids)}")
    if as_json:
        print(json.dumps({"groups": told}))
    elif not told:
        print("no rule has a group")
    return 0


def _switch(args: argparse.Namespace, guardian: GuardianClient, groups: dict[str, list[RuleStatus]]) -> int:
    mode, rules = MODES[args.action], groups.get(args.name, [])
    if not rules:
        known = ", ".join(map(safe_text, sorted(groups))) or "none"
        line = f"no rule is of group {safe_text(args.name)}; there are: {known}"
        raise FwtopError(f"{line}; nothing was changed")
    on_trial = mode is Mode.DROP and not args.yes
    if on_trial and not sys.stdin.isatty():
        raise FwtopError("no terminal to ask for confirmation; nothing was changed; use --yes", 2)
    ids = tuple(status.rule.id for status in rules)
    versions = versions_of(args.netns)
    with versions.locked():
        seconds = DEFAULT_CONFIRM_SECONDS if on_trial else 0
        for warning in guardian.demand(RuleMode(ids, mode, seconds, args.force)).data["warnings"]:
            print(f"warning: {safe_text(warning, limit=1000)}", file=sys.stderr)
        if on_trial and not _keeps(seconds):
            guardian.demand(RuleMode(ids, Mode.COUNT, 0))
            print("the group counts only", file=sys.stderr)
            return 1
        for rule_id in ids if on_trial else ():
            guardian.demand(Keep(rule_id))
        if any(status.rule.created_by == POLICY for status in rules):
            versions.switch(args.name, mode)
    does = "counts only" if mode is Mode.COUNT else f"is {args.action}"
    print(f"group {safe_text(args.name)} {does}: {plural(len(ids), 'rule')}")
    return 0


def _keeps(seconds: int) -> bool:
    print(f"it is tried for {seconds} s, and counts again without an answer")
    try:
        return input("keep it? [y/N] ").strip().lower() in {"y", "yes"}
    except EOFError:
        return False
