"""A connection of the stream without a guardian: readers who stall, and lines that are too much."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from fwtop.api import serving
from fwtop.api.serving import Budget, Means, Session
from fwtop.api.watcher import EventLog, OwnRules
from fwtop.model.errors import FwtopError
from fwtop.model.messages import Answer
from fwtop.model.ruleset import NOTIFIED, RuleEvent


class Guardian:
    """Answers that a program may ask, or that it may not any more."""

    def __init__(self) -> None:
        self.denied = False

    def exchange(self, *_: object, **__: object) -> tuple[Answer, list[int]]:
        if self.denied:
            raise FwtopError("changes needs the scope 'read'", 3)
        return Answer(True, data={"rules": [], "lists": []}), []

    def close(self) -> None:
        pass


class Talk:
    """A session with its program's end of the connection."""

    def __init__(self, log: EventLog, budget: Budget | None = None) -> None:
        self.guardian = Guardian()
        machine: Any = SimpleNamespace(connect=lambda *_, **__: self.guardian)
        watcher: Any = SimpleNamespace(met=lambda _: True, sources={})
        mine, self.sock = socket.socketpair()
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 12)
        self.sock.settimeout(60)
        self.session = Session(mine, 1000, (), Means(machine, log, watcher, budget or Budget()))
        self.thread = threading.Thread(target=self.session.run, daemon=True)
        self.thread.start()
        self.lines = self.sock.makefile("rb")

    def send(self, line: bytes) -> None:
        self.sock.sendall(line)

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.lines.readline())
        return found

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: object) -> None:
        self.lines.close()
        self.sock.close()
        self.thread.join(60)
        assert not self.session.is_open


def change(text: str = "x" * 2000) -> RuleEvent:
    return RuleEvent(1.0, "rule_added", NOTIFIED, about={"rule": text})


def test_a_reader_who_stalls_is_told_how_much_it_missed_and_holds_up_nothing() -> None:
    log = EventLog(kept_bytes=100_000)
    with Talk(log) as talk:
        talk.send(b'{"verb": "watch", "number": 3, "state": false}\n')
        assert talk.read()["number"] == 3
        for _ in range(2_000):
            log.put(change())
        seen = [talk.read()]
        while seen[-1]["seq"] < 2_000:
            seen.append(talk.read())
    missed = sum(item["missed"] for item in seen if item["event"] == "gap")
    told = [item["seq"] for item in seen if item["event"] != "gap"]
    assert missed > 1_000
    assert missed + len(told) == 2_000, "each is told, or counted"
    assert told == sorted(set(told))


def test_a_cursor_goes_on_where_it_was_and_an_unknown_one_gets_a_gap() -> None:
    log = EventLog()
    for _ in range(5):
        log.put(change())
    with Talk(log) as talk:
        request = {"verb": "watch", "since": f"{log.name}-3", "events": ["rule_added"]}
        talk.send(json.dumps(request).encode() + b"\n")
        assert talk.read()["data"]["cursor"] == f"{log.name}-3"
        assert [talk.read()["seq"] for _ in range(2)] == [4, 5]
    with Talk(log) as talk:
        talk.send(b'{"verb": "watch", "since": "other-3", "state": false}\n')
        assert talk.read()["ok"]
        gap = talk.read()
        assert (gap["event"], gap["missed"], gap["cursor"]) == ("gap", None, f"{log.name}-5")


def test_who_loses_its_scope_is_told_and_hears_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_SCOPE_SECONDS", 0.0)
    with Talk(EventLog()) as talk:
        talk.send(b'{"verb": "watch", "state": false}\n')
        assert talk.read()["ok"]
        talk.guardian.denied = True
        last = talk.read()
        assert (last["ok"], last["code"], last["reason"]) == (False, 3, "no_access")
        assert talk.lines.readline() == b""


def test_one_user_can_not_take_all_that_lines_may_hold() -> None:
    budget = Budget(total=1 << 20)
    with Talk(EventLog(), budget) as talk:
        with suppress(BrokenPipeError):  # it hangs up at the first byte too many
            talk.send(b"x" * (600 << 10))
        answer = talk.read()
        assert (answer["reason"], answer["retryable"]) == ("busy", True)
    assert budget.take(1000, 1 << 19), "what is closed holds nothing"
    assert budget.take(1001, 1 << 19)
    assert not budget.take(1002, 1)


@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_last_line_needs_no_end(end: bytes) -> None:
    with Talk(EventLog()) as talk:
        talk.send(b'{"verb": "quark", "number": 1}\n\n  \n{"number": 2, "verb": "status"}' + end)
        talk.sock.shutdown(socket.SHUT_WR)
        assert [talk.read()["number"] for _ in range(2)] == [1, 2]
        assert talk.lines.readline() == b""


def test_a_line_that_does_not_end_in_time_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_LINE_SECONDS", 0.05)
    with Talk(EventLog()) as talk:
        talk.send(b'{"verb": "sta')
        assert talk.read()["reason"] == "timeout"
        assert talk.lines.readline() == b""


class Brief:
    """A guardian that ends, or can't be reached any more, after some answers."""

    def __init__(self, pid: int, answers: int) -> None:
        self.about = {"pid": pid}
        self._left = answers

    def demand(self, _: object) -> Answer:
        if not self._left:
            raise FwtopError("it ended", reason="unavailable", retryable=True)
        self._left -= 1
        about = {"log": str(self.about["pid"]), "first": 1, "last": 0, "events": ()}
        return Answer(True, data={**about, "rules": (), "lists": ()})


def test_a_guardian_that_could_not_be_asked_all_is_told_of_when_it_can() -> None:
    log = EventLog()
    guardians = [Brief(1, 9), *(Brief(2, answers) for answers in (0, 1, 2, 3, 9, 9))]
    machine: Any = SimpleNamespace(connect=lambda: nullcontext(guardians.pop(0)))
    own = OwnRules(log, machine)
    while guardians:
        with pytest.raises(FwtopError, match="it ended"):
            own.follow(threading.Event())
    assert [kept.event for kept in log.after(0, 0.0)[0]] == ["guardian_started"]
