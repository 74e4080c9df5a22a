"""Shared by all verbs that install rules: plan, preview, confirmation, installation, rule tables."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from msgspec.structs import replace

from fwtop.cli.launcher import launch
from fwtop.cli.options import add_interface, add_netns, flag, option, read_as, ttl
from fwtop.console.handoff import Options
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import DEFAULT_CONFIRM_SECONDS, Keep
from fwtop.model.rule import Match, Mode, Preview, Rule, RuleStatus, State
from fwtop.model.text import safe_text
from fwtop.model.wire import of_json, of_plain, plain
from fwtop.render.harm import hit_words
from fwtop.render.numbers import duration, percent, si
from fwtop.render.observation import mitigation_json
from fwtop.rules.fields import FRAGMENT, Field
from fwtop.rules.kinds import of
from fwtop.rules.words import with_mode
from fwtop.sandbox.child import ask

if TYPE_CHECKING:
    from fwtop.client.discovery import GuardianClient


_DEST = "match_"  # begins the names of what options of fields give: --ttl is no field
DEFAULT_TTL_SECONDS = 600
_MEASURE_SECONDS = 2.0
_MAX_SOURCES = 100_000  # previewing a longer list takes too long
_MOST_BYTES = 1 << 24  # of the child's previews


def measure(rules: list[Rule], netns: str | None, interfaces: Sequence[str] = ()) -> list[Preview] | None:
    """Watch interfaces for two seconds and preview the rules; None if that is impossible here.

    A child process does it, because watching gives root away and installing needs it.
    """
    parts = [part for rule in rules for part in rule.parts or (rule,)]
    is_empty = any(part.list_name is not None and not part.match.sources for part in parts)
    if is_empty or sum(len(part.match.sources) for part in parts) > _MAX_SOURCES:
        return None
    try:
        text = ask(
            lambda: _observed(rules, netns, interfaces),
            bytes,
            who="the preview",
            most_bytes=_MOST_BYTES,
            stop=signal.SIGTERM,
        )
    except FwtopError:
        return None
    return read_previews(text, len(rules))


def harm_line(preview: Preview) -> str:
    """Return one line on what a rule would stop and whom it would hit."""
    what = f"the {preview.attack}" if preview.attack else "the attack"
    total = si(preview.attack_pps, "pps")
    return (
        f"would stop {percent(preview.attack_share, 1)} of {what} ({total} in total); "
        f"{hit_words(preview.collateral_share, preview.clients, guess=preview.guess)}"
        f"{preview.reach.covers and f'; {preview.reach.covers}'}"
    )


def _observed(rules: list[Rule], netns: str | None, interfaces: Sequence[str]) -> bytes:
    """Watch with a console that reads the rules from its standard input; return what it wrote."""
    given, result = os.memfd_create("fwtop-rules"), os.memfd_create("fwtop-previews")
    os.write(given, json.dumps([rule.to_dict() for rule in rules]).encode())
    os.lseek(given, 0, os.SEEK_SET)
    for number, descriptor in enumerate((given, result, os.open(os.devnull, os.O_WRONLY))):
        os.dup2(descriptor, number)
    if launch(Options(mode="dry_run", seconds=_MEASURE_SECONDS, netns=netns, store=False), interfaces):
        raise FwtopError("nothing was observed")
    os.lseek(result, 0, os.SEEK_SET)
    with open(result, "rb") as file:
        return file.read()


def read_previews(text: bytes, count: int) -> list[Preview] | None:
    """Read what the unprivileged console wrote, for root's terminal: None unless it is `count` previews."""
    from fwtop.cli.sessions.stored import sanitised  # brings the store

    try:
        found = of_plain(list[Preview], sanitised(of_json(list[Any], text)))
    except ValueError:
        return None
    return found if len(found) == count else None


def add_rule_options(
    parser: argparse.ArgumentParser, *, families: bool = True, default_ttl: str = "10m"
) -> None:
    """Add --ttl, --count, --group, --preview, --yes, --force, --json, -i, --netns and -4/-6.

    `default_ttl` is what the help says; a verb with another default than 10 minutes sets it.
    """
    what = f"time to live: 30s, 10m, 2h, 1d (default {default_ttl})"
    option(parser, "--ttl", "TIME", what, ttl, default=DEFAULT_TTL_SECONDS)
    flag(parser, "--count", "only count what it would drop; 'fwtop mode' has it drop")
    option(parser, "--group", "NAME", "a group that is switched as one: fwtop group")
    flag(parser, "--preview", "show the commands, install nothing")
    flag(parser, "--yes", "install without asking")
    flag(parser, "--force", "install an overly broad rule without typed confirmation")
    flag(parser, "--json", "print one JSON document")
    if families:
        both = parser.add_mutually_exclusive_group()
        both.add_argument("-4", dest="family", action="store_const", const=4, help="IPv4 only")
        both.add_argument("-6", dest="family", action="store_const", const=6, help="IPv6 only")
    add_interface(parser, "preview with what arrives on")
    add_netns(parser)


def add_fields(parser: argparse.ArgumentParser, *fields: Field, **other: Any) -> None:  # noqa: ANN401
    """Add the options of header fields; `other` says more about them."""
    for field in fields:
        kind = {"action": "store_const", "const": True}
        if field is not FRAGMENT:
            kind = {"type": read_as(field.read), "metavar": field.metavar}
        parser.add_argument(field.option, dest=_DEST + field.name, **{"help": field.help, **kind, **other})


