"""Verbs on all rules and sets of this machine, whoever made them: a list with rates, a stream of changes."""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fwtop.analysis.rule_readings import RatedRule, RuleAlarm, RuleAlarms, RuleRates
from fwtop.cli.options import Verb, add_netns, flag, option, positive
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import ListShow, Status
from fwtop.model.rule import RuleStatus
from fwtop.model.ruleset import (
    COMPARED,
    IPSET,
    IPTABLES_NFT,
    NFT,
    NOTIFIED,
    OURS,
    SOURCES,
    RuleEvent,
    Ruleset,
)
from fwtop.model.text import safe_text
from fwtop.render.numbers import utc
from fwtop.render.observation import SCHEMA, rfc3339
from fwtop.render.ruleset import SPARK, quantity, rule_json, set_json, set_line, spark, where

if TYPE_CHECKING:
    from fwtop.client.discovery import GuardianClient
    from fwtop.netfilter.listing.events import EventLines, Notifications


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
    from fwtop.kernel.namespaces import enter_named
    from fwtop.netfilter.listing.events import EventLines, Notifications

    if os.geteuid() != 0:
        raise FwtopError("reading the rules needs root; try: sudo fwtop events", 3)
    enter_named(args.netns)
    try:
        notifications: Notifications | None = Notifications()
    except OSError:  # a kernel without nf_tables: everything is compared
        notifications = None
    notified = frozenset({NFT, IPTABLES_NFT}) if notifications is not None else frozenset[str]()
    lines = EventLines(sys.stdout.fileno(), as_json=args.json)
    comparer = threading.Thread(target=_compare, args=(args, lines, notified), name="comparer", daemon=True)
    try:
        comparer.start()
        _pass_on(notifications, lines)
    finally:
        lines.close()
    return 0


def _pass_on(notifications: Notifications | None, lines: EventLines) -> None:
    """Pass on what the kernel tells, at once."""
    while not lines.ended.is_set():
        if notifications is None:
            lines.ended.wait(_WAKE_SECONDS)
            continue
        if select.select([notifications], [], [], _WAKE_SECONDS)[0]:
            for event in notifications.read():
                lines.put(event)


def _compare(args: argparse.Namespace, lines: EventLines, notified: frozenset[str]) -> None:
    """Read again and again, and tell what changed and what is wrong."""
    from fwtop.analysis.rule_readings import RuleChanges
    from fwtop.netfilter.listing.reader import RulesetReader

    watcher = RuleChanges(notified)
    own = _Own(args.netns)
    reader = RulesetReader()
    began = False
    while not lines.ended.is_set():
        due = time.monotonic() + args.every
        found = reader.read()
        statuses, events = own.read()
        for event in [*events, *watcher.take(found, statuses)]:
            lines.put(event)
        if not began:
            began = True
            how = {name: NOTIFIED if name in notified else COMPARED for name in (*SOURCES, IPSET)}
            lines.put(RuleEvent(time.time(), "watching", "", about={"sources": how, "every": args.every}))
        lines.ended.wait(max(0.0, due - time.monotonic()))


class _Own:
    """fwtop's own rules and named lists, as the guardian tells them."""

    def __init__(self, netns: str | None) -> None:
        self._netns = netns
        self._guardian: GuardianClient | None = None
        self._before: dict[str, tuple[str, bool]] | None = None
        self._lists: dict[str, dict[str, Any]] | None = None

    def read(self) -> tuple[list[RuleStatus], list[RuleEvent]]:
        """Return the rules' states, and an event for what changed; nothing while there is no guardian."""
        from fwtop.client import discovery

        try:
            if self._guardian is None:
                self._guardian = discovery.connect(netns=self._netns, readonly=True)
            data = self._guardian.demand(Status(finished=True, allow=False)).data
            lists = self._guardian.demand(ListShow()).data["lists"]
        except FwtopError:  # it was replaced by another build, or killed: the next reading finds the next
            if self._guardian is not None:
                self._guardian.close()
            self._guardian = None
            return [], []
        statuses = [RuleStatus.from_dict(item) for item in data["rules"]]
        now = {item.rule.id: (item.state.value, item.acting) for item in statuses}
        before, self._before = self._before, now
        events = self._list_events({item["name"]: item for item in lists})
        if before is None:
            return statuses, []
        changed = [item for item in statuses if before.get(item.rule.id) != now[item.rule.id]]
        return statuses, [*map(_rule_event, changed), *events]

    def _list_events(self, now: dict[str, dict[str, Any]]) -> list[RuleEvent]:
        """Return an event for each named list that came, went or holds something else."""
        before, self._lists = self._lists, now
        if before is None:
            return []
        events = [_list_event("list_removed", before[name], None) for name in before if name not in now]
        for name, item in now.items():
            old = before.get(name)
            if old is None or old["stamp"] != item["stamp"]:
                events.append(_list_event("list_changed" if old else "list_added", old, item))
        return events


def _list_event(event: str, old: dict[str, Any] | None, new: dict[str, Any] | None) -> RuleEvent:
    counted = {"entries_before": old, "entries": new}
    about: dict[str, Any] = {"name": (new or old or {})["name"]}
    about |= {name: item["ipv4"] + item["ipv6"] for name, item in counted.items() if item is not None}
    return RuleEvent(time.time(), event, COMPARED, OURS, "fwtop", about)


def _rule_event(status: RuleStatus) -> RuleEvent:
    about = {
        "rule": safe_text(status.rule.summary),
        "id": status.rule.id,
        "state": status.state.value,
        "acting": status.acting,
    }
    return RuleEvent(time.time(), "fwtop_rule", COMPARED, OURS, "fwtop", about)


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
