"""Two hosts that a cable joins, with servers of the bench's own."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fwtop.kernel.namespaces import inside
from fwtop.lab import namespaces
from fwtop.lab.namespaces import Namespaces
from fwtop.lab.network import VICTIM_4

_FORGING_SECONDS = 0.002  # between two looks at what is due


class TwoHosts(Namespaces):
    """A watched host and its peers' addresses in the far namespace, and what runs in both.

    All `peers` are IPv4 addresses. Subclasses start servers in `_serve`.
    """

    def __init__(self, peers: Iterable[str]) -> None:
        super().__init__()
        self.folder = Path()  # for files of the servers, during the block
        self._peers = tuple(peers)
        self._daemons: list[subprocess.Popen[bytes]] = []

    def close(self) -> None:
        """End the daemons and remove the namespaces; idempotent."""
        for daemon in self._daemons:
            daemon.terminate()
            daemon.wait()
        self._daemons.clear()
        if self.folder != Path():
            shutil.rmtree(self.folder, ignore_errors=True)
        super().close()

    def start(self, netns: str, *argv: str) -> subprocess.Popen[bytes]:
        """Start a program in one of the namespaces."""
        quiet = subprocess.DEVNULL
        words = ["ip", "netns", "exec", netns, *argv]
        return subprocess.Popen(words, stdin=quiet, stdout=quiet, stderr=quiet)

    def counted(self, netns: str, family: str, table: str, name: str) -> tuple[int, int]:
        """Return packets and bytes of a named counter of nftables."""
        words = ("ip", "netns", "exec", netns, "nft", "-j", "list", "counter", family, table, name)
        counter = json.loads(namespaces.run(*words))["nftables"][-1]["counter"]
        return int(counter["packets"]), int(counter["bytes"])

    @contextlib.contextmanager
    def forging(self, packets: Sequence[bytes], pps: int) -> Iterator[list[int]]:
        """Send these IPv4 packets to the watched host, again and again, for the duration of the block.

        Afterwards the list has how many were sent.
        """
        over, sent = threading.Event(), [0]
        with inside(self.attacker):
            raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)

        def send() -> None:
            started = time.monotonic()
            while not over.wait(_FORGING_SECONDS):
                for number in range(sent[0], int((time.monotonic() - started) * pps)):
                    raw.sendto(packets[number % len(packets)], (VICTIM_4, 0))
                    sent[0] = number + 1

        with raw, contextlib.ExitStack() as sending:
            thread = threading.Thread(target=send)
            thread.start()
            sending.callback(thread.join)
            sending.callback(over.set)
            yield sent

    def _require(self) -> None:
        """Raise FwtopError if a program is missing that the lab can't do without."""

    def _serve(self) -> None:
        """Start the servers."""

    def _daemon(self, netns: str, *argv: str) -> None:
        """Start a program that ends with the block; it must stay in the foreground."""
        self._daemons.append(self.start(netns, *argv))

    def _set_up(self) -> None:
        self._require()
        self.folder = Path(tempfile.mkdtemp(prefix="fwtop-lab-"))
        for name in (self.victim, self.attacker):
            namespaces.run("ip", "netns", "add", name)
        namespaces.cable(
            self.victim, self.attacker, [f"address add {peer}/32 dev lo" for peer in self._peers]
        )
        self._serve()
