"""The guardian's end of the XDP loader: a child with bcc that compiles, swaps the programs, and exits."""

from __future__ import annotations

import contextlib
import select
import subprocess
import time
from collections.abc import Callable

from fwtop.kernel import children, programs
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import ProtocolError
from fwtop.xdp.messages import Apply, Compile, Loaded, Request, receive_reply, send_request

_LOADER = "fwtop.xdp.loader"
_SECONDS = 30.0
_POLL_MS = 20


class Running:
    """A loader child at work on one request; closing it ends it."""

    def __init__(self, request: Request) -> None:
        """Start it; the request's descriptors stay the caller's. Raises FwtopError."""
        try:
            self._child, self._mine = children.start_with_socket(_LOADER)
        except OSError as error:  # no memory, no process to be had
            raise FwtopError(f"the XDP loader could not be started: {error.strerror}") from None
        self._mine.settimeout(_SECONDS)
        try:
            send_request(self._mine, request)
        except OSError as error:
            self.close()
            raise FwtopError(f"the XDP loader could not be asked: {error}") from None

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._child.poll() is not None

    def answer(self, serve_urgent: Callable[[], None] = lambda: None) -> Loaded:
        """Wait for the answer, calling `serve_urgent` meanwhile; raises FwtopError."""
        seconds = programs.limited(_SECONDS)
        try:
            self._await(seconds, serve_urgent)
            return receive_reply(self._mine)
        except TimeoutError:
            line = f"the XDP loader was not done after {seconds:g} s: many prefixes in many rules take long"
            raise FwtopError(
                f"{line} to compile; take some back, or put the prefixes into one list"
            ) from None
        except (OSError, ProtocolError) as error:
            raise FwtopError(f"the XDP loader did not answer: {self._ended() or error}") from None

    def _ended(self) -> str:
        """Say how the child ended, "" if it goes on: a reset connection alone doesn't tell."""
        how = children.ending(self._child)
        return f"it {how}; was fwtop reinstalled meanwhile, or memory short? Try again" if how else ""

    def _await(self, seconds: float, serve_urgent: Callable[[], None]) -> None:
        """Wait until there is something to read; raises TimeoutError."""
        end = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._mine, select.POLLIN)
        while not poll.poll(_POLL_MS):
            if time.monotonic() >= end:
                raise TimeoutError
            serve_urgent()

    def close(self, patience: float = 1.0) -> None:
        """Wait `patience` seconds for it to exit, then kill it."""
        self._mine.close()
        _end(self._child, patience)


def ask(request: Request, serve_urgent: Callable[[], None] = lambda: None) -> Loaded:
    """Run a loader for one request, whose descriptors stay the caller's; raises FwtopError."""
    running = Running(request)
    try:
        return running.answer(serve_urgent)
    finally:
        running.close()


def _end(process: subprocess.Popen[bytes], patience: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    if process.poll() is None:
        process.kill()
        process.wait()


class Precompiler:
    """Compiles the rules that may be installed next into the cache, in one child at a time."""

    def __init__(self) -> None:
        self._child: Running | None = None
        self._code: object = None  # what its code depends on

    def start(self, order: Compile, *, instead: bool = False) -> None:
        """Start, unless a child is at work; `instead` of it, if so. Raises FwtopError, OSError."""
        if self._child is not None and not self._child.over and not instead:
            return
        self._drop()
        self._child, self._code = Running(order), _code(order)

    def spare(self, order: Apply) -> None:
        """Kill the child unless it compiles the rules of this request, which would have to wait for it."""
        if _code(order) != self._code:
            self._drop()

    def _drop(self) -> None:
        if self._child is not None:
            self._child.close(patience=0.0)
        self._child, self._code = None, None


def _code(request: Apply | Compile) -> object:
    """Return what determines the compiled code: the rules without their ids and deadlines, and who passes."""
    rules = sorted(request.rules, key=lambda item: item.slot)
    code = [
        (item.slot, item.rule.kind, item.rule.match, item.rule.limit, item.listed, item.list_key)
        for item in rules
    ]
    return code, request.allow