def match_of(args: argparse.Namespace, *fields: Field, **other: Any) -> Match:  # noqa: ANN401
    """Return the conditions that the options of fields ask for."""
    return Match(family=args.family, **field_given(args, *fields), **other)


def field_given(args: argparse.Namespace, *fields: Field) -> dict[str, Any]:
    """Return the conditions of fields that were asked for, by name."""
    asked = ((field.name, getattr(args, _DEST + field.name)) for field in fields)
    return {name: value for name, value in asked if value is not None}


prefix = read_as(Prefix.parse)


def can_ask(args: argparse.Namespace) -> None:
    """Raise FwtopError (code 2) if somebody would have to be asked and nobody can be."""
    if not (args.preview or args.yes or sys.stdin.isatty()):
        line = "no terminal to ask for confirmation; nothing was changed; use --yes or --preview"
        raise FwtopError(line, 2)


def carry_out(args: argparse.Namespace, rules: list[Rule]) -> int:
    """Show the plans of rules and install them as requested; return the exit status."""
    from fwtop.client import discovery

    can_ask(args)
    rules = [with_mode(rule, Mode.COUNT) for rule in rules] if args.count else rules
    rules = [replace(rule, group=args.group) for rule in rules] if args.group else rules
    drops = not all(map(_not_measured, rules))
    asks = drops and (args.preview or not args.yes)
    dropping = [with_mode(rule, Mode.DROP) for rule in rules]
    measured = measure(dropping, args.netns, args.interface) if asks else None
    previews: list[Preview | None] = [*measured] if measured is not None else [None] * len(rules)
    with discovery.connect(netns=args.netns, readonly=args.preview) as guardian:
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
            return {"plan": plan, "preview": plain(preview) if preview is not None else None}
        if plan["refused"]:
            raise FwtopError(f"refused: {plan['refused']}", plan["code"])
        force, confirm_seconds = force or bool(plan["needs_force"]), DEFAULT_CONFIRM_SECONDS
        if not _agreed(plan["needs_force"] if not args.force else ""):
            print("nothing was changed", file=sys.stderr)
            return {"plan": plan}
    data = guardian.apply(rule, confirm_seconds, force=force).data
    if args.yes:  # otherwise the plan said so
        for warning in data["warnings"]:
            print(f"warning: {safe_text(warning, limit=1000)}", file=sys.stderr)
    status = RuleStatus.from_dict(data["status"])
    if status.state is State.PROVISIONAL and not args.yes and _keeps(status):
        status = RuleStatus.from_dict(guardian.demand(Keep(status.rule.id)).data["status"])
    print(f"rule {status.rule.id}: {_outcome(status)}", file=sys.stderr if args.json else sys.stdout)
    return {"status": mitigation_json(status)}


def _not_measured(rule: Rule) -> list[str]:
    """Say what a rule does whose effect packets don't show; empty if they show that of a part."""
    said = [of(kind).not_measured for kind in sorted(rule.kinds)]
    return [*dict.fromkeys(said)] if all(said) else []


def _show_plan(rule: Rule, plan: dict[str, Any], preview: Preview | None, to: TextIO) -> None:
    print(f"{safe_text(rule.summary)}, for {duration(rule.ttl_seconds)}", file=to)
    if lines := _not_measured(rule):
        for line in lines:
            print(f"  {line}", file=to)
    elif preview is None:
        print("  its effect on current traffic could not be measured", file=to)
    else:
        print(f"  {'if it dropped, it ' * rule.counts_only}{harm_line(preview)}", file=to)
        for example in preview.examples:
            print(f"    would drop: {example}", file=to)
        for warning in preview.warnings:
            print(f"  warning: {warning}", file=to)
    for line in plan["commands"]:
        print(f"  {safe_text(line, limit=2000)}", file=to)
    for warning in plan["warnings"]:
        print(f"  warning: {safe_text(warning, limit=1000)}", file=to)
    if plan["needs_force"]:
        print(f"  overly broad: {safe_text(plan['needs_force'])}", file=to)
    if plan["refused"]:
        print(f"  refused: {safe_text(plan['refused'], limit=1000)}", file=to)


def _agreed(broad: str) -> bool:
    """Ask for confirmation; an overly broad rule requires typing "yes" in full."""
    wanted, question = ("yes", "install it anyway? type yes: ") if broad else ("y", "install? [y/N] ")
    return _ask(question).lower() in ({wanted} if broad else {"y", "yes"})


def _keeps(status: RuleStatus) -> bool:
    print(f"rule {status.rule.id} is active for {DEFAULT_CONFIRM_SECONDS} s and then removed")
    return _ask("keep it? [y/N] ").lower() in {"y", "yes"}


def _ask(question: str) -> str:
    try:
        return input(question).strip()
    except EOFError:
        return ""


def _outcome(status: RuleStatus) -> str:
    left = duration((status.expires or time.time()) - time.time() + 0.5)
    if status.state is State.PROVISIONAL:
        return f"provisional; 'fwtop keep {status.rule.id}' confirms it"
    if status.rule.counts_only:
        return f"counts only; expires in {left}; 'fwtop mode {status.rule.id} drop' has it drop"
    return f"{status.state.value}; expires in {left}; 'fwtop undo {status.rule.id}' removes it"
