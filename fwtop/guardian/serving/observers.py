"""Observers for consoles: a short-lived loader child attaches them, the guardian keeps what holds them.

The child (`fwtop.observe.loader`) is another process because libLLVM costs 100 MB that the guardian must
not carry. Descriptors whose name begins with `hold:` keep something attached and stay here.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import syslog
import time
from collections.abc import Callable

from msgspec import Struct

from fwtop.guardian.serving.peer import Client, Peer
from fwtop.kernel import children as child
from fwtop.kernel.descriptors import close_all
from fwtop.model.messages import Answer, ProtocolError
from fwtop.model.protocol import Watch
from fwtop.model.text import safe_text
from fwtop.observe import older_kernels
from fwtop.observe.messages import (
    HELD,
    LOCATIONS,
    SCOPE,
    SHARED_MAPS,
    AttachRequest,
    decode_reply,
    encode_reply,
    encode_request,
    read_locations,
)

_LOADER = "fwtop.observe.loader"
_LOAD_SECONDS = Watch.seconds - 10.0  # a client waits for the answer; compiling on a busy machine takes long
_SCAN_SECONDS = 20.0
_ENDING_SECONDS = 0.1  # from a child's last descriptor to its status
_COMPLAINT_BYTES = 1 << 16
_DETACH_SECONDS = 10.0
_RESCAN_SECONDS = 1.0  # between two, however often clients ask


class Scope(Struct, frozen=True):
    """A console's map of what it may see, and the interfaces that were chosen for it."""

    descriptor: int  # closed with the client
    places: int
    chosen: tuple[str, ...]  # "INDEX=NAME"
    locations: int  # another map, of where packets were dropped; likewise closed


class Wanted(Struct, frozen=True):
    """Observers that a client asked for."""

    peer: Peer
    client: Client
    slot: int
    request: Watch
    again: bool  # a loader was killed at it


class Loading(Struct, eq=False):
    """A loader child at work for a client."""

    wanted: Wanted
    sock: socket.socket
    child: subprocess.Popen[bytes]
    complaints: int  # the memory file that is its standard error
    started: float
    ended: str = ""  # why we killed it

    def end(self, why: str) -> None:
        """Kill the child; its socket will tell that it is gone."""
        self.ended = why
        self.child.kill()

    def why_silent(self, error: Exception) -> str:
        """Say why the child gave no answer, as far as reading that failed with `error`."""
        how = child.ending(self.child, _ENDING_SECONDS)
        said = os.pread(self.complaints, _COMPLAINT_BYTES, 0).decode("utf-8", "replace").strip()
        reason = self.ended or (f"the loader {how}" if self.child.returncode else str(error))
        return f"{reason}: {safe_text(said.splitlines()[-1], limit=200)}" if said else reason

    @property
    def was_killed(self) -> bool:
        """Whether somebody else killed the child, such as the OOM killer."""
        return not self.ended and (self.child.returncode or 0) < 0


