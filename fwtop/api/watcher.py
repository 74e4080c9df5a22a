"""Follows this machine: kernel, readings compared, the guardian; what is told is numbered and bounded.

Three threads, as each waits for something else. What is told ends in an EventLog.
"""

from __future__ import annotations

import json
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from fwtop.analysis.rule_readings import RuleChanges
from fwtop.client import discovery
from fwtop.client.discovery import GuardianClient
from fwtop.kernel import namespaces
from fwtop.kernel.descriptors import closing
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import API_VERSION, MAX_WAIT_SECONDS, PROGRAM, Changes, Hello, ListShow, Status
from fwtop.model.rule import ACTIVE_STATES, RuleStatus
from fwtop.model.ruleset import (
    COMPARED,
    IPSET,
    IPTABLES_NFT,
    NFT,
    NOTIFIED,
    OURS,
    SOURCES,
    RuleEvent,
)
from fwtop.model.text import safe_text
from fwtop.netfilter.listing.events import Notifications, event_json
from fwtop.netfilter.listing.reader import RulesetReader

KEPT_BYTES = 16 << 20  # of documents; the oldest go


class Kept(NamedTuple):
    """A document, encoded, and what filters look at."""

    seq: int
    event: str
    by: str
    line: bytes


class EventLog:
    """The last documents; any thread adds and reads."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self.name = os.urandom(4).hex()  # another one after each start: cursors of others are not ours
        self.last = 0
        self._most = kept_bytes
        self._kept: deque[Kept] = deque()
        self._bytes = 0
        self._more = threading.Condition()

    def put(self, event: RuleEvent) -> None:
        """Number an event and keep it."""
        with self._more:
            self.last += 1
            line = self.line(event, self.last)
            self._kept.append(Kept(self.last, event.event, event.by, line))
            self._bytes += len(line)
            while self._bytes > self._most and len(self._kept) > 1:
                self._bytes -= len(self._kept.popleft().line)
            self._more.notify_all()

    def line(self, event: RuleEvent, seq: int) -> bytes:
        """Encode a document that a reader gets when it has read up to a number."""
        document: dict[str, Any] = {"seq": seq, "cursor": f"{self.name}-{seq}", **event_json(event)}
        return json.dumps(document).encode() + b"\n"

    def position(self, cursor: str) -> int | None:
        """Return the number that a cursor names, None if the log does not reach back to it."""
        name, _, number = cursor.rpartition("-")
        if name != self.name or not (number.isascii() and number.isdigit()) or int(number) > self.last:
            return None
        return int(number) if int(number) + 1 >= self._first() else None

    def after(self, seq: int, seconds: float, most_bytes: int = 1 << 20) -> tuple[list[Kept], int]:
        """Return documents after a number, waiting for some, and how many before them are gone."""
        with self._more:
            self._more.wait_for(lambda: self.last > seq, seconds)
            missed = max(0, self._first() - seq - 1)
            found, size = [], 0
            for kept in self._from(seq + 1):
                if size >= most_bytes:
                    break
                found.append(kept)
                size += len(kept.line)
            return found, missed

    def _first(self) -> int:
        return self._kept[0].seq if self._kept else self.last + 1

    def _from(self, seq: int) -> list[Kept]:
        """Return what is kept from a number on; readers are mostly near the end."""
        newer: list[Kept] = []
        for kept in reversed(self._kept):
            if kept.seq < seq:
                break
            newer.append(kept)
        return newer[::-1]


_WAKE_SECONDS = 0.5  # to notice the end
_RETRY_SECONDS = 0.5  # until a guardian is looked for again
_SAME_END_SECONDS = 1.0
MEET_SECONDS = 10.0  # for a guardian to start
_RULE_EVENTS = {"rule_added": "added", "rule_changed": "changed", "rule_removed": "removed"}


class Machine(Struct, frozen=True):
    """Where the guardian is, and how one is started there."""

    run_directory: Path
    guardian_arguments: tuple[str, ...] = ()

    def connect(
        self, uid: int = 0, groups: tuple[int, ...] = (), *, readonly: bool = False
    ) -> GuardianClient:
        """Connect to the guardian as a program of a user, starting one if none runs; raises FwtopError.

        It may be of another build: what programs may ask is the same for all.
        """
        hello = Hello(PROGRAM, "", readonly, API_VERSION, None, uid, groups)
        with closing(namespaces.open_netns(None)) as netns:
            return discovery.reach(hello, netns, self.run_directory, self.guardian_arguments)


class Watcher:
    """Fills a log until it is told to end."""

    def __init__(
        self, log: EventLog, machine: Machine, every: float, wanted: Callable[[], bool] = lambda: True
    ) -> None:
        """Compare every so many seconds, while somebody wants to know."""
        self._log = log
        self._machine = machine
        self._every = every
        self._wanted = wanted
        self._own = OwnRules(log, machine)
        try:
            self._notifications: Notifications | None = Notifications()
        except OSError:  # a kernel without nf_tables: everything is compared
            self._notifications = None
        notified = {NFT, IPTABLES_NFT} if self._notifications is not None else set()
        self.sources = {name: NOTIFIED if name in notified else COMPARED for name in (*SOURCES, IPSET)}
        self.ended = threading.Event()
        self._threads = [
            threading.Thread(target=run, name=f"watch-{name}", daemon=True)
            for name, run in (
                ("kernel", self._follow_kernel),
                ("compare", self._compare),
                ("guardian", self._follow_guardian),
            )
        ]

    def start(self) -> None:
        """Start the threads; they end with the process, or after `ended` is set."""
        for thread in self._threads:
            thread.start()

    def met(self, seconds: float) -> bool:
        """Wait until the guardian is followed: a change of its rules from then on is told."""
        return self._own.met.wait(seconds)

    def _follow_kernel(self) -> None:
        """Pass on what the kernel tells, at once."""
        while self._notifications is not None and not self.ended.is_set():
            if select.select([self._notifications], [], [], _WAKE_SECONDS)[0]:
                for event in self._notifications.read():
                    self._log.put(event)

    def _compare(self) -> None:
        """Read again and again, and tell what changed and what is wrong."""
        changes = RuleChanges(frozenset(name for name, how in self.sources.items() if how == NOTIFIED))
        reader, began = RulesetReader(), False
        while not self.ended.is_set():
            due = time.monotonic() + self._every
            if self._wanted():
                found = reader.read()
                for event in [*changes.take(found, self._own.statuses()), *self._own.states()]:
                    self._log.put(event)
                if not began and self.met(MEET_SECONDS):
                    began = True
                    about = {"sources": self.sources, "every": self._every}
                    self._log.put(RuleEvent(time.time(), "watching", "", about=about))
            self.ended.wait(max(0.0, due - time.monotonic()))

    def _follow_guardian(self) -> None:
        while not self.ended.is_set():
            try:
                self._own.follow(self.ended)
            except FwtopError:  # it ended, or none can be started now
                self.ended.wait(_RETRY_SECONDS)


class OwnRules:
    """fwtop's own rules and named lists, as the guardian tells them from number to number."""

    def __init__(self, log: EventLog, machine: Machine) -> None:
        self._log = log
        self._machine = machine
        self._rules: dict[str, dict[str, Any]] | None = (
            None  # statuses of the active ones; None: not yet known
        )
        self._lists: dict[str, dict[str, Any]] = {}
        self._newest = 0  # number of the newest rule that was told
        self._pid = self._since = 0
        self._of = ""  # the guardian's log
        self.met = threading.Event()  # from then on nothing is missed
        self._acting: dict[str, bool] = {}
        self._seen: list[RuleStatus] = []

    def follow(self, ended: threading.Event) -> None:
        """Tell what happens until the guardian ends; raises FwtopError then."""
        with self._machine.connect() as guardian:
            first = guardian.demand(Changes(self._since)).data
            if first["log"] != self._of or first["first"] > self._since + 1:
                events = guardian.demand(Changes()).data["events"] if self.met.is_set() else ()
                self._meet(guardian)
                self._of, self._since = first["log"], first["last"]  # only now: what fails is compared again
                for event in events:
                    if event["seq"] <= self._since and event["event"].startswith("attack_"):
                        self._tell(event, NOTIFIED)
                self.met.set()
            while not ended.is_set():
                found = guardian.demand(Changes(self._since, MAX_WAIT_SECONDS)).data
                if found["first"] > self._since + 1:
                    return  # so much happened at once that the log has lost some: compare
                for event in found["events"]:
                    self._tell(event, NOTIFIED)
                    self._since = event["seq"]

    def statuses(self) -> list[RuleStatus]:
        """Return the present rules, with whether they act; nothing while there is no guardian."""
        try:
            with self._machine.connect() as guardian:
                data = guardian.demand(Status(allow=False)).data
            self._seen = [RuleStatus.from_dict(item) for item in data["rules"]]
        except FwtopError:
            self._seen = []
        return self._seen

    def states(self) -> list[RuleEvent]:
        """Return an event for each rule of the last `statuses` that stopped acting, or acts again."""
        before = self._acting
        self._acting = {item.rule.id: item.acting for item in self._seen}
        return [
            _rule_event(item.to_dict(), "acting", COMPARED, time.time())
            for item in self._seen
            if before.get(item.rule.id, True) != item.acting
        ]

    def _meet(self, guardian: GuardianClient) -> None:
        """Compare with a guardian that is new to us: what happened before we could hear it is told, too."""
        status = guardian.demand(Status(finished=True, allow=False)).data
        lists = {item["name"]: item for item in guardian.demand(ListShow()).data["lists"]}
        former, self._pid = self._pid, int(str(guardian.about["pid"]))
        if former not in (0, self._pid):
            about = {"guardian": guardian.about}
            self._log.put(RuleEvent(time.time(), "guardian_started", NOTIFIED, OURS, "fwtop", about))
        known, old_lists = self._rules, self._lists
        rules = {item["rule"]["id"]: item for item in status["rules"]}
        if known is None:
            self._rules = {key: item for key, item in rules.items() if item["state"] in ACTIVE_STATES}
            self._lists, self._newest = lists, max(map(int, rules), default=0)
            return
        missing = set(range(self._newest + 1, max(map(int, rules), default=0) + 1)) - set(map(int, rules))
        if missing or known.keys() - rules.keys():
            lost = {"missed": len(missing), "of": "fwtop"}
            self._log.put(RuleEvent(time.time(), "gap", COMPARED, OURS, "fwtop", lost))
        for key in sorted(known.keys() - rules.keys(), key=int):  # it ended, and its record is gone, too
            self._tell({"event": "rule_removed", "status": known[key]}, COMPARED)
        for key in sorted(rules, key=int):
            if key not in known and int(key) > self._newest:
                self._tell({"event": "rule_added", "status": rules[key]}, COMPARED)
            over = rules[key]["state"] not in ACTIVE_STATES
            if key in known or over:
                self._tell(
                    {"event": "rule_removed" if over else "rule_changed", "status": rules[key]}, COMPARED
                )
        for name in sorted(old_lists.keys() | lists.keys()):
            self._tell(_list_change(name, old_lists.get(name), lists.get(name)), COMPARED)

    def _tell(self, event: dict[str, Any], how: str) -> None:
        """Tell an event unless it is known already: a log may begin before the state that was read."""
        at = event.get("at") or time.time()
        if event["event"].startswith("attack_"):
            about = {name: value for name, value in event.items() if name not in ("seq", "at", "event")}
            self._log.put(RuleEvent(at, event["event"], how, OURS, "console", about))
        elif "status" in event:
            told = self._take_rule(event["event"], event["status"])
            if told:
                self._log.put(_rule_event(event["status"], _RULE_EVENTS[event["event"]], how, at))
        elif self._take_list(event):
            about = {name: value for name, value in event.items() if name not in ("seq", "at", "event")}
            self._log.put(RuleEvent(at, event["event"], how, OURS, "fwtop", about))

    def _take_rule(self, event: str, status: dict[str, Any]) -> bool:
        rules = self._rules if self._rules is not None else {}
        key = status["rule"]["id"]
        before, is_new = rules.pop(key, None), int(key) > self._newest
        if event == "rule_removed" or (before is None and not is_new):  # none comes back
            return before is not None
        rules[key] = status
        self._newest = max(self._newest, int(key))
        return is_new or (before is not None and _differ(before, status))

    def _take_list(self, event: dict[str, Any]) -> bool:
        before = self._lists.get(event["name"])
        if event["event"] == "list_removed":
            return self._lists.pop(event["name"], None) is not None
        if before is not None and before["stamp"] >= event["stamp"]:
            return False
        self._lists[event["name"]] = {"stamp": event["stamp"], "entries": event["entries"]}
        return True


