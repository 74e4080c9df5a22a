"""Observe in short windows when observing every packet would slow the receiving core down.

An attached hook costs 30 to 80 ns a packet for its dispatch alone (two indirect calls, with retpolines): at
1.5 million packets a second that is 15 % of a core. Detached, it costs nothing. So when observing everything
would cost more than a limit, on a processor that has no time to spare, the console detaches the programs and
attaches them again for a short window several times a second, at random intervals. Within a window all hooks
count the same packets; the interface's own counters tell how many arrived in total, and what the windows saw
is scaled up to it.

A process that was handed a program may attach it without privileges: see bpf_raw_tp_link_attach,
tcx_link_attach and bpf_nf_link_attach in the kernel, and tests/kernel/test_observe_attach.py. At tc it takes
10 to 60 ms, which the kernel spends waiting (RCU) while the program is not called yet; elsewhere it takes
0.3 ms. So a thread does it, and tc comes first: nothing else is attached while that waits.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import threading
import time
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from fwtop.observe.messages import Attachment, AttachPoint

LIMIT = 0.015  # of a core: above this cost, start windows
RELEASE = 0.01  # below this cost, stop them
SPARE = 0.15  # of a core: no windows while the receiving core idles more than this
SPARE_AGAIN = 0.3  # stop them when it would idle more than this even without windows
_BUDGET = 0.006  # of a core: what the windows may cost
_WINDOW_SECONDS = 0.01  # at least; attaching and detaching around it add 3 ms of dispatch
_PERIOD_SECONDS = 0.2  # from window to window: each costs this process 1 to 2 ms
_LONGEST_PAUSE_SECONDS = 0.4  # an attack that changes must show within a second
_JOIN_SECONDS = 2.0

_AT_TC = frozenset({"tcx", "egress"})
ALL_KINDS = _AT_TC | {"tracepoint", "netfilter"}


class Switch(Protocol):
    """Starts and stops counting in the attached programs."""

    def enable(self) -> None:
        """Let all hooks count, from the next packet on that arrives."""
        ...

    def disable(self) -> None:
        """Stop counting at all hooks at once."""
        ...


class _Attached(Struct):
    point: AttachPoint
    program: int
    link: int | None


class DutyCycle:
    """Owns the links; detaches and attaches the programs as `set_cost` demands.

    It takes over the descriptors it is given. Without attachments (an older kernel) it never pauses.
    """

    def __init__(self, switch: Switch, attachments: Sequence[Attachment], fds: dict[str, int]) -> None:
        self._switch = switch
        self._attached = [_Attached(item.point, fds[item.program], fds[item.link]) for item in attachments]
        # Slow ones first; the sort keeps the order of the rest
        self._attached.sort(key=lambda item: item.point.kind not in _AT_TC)
        self._links = threading.Lock()  # held while links are created and closed
        self._window_began = time.monotonic()
        self._waited = 0.0
        self._share = 1.0
        self._costly = ALL_KINDS
        self._windows = False
        self._observing = True
        self._paused = False
        self._error = ""
        self._wake = threading.Condition()
        self._stop = False
        self._thread: threading.Thread | None = None
        switch.enable()

    @property
    def error(self) -> str:
        """Why observing ended; empty while it goes on."""
        return self._error

    @property
    def share(self) -> float:
        """The share of time to be observed from now on."""
        return self._share

    @property
    def paused(self) -> bool:
        """Whether observing paused since the last call of `take_paused`, or is about to."""
        with self._wake:
            return self._paused or self._windows or not self._observing

    def take_paused(self) -> bool:
        """Return whether observing paused since the last call, and reset that."""
        with self._wake:
            paused, self._paused = self._paused, self._windows or not self._observing
        return paused

    def set_cost(self, cost: float, idle: float, costly: frozenset[str] = ALL_KINDS) -> None:
        """Set what observing every packet would cost, and the idle time left, as shares of the busiest core.

        Only attach points of the `costly` kinds are detached between windows: a hook that few packets pass
        costs next to nothing while counting is disabled, but attaching to it has a price.
        """
        if not self._attached:
            return
        with self._wake:
            if self._windows:
                self._windows = cost > RELEASE and idle - cost < SPARE_AGAIN
            else:
                self._windows = cost > LIMIT and idle < SPARE
            self._paused |= self._windows
            self._share = min(1.0, _BUDGET / cost) if self._windows else 1.0
            self._costly = costly
            self._wake.notify()
        if self._windows and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="fwtop-duty-cycle", daemon=True)
            self._thread.start()

    def move(self, ifindex: int, to: int) -> None:
        """Attach to another interface in place of one that is gone; raises OSError."""
        with self._links:
            for item in self._attached:
                if item.point.kind == "tcx" and item.point.ifindex == ifindex:
                    _detach(item)
                    item.point = replace(item.point, ifindex=to)
                    item.link = _attach(item) if self._observing else None

    def close(self) -> None:
        """Stop the thread and detach."""
        with self._wake:
            self._stop = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)
        self._switch.disable()
        for item in self._attached:
            _detach(item)

    def _run(self) -> None:
        while self._wait_for_windows():
            with self._links:
                seconds = self._end_window()
            pause = min(seconds * (1 / self._share - 1), _LONGEST_PAUSE_SECONDS)
            self._sleep(pause * random.uniform(0.6, 1.4) - self._waited)  # noqa: S311
            with self._links:
                self._begin_window()
            time.sleep(max(_WINDOW_SECONDS, _PERIOD_SECONDS * self._share))

    def _wait_for_windows(self) -> bool:
        with self._wake:
            self._wake.wait_for(lambda: self._stop or self._windows)
        return not self._stop

    def _end_window(self) -> float:
        """Detach what is costly; returns how long the window was."""
        with self._wake:  # `set_cost` may have ended the windows since this thread last ran
            self._observing = False
            self._paused = True
        self._switch.disable()
        detached = time.monotonic()
        for item in reversed(self._attached):
            if item.point.kind in _AT_TC:
                detached = time.monotonic()
            if item.point.kind in self._costly:
                _detach(item)
        self._waited = time.monotonic() - detached
        return detached - self._window_began

    def _begin_window(self) -> None:
        """Attach everything; counting then begins with the first packet that arrives."""
        started, began = time.monotonic(), 0.0
        try:
            for item in self._attached:
                if item.link is None:
                    item.link = _attach(item)
                began = began or time.monotonic()
        except OSError as error:
            self._error = f"the observers could not be attached again: {error.strerror}"
            self._stop = True
        self._window_began = began
        self._waited += began - started
        self._switch.enable()
        self._observing = not self._stop

    def _sleep(self, seconds: float) -> None:
        with self._wake:
            self._wake.wait_for(lambda: self._stop or not self._windows, max(0.0, seconds))


def _attach(item: _Attached) -> int | None:
    try:
        return item.point.attach(item.program)
    except OSError as error:
        if error.errno != errno.ENODEV:  # this interface is gone; the others remain
            raise
        return None


def _detach(item: _Attached) -> None:
    if item.link is not None:
        with contextlib.suppress(OSError):
            os.close(item.link)
        item.link = None