class Observers:
    """The loader children and the slots in use. Nothing here waits: `proceed` starts what is due."""

    def __init__(self, started: Callable[[Loading], None], failed: Callable[[Peer, Answer], None]) -> None:
        """Take what is called for each loader that was started, and what answers a client where none was."""
        self.maps: dict[str, int] = {}  # of the compiled rules, as the worker last told; its own
        self._started = started
        self._failed = failed
        self._wanted: list[Wanted] = []
        self._loading: set[Loading] = set()
        self._children: list[subprocess.Popen[bytes]] = []
        self._slots: set[int] = set()
        self._scopes: dict[int, Scope] = {}  # by slot
        self._leaving: dict[int, subprocess.Popen[bytes]] = {}  # slot → the child that empties it
        self._stale: subprocess.Popen[bytes] | None = None
        self._stale_until = 0.0
        self._rescan_wanted = False
        self._rescan: subprocess.Popen[bytes] | None = None
        self._rescanned = float("-inf")  # when it was started

    def detach_stale(self) -> None:
        """Begin to remove what a killed guardian left attached, if it did; loaders start after that."""
        if not older_kernels.are_left():
            return
        self._stale = self._spawn_detach("all")
        self._stale_until = time.monotonic() + _DETACH_SECONDS

    def watch(self, peer: Peer, client: Client, request: Watch, *, again: bool = False) -> None:
        """Have a loader started for a client, `again` if the first was killed."""
        self.reap()
        slot = next(number for number in range(len(self._slots) + 1) if number not in self._slots)
        self._slots.add(slot)
        client.slot = slot
        self._wanted.append(Wanted(peer, client, slot, request, again))

    def locations(self, client: Client) -> list[int]:
        """Return the kernel addresses where a client's observers saw packets dropped; raises OSError."""
        scope = self._scopes.get(client.slot) if client.slot is not None else None
        return read_locations(scope.locations) if scope is not None else []

    def interfaces(self) -> list[str]:
        """Return the names of the interfaces that were chosen for any console."""
        return sorted({name.partition("=")[2] for scope in self._scopes.values() for name in scope.chosen})

    def rescan(self) -> None:
        """Have every console's interfaces looked for again by one child; requests meanwhile are merged."""
        self._rescan_wanted = True

    def proceed(self) -> None:
        """Collect children that ended, and start what is due."""
        self.reap()
        now = time.monotonic()
        if self._stale is not None and (self._stale.poll() is not None or now >= self._stale_until):
            self._stale = None
        if self._stale is None:
            wanted, self._wanted = self._wanted, []
            for item in wanted:
                self._load(item)
        if self._rescan is not None and self._rescan.poll() is not None:
            self._rescan = None
        if self._rescan_wanted and self._rescan is None and now >= self._rescanned + _RESCAN_SECONDS:
            self._start_rescan(now)

    def _load(self, item: Wanted) -> None:
        try:
            complaints = os.memfd_create("fwtop-loader", os.MFD_CLOEXEC)
            try:
                process, mine = child.start_with_socket(_LOADER, stderr=complaints)
            except OSError:
                os.close(complaints)
                raise
        except OSError as error:
            self._slots.discard(item.slot)
            item.client.slot = None
            line = f"the observers could not be started: {error.strerror}; try again"
            self._failed(item.peer, Answer(False, line, 1))
            return
        message, maps = encode_request(AttachRequest(item.request.interfaces, item.slot, self.maps))
        try:
            socket.send_fds(mine, [message], maps)
        except OSError:  # its answer will tell
            mine.shutdown(socket.SHUT_WR)
        loading = Loading(item, mine, process, complaints, time.monotonic())
        self._loading.add(loading)
        self._started(loading)

    def _start_rescan(self, now: float) -> None:
        self._rescan_wanted, self._rescanned = False, now
        scopes = list(self._scopes.values())
        if not scopes:
            return
        words = [f"{scope.descriptor}/{scope.places}/{'/'.join(scope.chosen)}" for scope in scopes]
        descriptors = [scope.descriptor for scope in scopes]
        try:
            self._rescan = child.start(_LOADER, "--scope", *words, descriptors=descriptors)
        except OSError as error:
            syslog.syslog(syslog.LOG_ERR, f"interfaces could not be looked for again: {error.strerror}")

    def take(self, loading: Loading) -> tuple[Answer, list[int], dict[str, int]] | None:
        """Read the child's answer, and hold what must be held.

        Returns the descriptors to pass on, and the maps of the compiled rules, which are the worker's. None:
        the child was killed, and another one begins.
        """
        wanted = loading.wanted
        self._loading.discard(loading)
        self._children.append(loading.child)
        descriptors: list[int] = []
        try:
            answer, descriptors = child.receive(loading.sock)
            if answer.ok:
                observation, named = decode_reply(answer, descriptors)
        except (OSError, ProtocolError) as error:
            why = loading.why_silent(error)
            answer = Answer(False, f"the observers could not be attached: {why}", 1)
        finally:
            loading.sock.close()
            os.close(loading.complaints)
        if answer.ok and not wanted.client.connections:
            answer = Answer(False, "the client is gone", 1)
        if not answer.ok:
            close_all(descriptors)
            self.detach(wanted.slot)
            wanted.client.slot = None
            if wanted.again or not loading.was_killed or not wanted.client.connections:
                return answer, [], {}
            self.watch(wanted.peer, wanted.client, wanted.request, again=True)
            return None
        wanted.client.held += [item for name, item in named.items() if name.startswith(HELD)]
        maps = {name.removeprefix(SHARED_MAPS): named[name] for name in named if name.startswith(SHARED_MAPS)}
        chosen = tuple(f"{item.index}={item.name}" for item in observation.interfaces)
        self._scopes[wanted.slot] = Scope(named[SCOPE], observation.max_watched, chosen, named[LOCATIONS])
        forward = {name: item for name, item in named.items() if not name.startswith((HELD, SHARED_MAPS))}
        return *encode_reply(observation, forward), maps

    def detach(self, slot: int) -> None:
        """Remove what closing descriptors does not: filters, tables, links of one slot.

        The slot is free when that is done, or its next client would lose what it just got. A loader that is
        at work for it is ended first.
        """
        self._scopes.pop(slot, None)
        for loading in self._loading:
            if loading.wanted.slot == slot:
                loading.end("the client is gone")
                return
        self._wanted = [item for item in self._wanted if item.slot != slot]
        try:
            self._leaving[slot] = self._spawn_detach(str(slot))
        except OSError as error:  # no process to be had; the next guardian's start removes it
            syslog.syslog(syslog.LOG_ERR, f"observers were left attached: {error.strerror}")

    def next_timeout(self) -> float | None:
        """End children that take too long (a loader's socket then reports it); returns the next one's time.

        The end of a child wakes the loop by SIGCHLD.
        """
        now = time.monotonic()
        for loading in self._loading:
            if now - loading.started > _LOAD_SECONDS:
                loading.end(f"the loader was not done after {_LOAD_SECONDS:g} s; is the machine busy?")
        ends = [max(0.05, item.started + _LOAD_SECONDS - now) for item in self._loading]
        if self._wanted:
            ends.append(max(0.0, self._stale_until - now if self._stale is not None else 0.0))
        if self._rescan is not None:
            if now - self._rescanned > _SCAN_SECONDS:
                self._rescan.kill()
            ends.append(max(0.05, self._rescanned + _SCAN_SECONDS - now))
        elif self._rescan_wanted:
            ends.append(max(0.0, self._rescanned + _RESCAN_SECONDS - now))
        return min(ends, default=None)

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
            os.close(loading.complaints)
        self._loading.clear()
        if self._rescan is not None:
            self._children.append(self._rescan)
        for process in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_DETACH_SECONDS)
            if process.poll() is None:
                process.kill()
                process.wait()
        self._children.clear()

    def _spawn_detach(self, which: str) -> subprocess.Popen[bytes]:
        rings = [item for name, item in self.maps.items() if name == "rings"]
        process = child.start(_LOADER, "--detach", which, *map(str, rings), descriptors=rings)
        self._children.append(process)
        return process
