"""Verbs on rules that are there, by number: status, keep, repair, undo, why."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable

from fwtop.cli.options import Verb, add_netns, flag, option, ttl
from fwtop.client import discovery
from fwtop.model.errors import FwtopError
from fwtop.model.paths import RUN_DIRECTORY
from fwtop.model.protocol import DEFAULT_CONFIRM_SECONDS, Keep, Repair, RuleMode, Status, Undo, Why
from fwtop.model.rule import Mode, RuleStatus, State
from fwtop.model.text import safe_text
from fwtop.render.numbers import duration
from fwtop.render.observation import SCHEMA, mitigation_json


def _status_arguments(parser: argparse.ArgumentParser) -> None:
    flag(parser, "--all", "include rules that have ended")
    flag(parser, "--json", "print one JSON document")
    add_netns(parser)


def _status(args: argparse.Namespace) -> int:
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
    print("\n".join(_status_lines(statuses, time.time())) if statuses else "no active rules")
    for warning in data["warnings"]:
        print(f"warning: {safe_text(warning, limit=1000)}")
    print("never cut off (the operator's own entries in full, others in their role only):")
    for entry in sorted(data["allow"], key=lambda entry: entry["tier"] == "learned"):
        tier = f"{entry['tier']}: {entry['passes']}"
        print(f"  {safe_text(entry['prefix']):<40} {safe_text(entry['why'])} ({safe_text(tier)})")
    return 0


def _status_lines(statuses: Iterable[RuleStatus], now: float) -> list[str]:
    lines = [f"{'ID':>4}  {'KIND':<9} {'STATE':<11} {'PACKETS':>12} {'PPS':>9}  {'LEFT':<7} WHAT"]
    for status in statuses:
        until = status.confirm_by if status.state is State.PROVISIONAL else status.expires
        active = status.state in (State.PROVISIONAL, State.CONFIRMED)
        left = duration(until - now) if active and until is not None else "-"
        note = f" ({safe_text(status.note)})" if status.note else ""
        lines.append(
            f"{safe_text(status.rule.id):>4}  {status.rule.kind.value:<9} {status.state.value:<11} "
            f"{status.packets:>12,} {status.pps:>9,.0f}  {left:<7} {safe_text(status.rule.summary)}{note}"
        )
        if status.would_have:
            lines.append(f"      {safe_text(status.would_have, limit=1000)}")
        if active and not status.acting:
            lines.append(
                f"      NOT IN EFFECT: {safe_text(status.not_acting)}; "
                f"'fwtop repair {safe_text(status.rule.id)}' reinstalls it"
            )
    return lines


def _mode_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", nargs="+", metavar="ID", help="rule numbers from 'fwtop status'")
    parser.add_argument("mode", choices=[mode.value for mode in Mode], help="what they do from now on")
    flag(parser, "--yes", "drop without a trial")
    flag(parser, "--force", "have an overly broad rule drop without typed confirmation")
    add_netns(parser)


def _mode(args: argparse.Namespace) -> int:
    """Change the rules; what drops from now on counts again unless it is kept."""
    mode, seconds = Mode(args.mode), 0
    if mode is Mode.DROP and not args.yes:
        seconds = DEFAULT_CONFIRM_SECONDS
    data = discovery.ask(args.netns, RuleMode(tuple(args.id), mode, seconds, args.force))
    for warning in data["warnings"]:
        print(f"warning: {safe_text(warning, limit=1000)}", file=sys.stderr)
    for status in map(RuleStatus.from_dict, data["rules"]):
        on_trial = status.state is State.PROVISIONAL
        then = f" for {seconds} s: 'fwtop keep {status.rule.id}' keeps it so" if on_trial else ""
        does = {Mode.COUNT: "counts only", Mode.OFF: "is off"}.get(status.rule.mode, "drops")
        print(f"rule {status.rule.id} {does}{then} ({safe_text(status.note)})")
    return 0


def _id_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="rule number from 'fwtop status'")
    add_netns(parser)


def _keep_arguments(parser: argparse.ArgumentParser) -> None:
    _id_arguments(parser)
    option(parser, "--ttl", "TIME", "new time to live: 30s, 10m, 2h, 1d", ttl)


def _keep(args: argparse.Namespace) -> int:
    data = discovery.ask(args.netns, Keep(args.id, args.ttl))
    seconds = args.ttl if args.ttl is not None else data["status"]["rule"]["ttl_seconds"]
    print(f"rule {args.id} is confirmed and expires in {duration(seconds)}")
    return 0


def _repair(args: argparse.Namespace) -> int:
    discovery.ask(args.netns, Repair(args.id))
    print(f"rule {args.id} is in effect again")
    return 0


def _undo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", nargs="*", metavar="ID", help="rule numbers from 'fwtop status'")
    flag(parser, "--all", "all rules, and anything a crash left behind")
    overdue = "no rules: give back sysctls whose time is over and whose guardian is gone or hangs"
    flag(parser, "--overdue", overdue)
    add_netns(parser)


def _undo(args: argparse.Namespace) -> int:
    if bool(args.id) + args.all + args.overdue != 1:
        raise FwtopError("name the rules to remove, or --all, or --overdue; nothing was changed", 2)
    if args.overdue:
        return _give_back()
    undone = discovery.ask(args.netns, Undo(tuple(args.id), args.all))["undone"]
    print(f"removed: {', '.join(undone)}" if undone else "no rule was active")
    return 0


def _give_back() -> int:
    """Give back what is overdue in every network namespace; the journal of the system says what."""
    from fwtop.guardian.survival import give_back_everywhere

    if os.geteuid() != 0:
        raise FwtopError("giving sysctls back needs root; nothing was changed; try: sudo fwtop", 3)
    given_back = give_back_everywhere(RUN_DIRECTORY)
    print("\n".join(given_back) if given_back else "no sysctl was overdue")
    return 0


def _why_arguments(parser: argparse.ArgumentParser) -> None:
    _id_arguments(parser)
    flag(parser, "--json", "print one JSON document")


def _why(args: argparse.Namespace) -> int:
    """Print the guardian's explanation; it watches the counters for a second."""
    sentences = discovery.ask(args.netns, Why(args.id), readonly=True)["sentences"]
    if args.json:
        print(json.dumps({"id": args.id, "sentences": sentences}))
        return 0
    print("\n".join(safe_text(sentence, limit=1000) for sentence in sentences))
    return 0


VERBS = {
    "status": Verb(
        "List active rules with their counters, and the allow-list.",
        "fwtop status --json",
        _status_arguments,
        _status,
    ),
    "keep": Verb(
        "Confirm a provisional rule, or restart the time to live of a confirmed one.",
        "fwtop keep 7 --ttl 2h",
        _keep_arguments,
        _keep,
    ),
    "mode": Verb(
        "Have rules drop, or only count what they would drop, with the same objects and counters.",
        "fwtop mode 7 drop",
        _mode_arguments,
        _mode,
    ),
    "repair": Verb(
        "Reinstall the parts of a rule that are missing from the kernel; its time to live runs on.",
        "fwtop repair 7",
        _id_arguments,
        _repair,
    ),
    "undo": Verb(
        "Remove rules, or with --all everything that fwtop installed in the kernel.",
        "fwtop undo --all",
        _undo_arguments,
        _undo,
    ),
    "why": Verb(
        "Explain why a rule has no effect: what takes precedence over it, and where the packets go instead.",
        "fwtop why 7",
        _why_arguments,
        _why,
    ),
}
