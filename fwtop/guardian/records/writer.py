"""The thread that uses the journal's disk. Others wait for it a bounded time: a disk may never answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from msgspec import Struct, field

from fwtop.model.errors import FwtopError

ANSWER_SECONDS = 2.0  # much longer than a healthy disk takes for a synchronous write
_T = TypeVar("_T")


class NoAnswerError(FwtopError):
    """The disk did not answer in time; what was asked for is done once it does."""


class _Job(Struct):
    """Something to do, and what came of it."""

    work: Callable[[], Any]
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: Exception | None = None


class Writer:
    """Carries out what it is given, in order."""

    def __init__(self, seconds: float = ANSWER_SECONDS) -> None:
        """Start the thread; `seconds` is how long `ask` waits."""
        self._seconds = seconds
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self.stalled = False  # somebody waited in vain, and nothing was finished since
        self._thread = threading.Thread(target=self._run, name="fwtop-journal", daemon=True)
        self._thread.start()

    def ask(self, work: Callable[[], _T]) -> _T:
        """Have something done and return its result; raises what it raises.

        Raises NoAnswerError when it takes too long, at once while the disk is known not to answer: however
        many rules are to be ended, only the first waits.
        """
        if threading.current_thread() is self._thread:
            return work()
        job = self.post(work)
        if not job.done.wait(0.0 if self.stalled else self._seconds):
            self.stalled = True
            raise NoAnswerError("the journal's disk does not answer")
        if job.error is not None:
            raise job.error
        return cast(_T, job.result)

    def post(self, work: Callable[[], Any]) -> _Job:
        """Have something done without waiting for it."""
        job = _Job(work)
        self._jobs.put(job)
        return job

    def finish(self, last: Callable[[], Any]) -> None:
        """Do one thing more and end the thread, unless the disk does not answer in time."""
        job = self.post(last)
        self._jobs.put(None)
        if job.done.wait(self._seconds):
            self._thread.join(self._seconds)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job.result = job.work()
            except Exception as error:  # its reader's to judge
                job.error = error
            job.done.set()
            if self._jobs.empty():
                self.stalled = False
