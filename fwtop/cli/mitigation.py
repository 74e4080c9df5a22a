"""What all verbs that change the firewall share: plan, question, install, and how a rule is shown."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO

from fwtop.cli.harm import harm_line, measure
from fwtop.cli.options import add_netns, ttl
from fwtop.model.errors import FwtopError
from fwtop.model.observation import mitigation_json
from fwtop.model.preview import Preview
from fwtop.model.protocol import DEFAULT_CONFIRM_SECONDS, Keep
from fwtop.model.protocols import NUMBERS
from fwtop.model.rule import Kind, Rule, RuleStatus, State, rule_status_from_dict
from fwtop.model.text import safe_text

if TYPE_CHECKING:
    from fwtop.mitigate.client import GuardianClient

DEFAULT_TTL_SECONDS = 600
_DROP_NOTHING = {
    Kind.NOTRACK: "it drops nothing",
    Kind.SYSCTL: "it drops nothing",
    Kind.SYNPROXY: "it ends handshakes that nobody finishes, and lets the others through",
}


def add_rule_options(parser: argparse.ArgumentParser, *, families: bool = True) -> None:
    """Add --ttl, --preview, --yes, --force, --json, --netns and -4/-6."""
    parser.add_argument(
        "--ttl",
        type=ttl,
        default=DEFAULT_TTL_SECONDS,
        metavar="TIME",
        help="how long it lasts: 30s, 10m, 2h, 1d (default 10m)",
    )
    parser.add_argument("--preview", action="store_true", help="show what would be run, install nothing")
    parser.add_argument("--yes", action="store_true", help="install at once, ask nothing")
    parser.add_argument(
        "--force", action="store_true", help="install a broad rule that would need a typed word"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    if families:
        both = parser.add_mutually_exclusive_group()
        both.add_argument("-4", dest="family", action="store_const", const=4, help="IPv4 only")
        both.add_argument("-6", dest="family", action="store_const", const=6, help="IPv6 only")
    add_netns(parser)


def protocol(text: str) -> int:
    """Read a protocol's name or number."""
    number = NUMBERS.get(text.lower(), int(text) if text.isascii() and text.isdigit() else -1)
    if not 0 <= number <= 255:
        known = ", ".join(NUMBERS)
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a protocol: a number to 255, or {known}")
    return number


def port(text: str) -> int:
    """Read a port number."""
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a port from 0 to 65535")
    return int(text)


def carry_out(args: argparse.Namespace, rules: list[Rule]) -> int:
    """Show the plans of rules and install them as the options say; returns the exit status."""
    from fwtop.mitigate import client

    if not (args.preview or args.yes or sys.stdin.isatty()):
        line = "there is no terminal to ask on; nothing was changed; --yes installs, --preview shows the plan"
        raise FwtopError(line, 2)
    drops = any(rule.kind not in _DROP_NOTHING for rule in rules)
    measured = measure(rules, args.netns) if drops and (args.preview or not args.yes) else None
    previews: list[Preview | None] = [*measured] if measured is not None else [None] * len(rules)
    with client.connect(netns=args.netns, readonly=args.preview) as guardian:
        results = [
            _carry_out_one(args, guardian, rule, preview)
            for rule, preview in zip(rules, previews, strict=True)
        ]
    if args.json:
        print(json.dumps(results[0] if len(results) == 1 else {"rules": results}))
    if args.preview:
        return max(int(result["plan"]["code"]) for result in results)
    return 0 if all("status" in result for result in results) else 1


def _carry_out_one(
    args: argparse.Namespace, guardian: GuardianClient, rule: Rule, preview: Preview | None
) -> dict[str, Any]:
    force, confirm_seconds = args.force, 0
    if args.preview or not args.yes:  # else it is judged as it is installed: a long list goes there only once
        plan = guardian.plan(rule).data
        _show_plan(rule, plan, preview, sys.stderr if args.json else sys.stdout)
        if args.preview:
            return {"plan": plan, "preview": asdict(preview) if preview is not None else None}
        if plan["refused"]:
            raise FwtopError(f"refused: {plan['refused']}", plan["code"])
        force, confirm_seconds = force or bool(plan["needs_force"]), DEFAULT_CONFIRM_SECONDS
        if not _agreed(plan["needs_force"] if not args.force else ""):
            print("nothing was changed", file=sys.stderr)
            return {"plan": plan}
    data = guardian.apply(rule, confirm_seconds, force=force).data
    status = rule_status_from_dict(data["status"])
    if confirm_seconds and _keeps(status):
        status = rule_status_from_dict(guardian.demand(Keep(status.rule.id)).data["status"])
    print(f"rule {status.rule.id}: {_outcome(status)}", file=sys.stderr if args.json else sys.stdout)
    return {"status": mitigation_json(status)}


