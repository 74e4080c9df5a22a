"""Requests that take time run in threads, so that the event loop goes on answering the other clients.

Changes run one after the other, in the order in which they came; questions run beside them. The threads
work in the guardian's namespace: setns(2) before their start holds for them, too.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from fwtop.mitigate.peer import Peer
from fwtop.model.protocol import Answer


@dataclass(frozen=True, slots=True)
class Job:
    """A request under way: `work` answers it, raising nothing."""

    peer: Peer
    work: Callable[[], Answer]
    changes: bool  # rules or the journal: not beside another change


class Jobs:
    """All jobs under way. Everything but a job's work happens in the loop's thread."""

    def __init__(self) -> None:
        self.wake, self._waker = socket.socketpair()
        self.wake.setblocking(False)
        self._waker.setblocking(False)
        self._results: queue.SimpleQueue[tuple[Job, Answer]] = queue.SimpleQueue()
        self._waiting: deque[Job] = deque()
        self._changing: Job | None = None
        self._threads: dict[int, threading.Thread] = {}  # by the id of their job

    @property
    def changing(self) -> bool:
        """Whether a change is under way: clocks and clean-up must wait for it."""
        return self._changing is not None

    def start(self, job: Job) -> None:
        """Run a job now, or after the changes that came before it."""
        if job.changes and self._changing is not None:
            self._waiting.append(job)
            return
        if job.changes:
            self._changing = job
        thread = threading.Thread(target=self._run, args=(job,), name="fwtop-job", daemon=True)
        self._threads[id(job)] = thread
        thread.start()

    def done(self) -> list[tuple[Job, Answer]]:
        """Return the jobs that ended since the last call, and start what waited for them."""
        with contextlib.suppress(BlockingIOError):
            self.wake.recv(4096)
        ended: list[tuple[Job, Answer]] = []
        with contextlib.suppress(queue.Empty):
            while True:
                ended.append(self._results.get_nowait())
        for job, _ in ended:
            self._threads.pop(id(job)).join()
            if job is self._changing:
                self._changing = None
        if self._waiting and self._changing is None:
            self.start(self._waiting.popleft())
        return ended

    def finish(self) -> None:
        """Wait for what runs and forget what has not begun: the guardian ends."""
        self._waiting.clear()
        for thread in list(self._threads.values()):
            thread.join()
        self._changing = None
        self.wake.close()
        self._waker.close()

    def _run(self, job: Job) -> None:
        self._results.put((job, job.work()))
        with contextlib.suppress(BlockingIOError):  # full: the loop is awake anyway
            self._waker.send(b"\0")
