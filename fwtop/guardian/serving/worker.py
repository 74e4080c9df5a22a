"""The worker: the one thread that owns the rules, the journal and every program that changes the kernel.

Requests are served in order. A slow one calls `serve_urgent` between its batches, so that keep, undo,
expiring rules and the counters of `status` never wait for a list of a million prefixes.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import syslog
import threading
import time
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from fwtop.guardian.ownership import claim, release
from fwtop.guardian.rules.lifecycle import Lifecycle
from fwtop.guardian.serving.requests import guarded
from fwtop.kernel import programs
from fwtop.kernel.descriptors import Spare
from fwtop.kernel.programs import RESERVE_SECONDS
from fwtop.model.errors import FwtopError
from fwtop.model.messages import Answer
from fwtop.model.protocol import Request
from fwtop.model.text import safe_text

_RETRY_SECONDS = 1.0
_SPARE = 24  # descriptors for keep, undo and what expires: a program that is run takes eight for a moment
_TOO_LATE = "the guardian was too busy to start this in time: nothing was changed; try again"


class Task(Struct, frozen=True):
    """Work for the worker; `work` raises nothing, `done` is called in the loop's thread."""

    work: Callable[[], Answer]
    done: Callable[[Answer], None]
    quick: bool  # urgent: served between the batches of a slow one
    end: float | None  # when its client gives up, CLOCK_MONOTONIC seconds
    changes: bool  # rules, so that what `status` told before is out of date