def _differ(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Tell whether a rule changed: not if only its counters did, or how its end is rounded."""
    if any(old[name] != new[name] for name in ("rule", "state", "note")):
        return True
    ends = [(old.get(name) or 0.0, new.get(name) or 0.0) for name in ("expires", "confirm_by")]
    return any(abs(was - now) > _SAME_END_SECONDS for was, now in ends)


def _rule_event(status: dict[str, Any], change: str, how: str, at: float) -> RuleEvent:
    rule = status["rule"]
    about = {
        "change": change,
        "id": rule["id"],
        "rule": safe_text(rule["summary"]),
        "state": status["state"],
        "acting": status.get("acting", True),
        "status": status,
    }
    return RuleEvent(at, "fwtop_rule", how, OURS, "fwtop", about)


def _list_change(name: str, old: dict[str, Any] | None, new: dict[str, Any] | None) -> dict[str, Any]:
    def entries(item: dict[str, Any]) -> int:
        return int(item["entries"] if "entries" in item else item["ipv4"] + item["ipv6"])

    event = "list_added" if old is None else "list_removed" if new is None else "list_changed"
    told: dict[str, Any] = {"event": event, "name": name}
    told |= {"entries_before": entries(old)} if old is not None else {}
    return told | ({"entries": entries(new), "stamp": new["stamp"]} if new is not None else {})
