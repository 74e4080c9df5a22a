"""Watch through windows of time where watching every packet would slow the receiving core down.

A hook that is attached costs 30 to 80 ns a packet in its dispatch alone (two indirect calls, with
retpolines): at 1.5 million packets a second that is 15 % of a core. Detached, it costs nothing. So when
watching everything would cost more than a limit, on a processor that has nothing to spare, the console
detaches, and attaches again for a short window several times a second, at random distances. Within a
window all hooks count the same packets; what arrived in all is known from the interface's own counters,
and what the windows saw is scaled up to it.

Attaching needs no privilege of a process that was handed the program: see bpf_raw_tp_link_attach,
tcx_link_attach and bpf_nf_link_attach in the kernel, and test_shutter. At tc it takes 10 to 60 ms, which
the kernel spends waiting (RCU), not working, and with the program not called yet; elsewhere 0.3 ms. So a
thread does it, and tc's comes first: nothing else is attached while that one waits.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import threading
import time
from dataclasses import dataclass, replace
from typing import Any, Protocol

from fwtop.collect import bpf

LIMIT = 0.015  # of a core: up to this, everything is watched
RELEASE = 0.01  # below this, everything is watched again
SPARE = 0.15  # of a core: everything is watched while the receiving core idles more than this, too
SPARE_AGAIN = 0.3  # and again when it would idle more than this with everything watched
_BUDGET = 0.006  # of a core: what the windows may cost
_WINDOW_SECONDS = 0.01  # at least; attaching and detaching around it take 3 ms of dispatch, too
_PERIOD_SECONDS = 0.2  # from window to window: each takes this process 1 to 2 ms to attach and detach
_LONGEST_PAUSE_SECONDS = 0.4  # an attack that changes must be seen within a second
_JOIN_SECONDS = 2.0


EVERYWHERE = frozenset({"tcx", "tracepoint", "netfilter"})


@dataclass(frozen=True, slots=True)
class Place:
    """Where a program is attached."""

    kind: str  # "tracepoint", "netfilter", "tcx"
    ifindex: int = 0
    family: int = 0
    hook: int = 0
    priority: int = 0

    def attach(self, program: int) -> int:
        """Attach here; it stays while the returned descriptor is open. Raises OSError."""
        if self.kind == "tracepoint":
            return bpf.attach_tracepoint(program)
        if self.kind == "netfilter":
            return bpf.attach_netfilter(program, family=self.family, hook=self.hook, priority=self.priority)
        return bpf.attach_tcx_ingress(program, self.ifindex)


class Gate(Protocol):
    """The programs' switch."""

    def arm(self) -> None:
        """Let the next arriving packet open."""
        ...

    def shut(self) -> None:
        """Stop all counting at once."""
        ...


@dataclass(slots=True)
class _Attachment:
    place: Place
    program: int
    link: int | None


