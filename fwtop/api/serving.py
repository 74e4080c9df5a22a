"""A connection of the stream: lines in, lines out, and a guardian's connection of its own behind it.

A thread each, which waits for its program alone. What a program can make this process hold is bounded: so
much of lines in all, half of it for one user, so many seconds for a line to come to its end. The guardian
gets only what is a request, of the lengths that it takes from anybody.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fwtop.api.messages import EVENTS, Watch, carried
from fwtop.api.watcher import MEET_SECONDS, EventLog, Kept, Machine, Watcher
from fwtop.client.discovery import GuardianClient
from fwtop.kernel.children import LastClosers
from fwtop.model.errors import FwtopError
from fwtop.model.messages import (
    Answer,
    NumberedRequest,
    ProtocolError,
    encode_answer,
    number_in,
    parse_request,
)
from fwtop.model.protocol import API_VERSION, PROGRAM, Apply, Changes, Hello, ListShow, Request, Status
from fwtop.model.ruleset import NOTIFIED, RuleEvent
from fwtop.model.wire import FieldError, of_plain
from fwtop.netfilter.listing.reader import RulesetReader
from fwtop.render.observation import rule_json, set_json

MAX_LINE = 32 << 20  # bytes: two million addresses
_HELD = 128 << 20  # bytes of lines that are not whole yet, in all
_LINE_SECONDS = 60.0  # for a line to come to its end
_STALLED_SECONDS = 30.0  # an answer that nobody takes
_IDLE_STALLED_SECONDS = 3600.0  # a document: its reader is told later what it missed
_SCOPE_SECONDS = 10.0  # between two looks whether who follows still may
_RECEIVE = 1 << 16
_SHORT = 1 << 14  # bytes of a request to follow
_PARSING = threading.Lock()
_NOTHING = Changes(1 << 52)  # asks whether one may ask, and which attacks go on


class Budget:
    """How much of lines is held, by user; of all threads."""

    def __init__(self, total: int = _HELD) -> None:
        self._total = total
        self._of: Counter[int] = Counter()
        self._lock = threading.Lock()

    def take(self, uid: int, size: int) -> bool:
        """Take some, unless it is more than a user, or all together, may have."""
        with self._lock:
            if self._of[uid] + size > self._total // 2 or self._of.total() + size > self._total:
                return False
            self._of[uid] += size
            return True

    def give(self, uid: int, size: int) -> None:
        """Give it back."""
        with self._lock:
            self._of[uid] -= size


class Means(Struct, frozen=True):
    """What all connections share."""

    machine: Machine
    log: EventLog
    watcher: Watcher
    budget: Budget


class Session:
    """One program's connection."""

    def __init__(self, sock: socket.socket, uid: int, groups: tuple[int, ...], means: Means) -> None:
        self.uid = uid
        self.follows = False
        self.is_open = True
        self._sock = sock
        self._groups = groups
        self._means = means
        self._guardian: GuardianClient | None = None
        self._readonly = False

    def run(self) -> None:
        """Serve until the program ends, or breaks the frame; never raises."""
        try:
            for line in self._lines():
                self._serve(line)
        except _BrokenFrame as error:
            self._say(Answer.of(error.said), patience=1.0)
        except MemoryError:
            self._say(Answer(False, "there is no memory for this line", 1, reason="too_long"), patience=1.0)
        except OSError:
            pass  # it is gone, or takes no answer
        finally:
            self._leave()
            self._sock.close()  # with a lingering socket in it that can last: the connection counts till then
            self.is_open = False

    def refuse(self, why: str, closers: LastClosers) -> None:
        """Say why this connection is closed at once; what it carries keeps nobody waiting here."""
        with contextlib.suppress(OSError):
            self._say(Answer(False, why, 1, reason="too_many", retryable=True), patience=1.0)
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
            if self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                closers.close(self._sock)
        self._sock.close()

    def _lines(self) -> Iterator[bytes]:
        held, began, taken = bytearray(), 0.0, 0
        try:
            while True:
                self._sock.settimeout(max(0.0, began + _LINE_SECONDS - time.monotonic()) if held else None)
                try:
                    data = self._sock.recv(_RECEIVE)
                except (TimeoutError, BlockingIOError):
                    raise _BrokenFrame("a line must end within a minute", "timeout") from None
                if not data:
                    break
                began = began if held else time.monotonic()
                if len(held) + len(data) > MAX_LINE:
                    raise _BrokenFrame(f"a line has at most {MAX_LINE:,} bytes", "too_long")
                if not self._means.budget.take(self.uid, len(data)):
                    raise _BrokenFrame("too many long lines are under way: try again", "busy", again=True)
                taken += len(data)
                held += data
                if b"\n" not in data:
                    continue
                *lines, held = held.split(b"\n")
                for line in lines:
                    if line.strip():
                        yield bytes(line)
                lines = []
                self._means.budget.give(self.uid, taken - len(held))
                taken, began = len(held), time.monotonic()
            if held.strip():  # its last line, without an end
                yield bytes(held)
        finally:
            self._means.budget.give(self.uid, taken)

    def _serve(self, line: bytes) -> None:
        number = number_in(line)
        try:
            if (wanted := _to_watch(line)) is not None:
                self._follow(*wanted)
                return
            with _PARSING:  # one at a time: what is in a long line may take ten times its memory
                asked = parse_request(line)
            number = asked.number
            answer = Answer(True, data=self._answer(asked), number=number)
        except ProtocolError as error:
            answer = error.answer()
        except FwtopError as error:
            answer = Answer.of(error)
        except (ValueError, RecursionError) as error:
            answer = Answer(False, f"not understood: {error}"[:500], 2)
        self._say(answer, number=number)

    def _answer(self, asked: NumberedRequest) -> dict[str, Any]:
        request = asked.request
        if isinstance(request, Hello):
            return self._greet(request)

        def exchange(request: Request, attached: int | None) -> tuple[Answer, list[int]]:
            return self._ask(request, attached, asked.seconds)

        return carried(exchange, request)

    def _greet(self, hello: Hello) -> dict[str, Any]:
        if hello.role != PROGRAM:
            raise FwtopError(f"this socket is for programs: the role is {PROGRAM!r}", 2, field="role")
        low, high = hello.versions or (hello.version, hello.version)
        if not low <= API_VERSION <= high:
            field = "versions" if hello.versions else "version"
            line = f"this is version {API_VERSION}, not {low}" + (f" to {high}" if high != low else "")
            raise FwtopError(line, 2, reason="version", field=field)
        self._leave()
        self._readonly = hello.readonly
        return self._connected().greeting

    def _connected(self) -> GuardianClient:
        if self._guardian is None:
            self._guardian = self._means.machine.connect(self.uid, self._groups, readonly=self._readonly)
        return self._guardian

    def _ask(
        self, request: Request, attached: int | None = None, seconds: float | None = None
    ) -> tuple[Answer, list[int]]:
        """Ask the guardian; what may be repeated is asked again of its successor. Raises FwtopError."""
        keyed = isinstance(request, Apply) and bool(request.rule.get("key"))
        for last in (request.changes and not keyed, True):
            try:
                return self._connected().exchange(request, attached, timeout=seconds)
            except FwtopError as error:
                if error.reason in ("unavailable", "timeout"):
                    self._leave()
                if error.reason != "unavailable" or last:
                    raise
        raise AssertionError

    def _leave(self) -> None:
        if self._guardian is not None:
            self._guardian.close()
        self._guardian = None

    def _say(self, answer: Answer, *, number: int = 0, patience: float = _STALLED_SECONDS) -> None:
        told = replace(answer, number=number or answer.number)
        self._send(encode_answer(told) + b"\n", patience)

    def _send(self, data: bytes, patience: float) -> None:
        """Send as fast as the program takes it; raises OSError if it takes nothing for so long."""
        self._sock.settimeout(patience)
        view = memoryview(data)
        while view:
            view = view[self._sock.send(view[:_RECEIVE]) :]

    def _follow(self, wanted: Watch, number: int) -> None:
        """Send documents until the program closes its end."""
        log = self._means.log
        self._ask(_NOTHING)  # whether it may
        if not self._means.watcher.met(MEET_SECONDS):
            raise FwtopError("no guardian can be followed now", reason="unavailable", retryable=True)
        self.follows = True
        position = log.position(wanted.since) if wanted.since else None
        start = log.last if position is None else position
        told = {"cursor": f"{log.name}-{start}", "sources": self._means.watcher.sources}
        self._say(Answer(True, data=told), number=number)
        if wanted.since and position is None:
            self._tell("gap", start, {"of": "stream", "missed": None})
        if wanted.state and position is None:
            self._tell("state", start, self._state())
        at, look = start, time.monotonic() + _SCOPE_SECONDS
        while not self._gone():
            found, missed = log.after(at, 1.0)
            if missed:
                self._tell("gap", at + missed, {"of": "stream", "missed": missed})
            lines = [kept.line for kept in found if _wants(wanted, kept)]
            self._send(b"".join(lines), _IDLE_STALLED_SECONDS)
            at = found[-1].seq if found else at
            if time.monotonic() >= look:
                look = time.monotonic() + _SCOPE_SECONDS
                self._check_scope()

    def _check_scope(self) -> None:
        try:
            self._ask(_NOTHING)
        except FwtopError as error:
            if error.reason == "no_access":
                raise _BrokenFrame(str(error), error.reason, error.code) from None

    def _state(self) -> dict[str, Any]:
        """Read everything now; what happens meanwhile is told afterwards, too."""
        found = RulesetReader().read()
        status = self._ask(Status(allow=False))[0].data
        return {
            "fwtop_rules": status["rules"],
            "lists": self._ask(ListShow())[0].data["lists"],
            "attacks": self._ask(_NOTHING)[0].data["attacks"],
            "rules": [rule_json(item) for item in found.rules],
            "sets": [set_json(item) for item in found.sets],
            "notes": list(found.notes),
        }

    def _tell(self, event: str, seq: int, about: dict[str, Any]) -> None:
        line = self._means.log.line(RuleEvent(time.time(), event, NOTIFIED, "fwtop", "fwtop", about), seq)
        self._send(line, _IDLE_STALLED_SECONDS)

    def _gone(self) -> bool:
        """Tell whether the program closed the connection, not only its own side of it."""
        poll = select.poll()
        poll.register(self._sock, 0)
        return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))


