"""Lists, policies and groups of many machines: fwtop fleet list, policy, group.

A newer one takes the former's place.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from msgspec.structs import replace

from fwtop.cli.fleet.rollout import add_rollout, blocking, draft, lead, roll_out
from fwtop.cli.options import Verb, flag
from fwtop.cli.rules import block
from fwtop.cli.rules.group import MODES
from fwtop.cli.rules.mitigation import add_rule_options
from fwtop.fleet.document import MAX_RULES, Action, is_name
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule
from fwtop.policy import document
from fwtop.policy.schema import MAX_LIST_NAME


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="of the list")
    block.arguments(parser)
    add_rollout(parser)


def _list(args: argparse.Namespace) -> int:
    """Have machines block what a list holds, in the place of what they blocked by it before."""
    if not is_name(args.name) or len(args.name) > MAX_LIST_NAME:
        raise FwtopError("a list's name has letters, digits and '_.@:-'; nothing was changed", 2)
    args.everywhere, args.group = True, args.group or args.name
    return roll_out(args, blocking(args), f"list:{args.name}")


def _policy_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("apply",), help="have machines keep these rules and no older ones")
    parser.add_argument("file", metavar="FILE", type=Path, help="the policy (docs/POLICY.md)")
    add_rule_options(parser, default_ttl="24d")
    parser.set_defaults(ttl=None)
    add_rollout(parser)


def _policy(args: argparse.Namespace) -> int:
    """Have machines keep a policy's rules, in the place of those of the policy before."""
    args.everywhere = True
    policy = document.read(args.file)
    rules = [_whole(policy, rule, args.ttl) for rule in policy.rules]
    if not 1 <= len(rules) <= MAX_RULES:
        line = f"{args.file} has {len(rules)} rules: a fleet's policy has 1 to {MAX_RULES}"
        raise FwtopError(f"{line}; nothing was changed", 2)
    return roll_out(args, rules, "policy")


def _whole(policy: document.Policy, rule: Rule, ttl: int | None) -> Rule:
    """Return a policy's rule with its list's entries as its own: on machines there is no such list."""
    name, others = rule.list_name, set(rule.lists_used) - {rule.list_name}
    if others:
        line = f"{rule.summary}: who may connect is each machine's own list {', '.join(sorted(others))}"
        raise FwtopError(f"{line}; a fleet's policy can't have it; nothing was changed", 2)
    rule = replace(rule, ttl_seconds=ttl or rule.ttl_seconds)
    if name is None:
        return rule
    return replace(rule, origin=f"@{name}", match=replace(rule.match, sources=policy.lists[name]))


def _group_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="of the group")
    parser.add_argument("action", choices=tuple(MODES), help="have its rules drop, only count, or do nothing")
    flag(parser, "--preview", "say what it would do on each machine, and change nothing")
    flag(parser, "--yes", "without a question")
    flag(parser, "--json", "print one JSON document")
    add_rollout(parser)


def _group(args: argparse.Namespace) -> int:
    """Switch the rules of a group that the fleet installed."""
    if not is_name(args.name):
        raise FwtopError("a group's name has letters, digits and '_.@:-'; nothing was changed", 2)
    args.everywhere, mode = True, MODES[args.action]
    note = f"group {args.name} {'counts only' if args.action == 'count' else args.action}"
    about = {"group": args.name, "mode": mode, "note": note, "name": f"group:{args.name}"}
    switch = draft(args, schema=3, action=Action.SWITCH, ttl_seconds=document.SECONDS, **about)
    return lead(args, switch)


ACTIONS = {
    "group": Verb(
        "Have the rules of a group that the fleet installed drop, only count, or do nothing: on trial on "
        "each machine, as any roll-out; undo has them as they were made.",
        "fwtop fleet group web count --on web",
        _group_arguments,
        _group,
    ),
    "list": Verb(
        "Have machines block a list of up to 5,000,000 entries. It is sent once, each machine checks what it "
        "got, tries it on its own traffic, and has it on trial; a newer list takes the former's place.",
        "fwtop fleet list scanners @drop.txt --on web",
        _list_arguments,
        _list,
    ),
    "policy": Verb(
        "Have machines keep the rules of a policy file: all on trial together, in the place of the former's.",
        "fwtop fleet policy apply web.toml --on web",
        _policy_arguments,
        _policy,
    ),
}
