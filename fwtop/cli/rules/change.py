"""fwtop change: another rate, other ports or sources for an active rule, in place."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from msgspec.structs import replace

from fwtop.cli.options import add_netns, flag, option, read_as, whole
from fwtop.cli.rules.mitigation import add_fields, field_given, prefix
from fwtop.client import discovery
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import DEFAULT_CONFIRM_SECONDS
from fwtop.model.rule import RateLimit, Rule, RuleStatus, State
from fwtop.model.text import safe_text
from fwtop.render.observation import mitigation_json
from fwtop.rules import options
from fwtop.rules.fields import FIELDS
from fwtop.rules.words import with_summary

HELP = (
    "Change the rate, the ports or the sources of an active rule: in place, without a gap, with its counters."
)
EXAMPLE = "fwtop change 7 --rate 500/s"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("id", metavar="ID", help="rule number from 'fwtop status'")
    option(parser, "--rate", "RATE", "of a limit: 1000/s, 30/m, or bytes: 2MB/s", read_as(options.rate))
    burst = whole("a number of packets or bytes above 0", 1, 10**9)
    option(parser, "--burst", "N", "of a limit (with --rate default: one second of it)", burst)
    for name, what in (
        ("--from", "instead of its sources (may be repeated)"),
        ("--add", "beside its sources"),
        ("--remove", "no longer among its sources"),
    ):
        parser.add_argument(
            name, dest=f"{name[2:]}_", action="append", default=[], type=prefix, metavar="PREFIX", help=what
        )
    add_fields(parser, *FIELDS)
    names = [field.name for field in FIELDS]
    parser.add_argument(
        "--any", action="append", default=[], choices=names, help="no longer match by this field"
    )
    flag(parser, "--yes", "without a trial")
    flag(parser, "--force", "although the rule becomes overly broad")
    flag(parser, "--json", "print one JSON document")
    add_netns(parser)


def run(args: argparse.Namespace) -> int:
    """Change the rule; what drops is on trial, and is as before unless it is kept."""
    seconds = 0 if args.yes else DEFAULT_CONFIRM_SECONDS
    with discovery.connect(netns=args.netns) as guardian:
        rule, stamp = guardian.read_rule(args.id)
        answer = guardian.change(args.id, _changed(args, rule), seconds, force=args.force, if_stamp=stamp)
    for warning in answer.data["warnings"]:
        print(f"warning: {safe_text(warning, limit=1000)}", file=sys.stderr)
    status = RuleStatus.from_dict(answer.data["status"])
    if args.json:
        print(json.dumps({"status": mitigation_json(status)}))
        return 0
    keep = f"'fwtop keep {status.rule.id}' keeps it, or in {seconds} s it is as before"
    told = keep if status.state is State.PROVISIONAL else status.note
    print(f"rule {status.rule.id}: {safe_text(status.rule.summary)} ({safe_text(told)})")
    return 0


def _changed(args: argparse.Namespace, rule: Rule) -> Rule:
    """Return the rule as the options ask for; raises FwtopError (code 2) where it has no such thing."""
    given: dict[str, Any] = {name: None for name in args.any} | field_given(args, *FIELDS)
    changed = replace(rule, match=replace(rule.match, **given))
    if args.rate or args.burst:
        changed = replace(changed, limit=_limit(args, rule))
    if args.from_ or args.add_ or args.remove_:
        changed = _with_sources(args, changed)
    if changed == rule:
        raise FwtopError("say what is to change; nothing was changed", 2)
    return with_summary(changed)


def _limit(args: argparse.Namespace, rule: Rule) -> RateLimit:
    if rule.limit is None:
        raise FwtopError(f"rule {rule.id} limits no rate; nothing was changed", 2)
    rate, in_bytes = args.rate or (rule.limit.per_second, rule.limit.in_bytes)
    burst = args.burst or (rate if args.rate else rule.limit.burst)
    return replace(rule.limit, per_second=rate, in_bytes=in_bytes, burst=burst)


def _with_sources(args: argparse.Namespace, rule: Rule) -> Rule:
    if rule.list_name is not None:
        line = f"rule {rule.id} has the sources of list {rule.list_name}: 'fwtop list' changes that"
        raise FwtopError(f"{line}; nothing was changed", 2)
    gone = set(args.remove_)
    sources = dict.fromkeys([*(args.from_ or rule.match.sources), *args.add_])
    left = tuple(prefix for prefix in sources if prefix not in gone)
    if unknown := gone - sources.keys():
        line = f"{min(unknown)} is no source of rule {rule.id}; nothing was changed"
        raise FwtopError(line, 2)
    if not left:  # without any, it would match all sources
        raise FwtopError(f"rule {rule.id} would have no source left: undo it; nothing was changed", 2)
    return replace(rule, match=replace(rule.match, sources=left), origin=None)
