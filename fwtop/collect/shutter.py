"""Watch through windows of time where watching every packet would slow the receiving core down.

A hook that is attached costs 30 to 80 ns a packet in its dispatch alone (two indirect calls, with
retpolines): at 1.5 million packets a second that is 15 % of a core, which a machine under attack lacks.
Detached, it costs nothing. So when the cost of watching everything would pass a limit, the console
detaches, and attaches again for a short window several times a second, at random distances. Within a
window all hooks count the same packets; what arrived in all is known from the interface's own counters,
and what the windows saw is scaled up to it.

Attaching needs no privilege of a process that was handed the program: see bpf_raw_tp_link_attach,
tcx_link_attach and bpf_nf_link_attach in the kernel, and test_shutter. It takes 10 to 25 ms, which the
kernel spends waiting (RCU), not working; so a thread does it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import threading
import time
from dataclasses import dataclass
from typing import Any, Protocol

from fwtop.collect import bpf

LIMIT = 0.04  # of a core: up to this, everything is watched
RELEASE = 0.03  # below this, everything is watched again
_BUDGET = 0.012  # of a core: what the windows may cost
_WINDOW_SECONDS = 0.004  # beyond the time that attaching takes with the window already open
_LONGEST_PAUSE_SECONDS = 0.5  # an attack that changes must be seen within a second
_JOIN_SECONDS = 2.0


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
        self._duty = 1.0
        self._windows = False
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
            shut, self._was_shut = self._was_shut, self._windows
        return shut

    def set_cost(self, share: float) -> None:
        """Say what watching every packet now would cost, as a share of the busiest core."""
        if not self._attachments:
            return
        with self._wake:
            self._windows = share > (RELEASE if self._windows else LIMIT)
            self._was_shut |= self._windows
            self._duty = min(1.0, _BUDGET / share) if self._windows else 1.0
            self._wake.notify()
        if self._windows and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="fwtop-shutter", daemon=True)
            self._thread.start()

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
        opened = time.monotonic() - _WINDOW_SECONDS
        while not self._stop:
            with self._wake:
                if not self._windows:
                    self._wake.wait()
                    continue
            self._gate.shut()
            open_seconds = time.monotonic() - opened
            for attachment in self._attachments:
                _close_link(attachment)
            pause = min(open_seconds, 0.1) * (1 / self._duty - 1) * random.uniform(0.6, 1.4)  # noqa: S311
            self._sleep(min(pause, _LONGEST_PAUSE_SECONDS))
            opened = self._open()
            time.sleep(_WINDOW_SECONDS)

    def _open(self) -> float:
        """Attach everything and return when the window opened."""
        opened = time.monotonic()
        try:
            last = self._attachments[-1]  # counts arrivals: the window opens with its first packet
            for attachment in self._attachments:
                if attachment is last:
                    self._gate.arm()
                    opened = time.monotonic()
                attachment.link = _attach(attachment)
        except OSError as error:
            self._error = f"the observers could not be attached again: {error.strerror}"
            self._stop = True
        return opened

    def _sleep(self, seconds: float) -> None:
        with self._wake:
            self._wake.wait_for(lambda: self._stop or not self._windows, seconds)


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