class Shutter:
    """Holds the links, and closes and opens them as `set_cost` asks for.

    Descriptors given are taken over. Without attachments (an older kernel) it stays open.
    """

    def __init__(self, gate: Gate, attachments: list[dict[str, Any]], fds: dict[str, int]) -> None:
        self._gate = gate
        self._attachments = [
            _Attachment(
                Place(**{name: item[name] for name in ("kind", "ifindex", "family", "hook", "priority")}),
                fds[item["program"]],
                fds[item["link"]],
            )
            for item in attachments
        ]
        # What is slow to attach first: a sort keeps the order of the rest.
        self._attachments.sort(key=lambda attachment: attachment.place.kind != "tcx")
        self._links = threading.Lock()  # held while links are opened and closed
        self._opened = time.monotonic()
        self._waited = 0.0
        self._duty = 1.0
        self._costly = EVERYWHERE
        self._windows = False
        self._is_open = True
        self._was_shut = False
        self._error = ""
        self._wake = threading.Condition()
        self._stop = False
        self._thread: threading.Thread | None = None
        gate.arm()

    @property
    def error(self) -> str:
        """Why nothing is watched any more, if so."""
        return self._error

    @property
    def duty(self) -> float:
        """Which share of the time is to be watched from now on."""
        return self._duty

    def was_shut(self) -> bool:
        """Whether it was shut at any time since the last call."""
        with self._wake:
            shut, self._was_shut = self._was_shut, self._windows or not self._is_open
        return shut

    def set_cost(self, share: float, idle: float, costly: frozenset[str] = EVERYWHERE) -> None:
        """Say what watching every packet would cost now, and what is left, as shares of the busiest core.

        Only the `costly` kinds of places are left and taken again around windows. Where hardly a packet
        passes, a program costs nothing as long as the gate is shut, and attaching it does.
        """
        if not self._attachments:
            return
        with self._wake:
            if self._windows:
                self._windows = share > RELEASE and idle - share < SPARE_AGAIN
            else:
                self._windows = share > LIMIT and idle < SPARE
            self._was_shut |= self._windows
            self._duty = min(1.0, _BUDGET / share) if self._windows else 1.0
            self._costly = costly
            self._wake.notify()
        if self._windows and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="fwtop-shutter", daemon=True)
            self._thread.start()

    def move(self, ifindex: int, to: int) -> None:
        """Watch another interface in the place of one that is gone; raises OSError."""
        with self._links:
            for attachment in self._attachments:
                if attachment.place.kind == "tcx" and attachment.place.ifindex == ifindex:
                    _close_link(attachment)
                    attachment.place = replace(attachment.place, ifindex=to)
                    attachment.link = _attach(attachment) if self._is_open else None

    def close(self) -> None:
        """End the thread and detach."""
        with self._wake:
            self._stop = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)
        self._gate.shut()
        for attachment in self._attachments:
            _close_link(attachment)

    def _run(self) -> None:
        while self._wait_for_windows():
            with self._links:
                seconds = self._shut()
            pause = min(seconds * (1 / self._duty - 1), _LONGEST_PAUSE_SECONDS)
            self._sleep(pause * random.uniform(0.6, 1.4) - self._waited)  # noqa: S311
            with self._links:
                self._open()
            time.sleep(max(_WINDOW_SECONDS, _PERIOD_SECONDS * self._duty))

    def _wait_for_windows(self) -> bool:
        with self._wake:
            self._wake.wait_for(lambda: self._stop or self._windows)
        return not self._stop

    def _shut(self) -> float:
        """Detach what costs and return for how long it was attached."""
        self._is_open = False
        self._gate.shut()
        detached = time.monotonic()
        for attachment in reversed(self._attachments):
            if attachment.place.kind == "tcx":
                detached = time.monotonic()
            if attachment.place.kind in self._costly:
                _close_link(attachment)
        self._waited = time.monotonic() - detached
        return detached - self._opened

    def _open(self) -> None:
        """Attach everything; the window then opens with the first packet that arrives."""
        started, opened = time.monotonic(), 0.0
        try:
            for attachment in self._attachments:
                if attachment.link is None:
                    attachment.link = _attach(attachment)
                opened = opened or time.monotonic()
        except OSError as error:
            self._error = f"the observers could not be attached again: {error.strerror}"
            self._stop = True
        self._opened = opened
        self._waited += opened - started
        self._gate.arm()
        self._is_open = not self._stop

    def _sleep(self, seconds: float) -> None:
        with self._wake:
            self._wake.wait_for(lambda: self._stop or not self._windows, max(0.0, seconds))


def _attach(attachment: _Attachment) -> int | None:
    try:
        return attachment.place.attach(attachment.program)
    except OSError as error:
        if error.errno != errno.ENODEV:  # the interface is gone; there may be others
            raise
        return None


def _close_link(attachment: _Attachment) -> None:
    if attachment.link is not None:
        with contextlib.suppress(OSError):
            os.close(attachment.link)
        attachment.link = None