class Worker:
    """Runs tasks and the rules' clocks."""

    def __init__(self) -> None:
        """Create the worker; `own` gives it the objects that its thread owns."""
        self.spare = Spare(_SPARE)
        self.wake, self._waker = socket.socketpair()
        self.wake.setblocking(False)
        self._waker.setblocking(False)
        self.version = 0  # of the rules: how often they may have changed
        self.active = False  # there are active rules
        self._owned: tuple[object, ...] = ()
        self._first: Callable[[], None] = lambda: None
        self._notes: tuple[Callable[[], None], ...] = ()
        self._waiting: list[Task] = []
        self._some = threading.Condition()
        self._ending = False
        self._pending = 0
        self._results: queue.SimpleQueue[tuple[Task, Answer]] = queue.SimpleQueue()
        self._tick_at = 0.0
        self._trouble = ""  # what the last tick failed of
        self._inside = False  # a quick task within a slow one
        self._thread = threading.Thread(target=self._run, name="fwtop-worker", daemon=True)

    def own(self, lifecycle: Lifecycle, *others: object) -> None:
        """Take the life cycle, and whatever else only the worker may use once it has started."""
        self._lifecycle = lifecycle
        self._owned = (lifecycle, *others)
        self.active = bool(lifecycle.active)

    def before_all(self, work: Callable[[], None]) -> None:
        """Have something done before the first request, which waits for it."""
        self._first = work
        self.active = True  # perhaps: nobody knows yet

    def after_changes(self, *notes: Callable[[], None]) -> None:
        """Have something done in this thread whenever rules or lists may have changed, and once at first."""
        self._notes = notes

    def start(self) -> None:
        """Start the thread, which owns the rules from now on and begins with what comes before requests."""
        self._thread.start()

    def ask(
        self,
        request: Request,
        work: Callable[[], dict[str, Any]],
        done: Callable[[Answer], None] = lambda _: None,
        *,
        quick: bool = True,
        end: float | None = None,
        changes: bool = False,
    ) -> None:
        """Queue what a request wants; `done` gets its answer in the loop's thread. For the rest, see Task."""
        task = Task(lambda: guarded(request, work), done, quick, end, changes)
        with self._some:
            self._pending += 1
            self._waiting.append(task)
            self._some.notify()

    @property
    def busy(self) -> bool:
        """Whether a task waits, runs, or has an undelivered answer."""
        return self._pending > 0

    def deliver(self) -> None:
        """Pass on the answers of finished tasks; called by the event loop."""
        with contextlib.suppress(BlockingIOError):
            self.wake.recv(4096)
        while not self._results.empty():
            task, answer = self._results.get()
            with self._some:
                self._pending -= 1
            task.done(answer)

    def finish(self) -> None:
        """Serve the urgent tasks, drop slow ones that have not begun, and stop."""
        with self._some:
            self._ending = True
            self._some.notify()
        self._thread.join()
        release(*self._owned)

    def serve_urgent(self) -> None:
        """Serve urgent requests and end expired rules between the batches of slow work."""
        if self._inside or threading.current_thread() is not self._thread:
            return
        self._inside = True
        try:
            while (task := self._take(quick_only=True)) is not None:
                self._serve(task)
            if time.monotonic() >= self._tick_at:
                self._tick()
        finally:
            self._inside = False

    def wait(self, seconds: float) -> None:
        """Sleep within slow work while serving urgent tasks."""
        if threading.current_thread() is not self._thread:
            time.sleep(seconds)
            return
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            pause = max(0.0, min(left, self._tick_at - time.monotonic()))
            with self._some:
                self._some.wait_for(self._is_urgent, timeout=pause)
            self.serve_urgent()

    def _run(self) -> None:
        claim(*self._owned)
        self._begin()
        while True:
            if time.monotonic() >= self._tick_at:
                self._tick()
            with self._some:
                pause = None if self._tick_at == float("inf") else max(0.0, self._tick_at - time.monotonic())
                self._some.wait_for(lambda: self._ending or bool(self._waiting), timeout=pause)
                if self._ending and not self._is_urgent():
                    return
            task = self._take(quick_only=self._ending)
            if task is not None:
                self._serve(task)

    def _begin(self) -> None:
        self._inside = True  # requests wait until the rules are known
        try:
            self._first()
        except Exception as error:  # the kernel's timeouts end what was not adopted
            syslog.syslog(syslog.LOG_ERR, safe_text(f"adoption: {type(error).__name__}: {error}"))
        self._inside = False
        self.active = bool(self._lifecycle.active)
        self._noted()
        self.wake_loop()

    def _take(self, *, quick_only: bool) -> Task | None:
        with self._some:
            task = next((item for item in self._waiting if item.quick or not quick_only), None)
            if task is not None:
                self._waiting.remove(task)
            return task

    def _is_urgent(self) -> bool:
        return any(task.quick for task in self._waiting)

    def _serve(self, task: Task) -> None:
        now = time.monotonic()
        if not task.quick and task.end is not None and task.end - now < RESERVE_SECONDS / 2:
            self._answer(task, Answer(False, _TOO_LATE, 1, reason="busy", retryable=True))
            return
        spare = self.spare.lent() if task.quick else contextlib.nullcontext()
        with spare, programs.until(None if task.quick else task.end):
            answer = task.work()
        if task.changes:
            self._noted()
            self.version += 1
            self._tick_at = time.monotonic()  # a new rule has a new deadline
        self._answer(task, answer)

    def _answer(self, task: Task, answer: Answer) -> None:
        self.active = bool(self._lifecycle.active)
        self._results.put((task, answer))
        self.wake_loop()

    def _tick(self) -> None:
        before = list(self._lifecycle.active)
        trouble = ""
        try:
            with self.spare.lent():
                pause = self._lifecycle.tick()
        except Exception as error:
            # The kernel's own timeouts end the rule all the same; its remains are tried again.
            known = isinstance(error, FwtopError)
            trouble = safe_text(error if known else f"clocks: {type(error).__name__}: {error}")
            pause = _RETRY_SECONDS
        if trouble and trouble != self._trouble:  # once, not each second
            syslog.syslog(syslog.LOG_ERR, trouble)
        self._trouble = trouble
        self._noted()
        self._tick_at = float("inf") if pause is None else time.monotonic() + pause
        if list(self._lifecycle.active) != before:
            self.version += 1
            self.active = bool(self._lifecycle.active)
            self.wake_loop()

    def _noted(self) -> None:
        for note in self._notes:
            try:
                note()
            except Exception as error:  # who follows sees it in `status`; the rules need their worker
                syslog.syslog(syslog.LOG_ERR, safe_text(f"changes: {type(error).__name__}: {error}"))

    def wake_loop(self) -> None:
        """Have the event loop look at what is new; from any thread."""
        with contextlib.suppress(OSError):  # full: the loop is awake anyway
            self._waker.send(b"\0")