def _show_plan(rule: Rule, plan: dict[str, Any], preview: Preview | None, to: TextIO) -> None:
    print(f"{rule.summary}, for {duration(rule.ttl_seconds)}", file=to)
    if rule.kind in _DROP_NOTHING:
        print(f"  {_DROP_NOTHING[rule.kind]}", file=to)
    elif preview is None:
        print("  what it would hit could not be measured on the traffic of this machine", file=to)
    else:
        print(f"  {harm_line(preview)}", file=to)
        for example in preview.examples:
            print(f"    hit: {example}", file=to)
        for warning in preview.warnings:
            print(f"  warning: {warning}", file=to)
    for line in plan["commands"]:
        print(f"  {safe_text(line, limit=2000)}", file=to)
    for warning in plan["warnings"]:
        print(f"  warning: {safe_text(warning, limit=1000)}", file=to)
    if plan["needs_force"]:
        print(f"  broad: {safe_text(plan['needs_force'])}", file=to)
    if plan["refused"]:
        print(f"  refused: {safe_text(plan['refused'], limit=1000)}", file=to)


def _agreed(broad: str) -> bool:
    """Ask; a broad rule wants a whole word, so that no habit installs it."""
    wanted, question = ("yes", "install it all the same? type yes: ") if broad else ("y", "install? [y/N] ")
    return _ask(question).lower() in ({wanted} if broad else {"y", "yes"})


def _keeps(status: RuleStatus) -> bool:
    print(f"rule {status.rule.id} is active for {DEFAULT_CONFIRM_SECONDS} s; then it is taken back")
    return _ask("keep it? [y/N] ").lower() in {"y", "yes"}


def _ask(question: str) -> str:
    try:
        return input(question).strip()
    except EOFError:
        return ""


def _outcome(status: RuleStatus) -> str:
    left = duration(int((status.expires or time.time()) - time.time() + 0.5))
    if status.state is State.PROVISIONAL:
        return f"provisional; 'fwtop keep {status.rule.id}' confirms it"
    return f"{status.state.value}; ends by itself in {left}; 'fwtop undo {status.rule.id}' takes it back"


def duration(seconds: int) -> str:
    """Write a length of time for people: 45s, 10m, 2h05m, 1d03h."""
    if seconds < 60:
        return f"{max(0, seconds)}s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if hours == 0:
        return f"{minutes}m{seconds % 60:02d}s" if seconds % 60 else f"{minutes}m"
    if days == 0:
        return f"{hours}h{minutes % 60:02d}m" if minutes % 60 else f"{hours}h"
    return f"{days}d{hours % 24:02d}h" if hours % 24 else f"{days}d"


def status_lines(statuses: Iterable[RuleStatus], now: float) -> list[str]:
    """Return a table of rules, one line each under a heading."""
    lines = [f"{'ID':>4}  {'KIND':<9} {'STATE':<11} {'PACKETS':>12} {'PPS':>9}  {'LEFT':<7} WHAT"]
    for status in statuses:
        until = status.confirm_by if status.state is State.PROVISIONAL else status.expires
        active = status.state in (State.PROVISIONAL, State.CONFIRMED)
        left = duration(int(until - now)) if active and until is not None else "-"
        note = f" ({safe_text(status.note)})" if status.note else ""
        lines.append(
            f"{safe_text(status.rule.id):>4}  {status.rule.kind.value:<9} {status.state.value:<11} "
            f"{status.packets:>12,} {status.pps:>9,.0f}  {left:<7} {safe_text(status.rule.summary)}{note}"
        )
    return lines
