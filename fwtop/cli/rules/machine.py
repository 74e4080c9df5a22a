"""Verbs on all rules and sets of this machine, whoever made them: a list with rates, a stream of changes."""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fwtop.analysis.rule_readings import RatedRule, RuleAlarm, RuleAlarms, RuleRates
from fwtop.cli.options import Verb, add_netns, flag, option, positive
from fwtop.model import paths
from fwtop.model.errors import FwtopError
from fwtop.model.ruleset import (
    RuleEvent,
    Ruleset,
)
from fwtop.render.numbers import utc
from fwtop.render.observation import (
    SCHEMA,
    SPARK,
    quantity,
    rfc3339,
    rule_json,
    set_json,
    set_line,
    spark,
    where,
)

if TYPE_CHECKING:
    pass


_EVERY_SECONDS = 2
_MOST_PLACE = 44
_CLEAR = "\x1b[H\x1b[2J"
_HEADS = (f"{'packets':>9} {'bytes':>7}", f"{'pps':>8} {'history':<{SPARK}} {'packets':>7}")


def _rules_arguments(parser: argparse.ArgumentParser) -> None:
    flag(parser, "--watch", "go on reading, and show rates; the busiest first")
    option(parser, "--every", "S", "seconds between readings (default 2)", positive, default=_EVERY_SECONDS)
    option(parser, "--readings", "N", "with --watch: end after N readings", positive)
    flag(parser, "--ours", "only fwtop's rules and sets")
    flag(parser, "--json", "print JSON: one document, or one a line with --watch")
    add_netns(parser)


def _rules(args: argparse.Namespace) -> int:
    from fwtop.kernel.namespaces import enter_named
    from fwtop.netfilter.listing.reader import RulesetReader

    if os.geteuid() != 0:
        raise FwtopError("reading the rules needs root; try: sudo fwtop rules", 3)
    enter_named(args.netns)
    reader, rates, alarms = RulesetReader(), RuleRates(), RuleAlarms()
    left = args.readings if args.watch else 1
    while True:
        due = time.monotonic() + args.every
        ruleset = reader.read()
        rated = rates.take(ruleset)
        alarms.take(rated, ruleset.sets)
        _print(args, ruleset, rated, list(alarms.active.values()))
        if left is not None:
            left -= 1
            if left <= 0:
                return 0
        time.sleep(max(0.0, due - time.monotonic()))


def _print(
    args: argparse.Namespace, ruleset: Ruleset, rated: Sequence[RatedRule], alarms: Sequence[RuleAlarm]
) -> None:
    shown = [item for item in rated if item.rule.ours or not args.ours]
    sets = [item for item in ruleset.sets if item.ours or not args.ours]
    if args.json:
        document = {
            "schema": SCHEMA,
            "taken": rfc3339(ruleset.taken),
            "rules": [_rated_json(item) for item in shown],
            "sets": [set_json(item) for item in sets],
            "alarms": [{"kind": item.kind, "text": item.text, "mend": item.mend} for item in alarms],
            "rules_total": ruleset.rules_total,
            "notes": list(ruleset.notes),
        }
        print(json.dumps(document), flush=True)
        return
    if args.watch:
        shown.sort(key=lambda item: (item.pps or 0.0, item.rule.packets or 0), reverse=True)
    told = [f"alarm: {item.text}" + (f"; {item.mend}" if item.mend else "") for item in alarms]
    last = [*told, *map(set_line, sets), *(f"note: {note}" for note in ruleset.notes)]
    lines = _rule_lines(shown, watch=args.watch)
    if args.watch and sys.stdout.isatty():
        _draw(lines, last, ruleset)
    else:
        print("\n".join([*lines, *last]) if shown or last else "no rules and no sets", flush=True)


def _rated_json(item: RatedRule) -> dict[str, Any]:
    """Return a rule with its rates; these are null in a first reading."""
    return {
        **rule_json(item.rule),
        "pps": None if item.pps is None else round(item.pps, 1),
        "bytes_per_s": None if item.bps is None else round(item.bps, 1),
        "history": [round(value, 1) for value in item.history],
        "usual_pps": None if item.usual is None else round(item.usual, 1),
        "abnormal": item.abnormal,
    }


def _rule_lines(rated: Sequence[RatedRule], *, watch: bool) -> list[str]:
    width = min(max((len(where(item.rule)) for item in rated), default=0), _MOST_PLACE)
    lines = [f"{_HEADS[watch]}  {'where':<{width}}  rule"] if rated else []
    for item in rated:
        rule = item.rule
        if watch:
            drawn = spark(item.history)
            counts = f"{quantity(item.pps):>8} {drawn:<{SPARK}} {quantity(rule.packets):>7}"
        else:
            counts = f"{quantity(rule.packets):>9} {quantity(rule.bytes):>7}"
        own = " (fwtop)" if rule.ours else ""
        lines.append(f"{counts}  {where(rule):<{width}}  {rule.text}{own}")
    return lines


def _draw(lines: Sequence[str], last: Sequence[str], ruleset: Ruleset) -> None:
    """Fill the terminal: as many rules and sets as there is room for."""
    width, height = shutil.get_terminal_size()
    room = max(height - 2, 1)
    below = list(last[: max(room // 3, 1)])
    shown = list(lines[: room - len(below)])
    title = f"{ruleset.rules_total:,} rules, {len(ruleset.sets):,} sets · {utc(ruleset.taken)} · Ctrl+C ends"
    text = "\n".join(line[:width] for line in (title, *shown, *below))
    print(f"{_CLEAR}{text}", end="", flush=True)


_COMPARED_SECONDS = 5
_WAKE_SECONDS = 0.5  # to notice that the reader has gone


def _events_arguments(parser: argparse.ArgumentParser) -> None:
    every = "seconds between two readings of what is compared (default 5)"
    option(parser, "--every", "S", every, positive, default=_COMPARED_SECONDS)
    flag(parser, "--json", "print a JSON document for each event")
    add_netns(parser)


def _events(args: argparse.Namespace) -> int:
    """Stream until interrupted, or until the reader has gone."""
    from fwtop.api.watcher import EventLog, Machine, Watcher
    from fwtop.kernel.namespaces import enter_named
    from fwtop.netfilter.listing.events import event_text

    if os.geteuid() != 0:
        raise FwtopError("reading the rules needs root; try: sudo fwtop events", 3)
    enter_named(args.netns)
    log, at = EventLog(), 0
    Watcher(log, Machine(paths.RUN_DIRECTORY), args.every).start()
    gone = select.poll()
    gone.register(sys.stdout, 0)
    while not gone.poll(0):
        found, missed = log.after(at, _WAKE_SECONDS)
        documents = [json.loads(kept.line) for kept in found]
        if missed:
            lost = RuleEvent(time.time(), "events_lost", "", about={"count": missed})
            documents.insert(0, json.loads(log.line(lost, at + missed)))
        for document in documents:
            print(json.dumps(document) if args.json else event_text(document))
        sys.stdout.flush()
        at = found[-1].seq if found else at
    return 0


VERBS = {
    "rules": Verb(
        "List every rule and set on this machine, fwtop's and others', with packets and bytes: iptables "
        "(legacy and nf_tables), nft, ipset, tc, XDP, and routes that discard. --watch shows their rates.",
        "sudo fwtop rules --watch",
        _rules_arguments,
        _rules,
    ),
    "events": Verb(
        "Stream alarms and every change to the rules and sets on this machine, whoever makes it. "
        "nf_tables is notified by the kernel; iptables-legacy, ipset, tc, XDP and routes are compared.",
        "sudo fwtop events --json",
        _events_arguments,
        _events,
    ),
}
