"""Labs for measuring: one for throughput, and two hosts that a cable joins.

For throughput there is no firewall, clients pause, and the flood is as fast as the sender can go. It runs
only during measurements. Counted are the frames that the victim's single receiving CPU takes in; frames that
find its queue full are lost before that and don't count.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from fwtop.bench.receiver import PORT
from fwtop.kernel.namespaces import inside
from fwtop.lab import namespaces, scenario
from fwtop.lab.namespaces import Namespaces
from fwtop.lab.network import VICTIM_4, Wire
from fwtop.lab.processes import Child
from fwtop.lab.run import Lab
from fwtop.lab.traffic.craft import templates
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError

SOURCES = "198.19.0.0/24"  # within the benchmarking range of RFC 2544
SOURCES_6 = "2001:2:0:13::/64"  # and of RFC 5180
SMALL, STRONGARM = 18, 100  # payload bytes: frames of 60 bytes, IP packets of 128
PAYLOAD_START = "fwtop-bench"
_SETTLE_SECONDS = 0.3
_TOOL_SECONDS = 600.0
_FORGING_SECONDS = 0.002  # between two looks at what is due
_MOST_LOOKS = 40  # for the first packet, on a machine that is busy


def flood_text(payload: int = SMALL, *, sources: str = SOURCES, sport: int | str = 4000) -> str:
    """Return a scenario as TOML: UDP to the receiver's port from `sources`."""
    port = f'"{sport}"' if isinstance(sport, str) else sport
    rest, family = payload - len(PAYLOAD_START), Prefix.parse(sources).family
    return (
        'title = "UDP as fast as possible"\nseed = 1\nfirewall = "none"\npps = 0\n\n'
        f'[[vector]]\nname = "bench"\nkind = "udp_flood"\nprotocol = "udp"\nfamily = {family}\n'
        f'source = {{ prefixes = ["{sources}"], forged = false }}\nsport = {port}\ndport = {PORT}\n'
        f'payload = [{{ text = "{PAYLOAD_START}" }}, {{ hex = "{"00" * rest}" }}]\nttl = 60\n'
    )


class Testbed:
    """A lab with its flood, set up and taken down by the `with` block."""

    def __init__(self, text: str | None = None, family: int = 4) -> None:
        text = text or flood_text(sources=SOURCES if family == 4 else SOURCES_6)
        self.family = family  # of the flood
        self.lab = Lab(scenario.parse(text, "bench"), source=text)

    def __enter__(self) -> Testbed:
        """Set up the lab."""
        self.lab.__enter__()
        self.lab.pause_clients()
        return self

    def __exit__(self, *_: object) -> None:
        """Take down the lab."""
        self.lab.close()

    @property
    def victim(self) -> str:
        """Name of the victim's namespace."""
        return self.lab.victim

    def frame(self) -> bytes:
        """Return one of the flood's frames."""
        [vector] = self.lab.scenario.vectors
        source = Prefix.parse(SOURCES.replace("0/24", "5"))
        return templates(vector, Wire(bytes(6), bytes(6)), source, random.Random(1))[0].data  # noqa: S311 - not for secrets

    def run(self, *argv: str, text: str | None = None) -> str:
        """Run a system tool on the victim, with time for long lists; raises FwtopError with its message."""
        return namespaces.run("ip", "netns", "exec", self.victim, *argv, text=text, seconds=_TOOL_SECONDS)

    @contextlib.contextmanager
    def flooded(self, pps: int = 0) -> Iterator[None]:
        """Flood for the duration of the block (0 pps: as fast as possible), which begins settled."""
        self.lab.start_flood(pps)
        try:
            time.sleep(_SETTLE_SECONDS)
            yield
        finally:
            self.lab.stop()
            self.lab.pause_clients()

    def core_pps(self, seconds: float) -> float:
        """Return packets per second of CPU time of the victim's receiving thread.

        Equal to packets per wall-clock second on an idle machine whose sender outruns the receiver, but
        immune to other processes that compete for the CPU. Raises FwtopError where those leave it none.
        """
        with self.flooded():
            packets, used = self.lab.arrived()[0], self.lab.receiving_seconds()
            for _ in range(_MOST_LOOKS):
                time.sleep(seconds)
                if arrived := self.lab.arrived()[0] - packets:
                    return arrived / max(self.lab.receiving_seconds() - used, 1e-6)
        raise FwtopError("no packet of the flood arrived: the machine is too busy to measure")

    @contextlib.contextmanager
    def receiver(self) -> Iterator[Child]:
        """Run the receiving application on the victim."""
        child = Child(self.victim, "fwtop.bench.receiver")
        try:
            child.wait_ready()
            if self.family != 4:
                child.ask(do="bind", family=self.family)
            yield child
        finally:
            child.close()

    def core_received_pps(self, child: Child, seconds: float) -> float:
        """Return datagrams per second of CPU time, of the busier of receiving thread and application.

        See `core_pps`.
        """
        with self.flooded():
            used = self.lab.receiving_seconds(), processor_seconds(child.process.pid)
            first = int(child.ask(do="count")["datagrams"])
            time.sleep(seconds)
            got = int(child.ask(do="count")["datagrams"]) - first
            now = self.lab.receiving_seconds(), processor_seconds(child.process.pid)
            return got / max(now[0] - used[0], now[1] - used[1], 1e-6)

    @contextlib.contextmanager
    def rules(self, on: list[list[str]], off: list[list[str]]) -> Iterator[None]:
        """Run the `on` commands before the block and the `off` commands after it."""
        try:
            for argv in on:
                self.run(*argv)
            yield
        finally:
            for argv in off:
                self.run(*argv)


def per_second(count: Callable[[], int], seconds: float) -> float:
    """Return the rate at which a counter grows, measured over some seconds."""
    first, started = count(), time.monotonic()
    time.sleep(seconds)
    last, ended = count(), time.monotonic()
    return float(last - first) / (ended - started)


def processor_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process, in seconds."""
    total = 0.0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread may end meanwhile
            total += int((thread / "schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    return total


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
