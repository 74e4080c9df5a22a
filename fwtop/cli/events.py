"""fwtop events: stream changes to the machine's rules and sets, whoever makes them."""

from __future__ import annotations

import argparse
import os
import select
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from fwtop.cli.options import add_netns, flag, option, positive
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import ListShow, Status
from fwtop.model.rule import RuleStatus
from fwtop.model.ruleset import COMPARED, IPSET, IPTABLES_NFT, NFT, NOTIFIED, OURS, SOURCES, RuleEvent
from fwtop.model.text import safe_text

if TYPE_CHECKING:
    from fwtop.client.discovery import GuardianClient
    from fwtop.netfilter.listing.events import EventLines, Notifications


HELP = (
    "Stream alarms and every change to the rules and sets on this machine, whoever makes it. "
    "nf_tables is notified by the kernel; iptables-legacy, ipset, tc, XDP and routes are compared."
)
EXAMPLE = "sudo fwtop events --json"
_EVERY_SECONDS = 5
_WAKE_SECONDS = 0.5  # to notice that the reader has gone


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    every = "seconds between two readings of what is compared (default 5)"
    option(parser, "--every", "S", every, positive, default=_EVERY_SECONDS)
    flag(parser, "--json", "print a JSON document for each event")
    add_netns(parser)


def run(args: argparse.Namespace) -> int:
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
