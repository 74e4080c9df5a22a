"""A watched host and the machines of its peers, in two namespaces that a cable joins."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from fwtop.lab import namespaces
from fwtop.lab.network import ATTACKER_INTERFACE, GATEWAY_4, VICTIM_4, VICTIM_INTERFACE
from fwtop.model.errors import FwtopError


class TwoHosts:
    """The namespaces and what runs in them, for the duration of the `with` block.

    All `peers` are IPv4 addresses of the far namespace. Subclasses start servers in `_serve`.
    """

    def __init__(self, peers: Iterable[str]) -> None:
        self.victim, self.attacker = (namespaces.name(role, os.getpid()) for role in namespaces.ROLES)
        self.folder = Path()  # for files of the servers, during the block
        self._peers = tuple(peers)
        self._lock = -1
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        """Set everything up; on failure, take it all down again."""
        if os.geteuid() != 0:
            raise FwtopError("the lab needs root to make namespaces; nothing was started; use sudo", 3)
        self._require()
        namespaces.remove_stale()
        self._lock = namespaces.hold_lock(os.getpid())
        self.folder = Path(tempfile.mkdtemp(prefix="fwtop-lab-"))
        try:
            self._cable()
            self._serve()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take everything down."""
        self.close()

    def close(self) -> None:
        """End the daemons and remove the namespaces; idempotent."""
        for daemon in self._daemons:
            daemon.terminate()
            daemon.wait()
        self._daemons.clear()
        if self._lock >= 0:
            namespaces.remove([self.victim, self.attacker])
            namespaces.release_lock(os.getpid(), self._lock)
            shutil.rmtree(self.folder, ignore_errors=True)
            self._lock = -1

    def start(self, netns: str, *argv: str) -> subprocess.Popen[bytes]:
        """Start a program in one of the namespaces."""
        quiet = subprocess.DEVNULL
        words = ["ip", "netns", "exec", netns, *argv]
        return subprocess.Popen(words, stdin=quiet, stdout=quiet, stderr=quiet)

    def _require(self) -> None:
        """Raise FwtopError if a program is missing that the lab can't do without."""

    def _serve(self) -> None:
        """Start the servers."""

    def _daemon(self, netns: str, *argv: str) -> None:
        """Start a program that ends with the block; it must stay in the foreground."""
        self._daemons.append(self.start(netns, *argv))

    def _cable(self) -> None:
        run = namespaces.run
        for name in (self.victim, self.attacker):
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        far = ("peer", "name", ATTACKER_INTERFACE, "netns", self.attacker)
        run("ip", "-n", self.victim, "link", "add", VICTIM_INTERFACE, "type", "veth", *far)
        for name, interface, address in (
            (self.victim, VICTIM_INTERFACE, VICTIM_4),
            (self.attacker, ATTACKER_INTERFACE, GATEWAY_4),
        ):
            run("ip", "-n", name, "address", "add", f"{address}/24", "dev", interface)
            run("ip", "-n", name, "link", "set", interface, "up")
        run("ip", "-n", self.victim, "route", "add", "default", "via", GATEWAY_4)
        addresses = "".join(f"address add {address}/32 dev lo\n" for address in self._peers)
        run("ip", "-n", self.attacker, "-batch", "-", text=addresses)
