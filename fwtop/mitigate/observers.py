"""Observers for consoles: a short-lived loader child attaches them, the guardian keeps what holds them.

The child (`fwtop.collect.loader`) is another process because libLLVM costs 100 MB that the guardian must
not carry. Descriptors whose name begins with `hold:` keep something attached and stay here.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import syslog
import time
from dataclasses import dataclass

from fwtop.mitigate import child
from fwtop.mitigate.peer import Peer
from fwtop.mitigate.xdp import FastPath
from fwtop.mitigate.xdp_child import Loaded
from fwtop.model.protocol import Answer, ProtocolError, Watch

_LOADER = "fwtop.collect.loader"
_LOAD_SECONDS = 20.0
_DETACH_SECONDS = 10.0
_HOLD = "hold:"
_FAST = "fast:"  # maps of the compiled rules: the guardian's


@dataclass(eq=False, slots=True)
class Loading:
    """A loader child at work for a client."""

    peer: Peer
    sock: socket.socket
    child: subprocess.Popen[bytes]
    slot: int
    started: float


class Observers:
    """The loader children and the slots in use."""

    def __init__(self, fast: FastPath) -> None:
        self._fast = fast
        self._loading: set[Loading] = set()
        self._children: list[subprocess.Popen[bytes]] = []
        self._slots: set[int] = set()
        self._leaving: dict[int, subprocess.Popen[bytes]] = {}  # slot → the child that empties it
        self._stale: subprocess.Popen[bytes] | None = None

    def detach_stale(self) -> None:
        """Begin to remove what a killed guardian left attached; `start` waits for it."""
        self._stale = self._spawn_detach("all")

    def start(self, peer: Peer, request: Watch) -> Loading:
        """Start a loader for a client."""
        if self._stale is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._stale.wait(_DETACH_SECONDS)
            self._stale = None
        self.reap()
        slot = next(number for number in range(len(self._slots) + 1) if number not in self._slots)
        process, mine = child.start_asked(_LOADER)
        maps = self._fast.descriptors
        order = {"interfaces": list(request.interfaces), "slot": slot, "fast": list(maps)}
        socket.send_fds(mine, [json.dumps(order).encode()], list(maps.values()))
        self._slots.add(slot)
        peer.slot = slot
        loading = Loading(peer, mine, process, slot, time.monotonic())
        self._loading.add(loading)
        return loading

    def take(self, loading: Loading) -> tuple[Answer, list[int]]:
        """Read the child's answer; holds what must be held and returns the descriptors to pass on."""
        self._loading.discard(loading)
        self._children.append(loading.child)
        descriptors: list[int] = []
        try:
            answer, descriptors = child.receive(loading.sock)
            names = [str(name) for name in answer.data.get("fds", [])]
            if answer.ok and len(names) != len(descriptors):
                raise ProtocolError("descriptors are missing")
        except (OSError, ProtocolError) as error:
            answer, names = Answer(False, f"the observers could not be attached: {error}", 1), []
        finally:
            loading.sock.close()
        if not answer.ok:
            child.close(descriptors)
            self.detach(loading.slot)
            loading.peer.slot = None
            return answer, []
        pairs = list(zip(names, descriptors, strict=True))
        loading.peer.held += [descriptor for name, descriptor in pairs if name.startswith(_HOLD)]
        fast = {name.removeprefix(_FAST): item for name, item in pairs if name.startswith(_FAST)}
        self._fast.take_maps(Loaded((), dict(answer.data.get("fast_layout", {})), fast))
        forward = [(name, item) for name, item in pairs if not name.startswith((_HOLD, _FAST))]
        data = {**answer.data, "fds": [name for name, _ in forward]}
        return Answer(True, data=data), [descriptor for _, descriptor in forward]

    def detach(self, slot: int) -> None:
        """Remove what closing descriptors does not: filters, tables, links of one slot.

        The slot is free when that is done, or its next client would lose what it just got.
        """
        try:
            self._leaving[slot] = self._spawn_detach(str(slot))
        except OSError as error:  # no process to be had; the next guardian's start removes it
            syslog.syslog(syslog.LOG_ERR, f"observers were left attached: {error.strerror}")

    def next_timeout(self) -> float | None:
        """End loaders that take too long (their socket then reports it); returns the next one's time."""
        now = time.monotonic()
        for loading in self._loading:
            if now - loading.started > _LOAD_SECONDS:
                loading.child.kill()
        return min((max(0.05, item.started + _LOAD_SECONDS - now) for item in self._loading), default=None)

    def reap(self) -> None:
        """Collect children that ended, and free the slots that they emptied."""
        for slot in [slot for slot, process in self._leaving.items() if process.poll() is not None]:
            del self._leaving[slot]
            self._slots.discard(slot)
        self._children = [process for process in self._children if process.poll() is None]

    def finish(self) -> None:
        """Wait for all children, ending those that don't come to an end."""
        for loading in self._loading:
            loading.child.kill()
            self._children.append(loading.child)
            loading.sock.close()
        self._loading.clear()
        for process in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_DETACH_SECONDS)
            if process.poll() is None:
                process.kill()
                process.wait()
        self._children.clear()

    def _spawn_detach(self, which: str) -> subprocess.Popen[bytes]:
        rings = [item for name, item in self._fast.descriptors.items() if name == "rings"]
        process = child.start(_LOADER, "--detach", which, *map(str, rings), descriptors=rings)
        self._children.append(process)
        return process
