"""Ask the XDP loader: a child with bcc that compiles, swaps in, and ends."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from dataclasses import dataclass, field
from typing import Any

from fwtop.mitigate import child
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import ProtocolError

_LOADER = "fwtop.collect.xdp_loader"
_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Loaded:
    """The loader's answer: where the rules are attached, and descriptors, the receiver's from then on."""

    attachments: tuple[dict[str, Any], ...]
    layout: dict[str, int]
    maps: dict[str, int]  # that all rules share, by name
    hits: dict[str, int] = field(default_factory=dict)  # the counters of prefixes, by rule


class Running:
    """A child with its request; closing it ends it."""

    def __init__(self, request: dict[str, Any], descriptors: dict[str, int]) -> None:
        """Start it; `descriptors` stay the caller's. Raises FwtopError."""
        try:
            self._child, self._mine = child.start_asked(_LOADER)
        except OSError as error:  # no memory, no process to be had
            raise FwtopError(f"the XDP loader could not be started: {error.strerror}") from None
        self._mine.settimeout(_SECONDS)
        try:
            _send(self._mine, request, descriptors)
        except OSError as error:
            self.close()
            raise FwtopError(f"the XDP loader could not be asked: {error}") from None

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._child.poll() is not None

    def answer(self) -> Loaded:
        """Wait for the answer; raises FwtopError."""
        try:
            return _receive(self._mine)
        except TimeoutError:
            line = f"the XDP loader was not done after {_SECONDS:g} s: many prefixes in many rules take long"
            raise FwtopError(
                f"{line} to compile; take some back, or put the prefixes into one list"
            ) from None
        except (OSError, ProtocolError) as error:
            raise FwtopError(f"the XDP loader did not answer: {error}") from None

    def close(self, patience: float = 1.0) -> None:
        """Let it end, or end it."""
        self._mine.close()
        _end(self._child, patience)


def ask(request: dict[str, Any], descriptors: dict[str, int]) -> Loaded:
    """Send one request with descriptors, which stay the caller's; raises FwtopError."""
    running = Running(request, descriptors)
    try:
        return running.answer()
    finally:
        running.close()


def _end(process: subprocess.Popen[bytes], patience: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    if process.poll() is None:
        process.kill()
        process.wait()


def _send(sock: socket.socket, request: dict[str, Any], descriptors: dict[str, int]) -> None:
    """The request goes as a memory file: with long lists it would not fit a message."""
    order = os.memfd_create("fwtop-xdp", os.MFD_CLOEXEC)
    try:
        with open(order, "wb", closefd=False) as file:
            file.write(json.dumps(request).encode())
        names = ["request", *descriptors]
        socket.send_fds(sock, [json.dumps({"fds": names}).encode()], [order, *descriptors.values()])
    finally:
        os.close(order)


def _receive(sock: socket.socket) -> Loaded:
    answer, received = child.receive(sock)
    try:
        if not answer.ok:
            raise FwtopError(answer.error, answer.code or 1)
        given = dict(zip(answer.data["fds"], received, strict=True))
        maps = {name: item for name, item in given.items() if ":" not in name}
        hits = {name.partition(":")[2]: item for name, item in given.items() if ":" in name}
        return Loaded(tuple(answer.data["attachments"]), answer.data["layout"], maps, hits)
    except (FwtopError, KeyError, ValueError) as error:
        child.close(received)
        if isinstance(error, FwtopError):
            raise
        raise ProtocolError("something is missing in its answer") from None