class _BrokenFrame(Exception):
    def __init__(self, said: str, reason: str, code: int = 2, *, again: bool = False) -> None:
        super().__init__(said)
        self.said = FwtopError(said, code, reason=reason, retryable=again)


def _to_watch(line: bytes) -> tuple[Watch, int] | None:
    """Return a request to follow, and its number; None for any other. Raises ProtocolError."""
    if len(line) > _SHORT or b"watch" not in line:
        return None
    try:
        given = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(given, dict) or given.pop("verb", None) != "watch":
        return None
    number, _ = given.pop("number", 0), given.pop("seconds", None)
    number = number if type(number) is int and 0 <= number < 1 << 53 else 0
    try:
        wanted = of_plain(Watch, given)
    except FieldError as error:
        raise ProtocolError(f"watch: {error}", number, "invalid", error.field) from None
    if unknown := set(wanted.events) - set(EVENTS):
        known = f"there is no event {min(unknown)[:40]!r}; there are {', '.join(EVENTS)}"
        raise ProtocolError(known, number, "invalid", "events")
    if wanted.by not in ("", "fwtop", "other"):
        raise ProtocolError("by must be fwtop or other", number, "invalid", "by")
    return wanted, number


def _wants(wanted: Watch, kept: Kept) -> bool:
    if kept.event in ("gap", "guardian_started"):
        return True
    if wanted.events and kept.event not in wanted.events:
        return False
    return not wanted.by or kept.by == wanted.by
