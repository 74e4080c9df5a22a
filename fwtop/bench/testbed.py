"""The lab for measuring throughput.

There is no firewall, clients pause, and the flood is as fast as the sender can go. It runs
only during measurements. Counted are the frames that the victim's single receiving CPU takes in; frames that
find its queue full are lost before that and don't count.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from pathlib import Path

from fwtop.bench.receiver import PORT
from fwtop.lab import namespaces, scenario
from fwtop.lab.network import Wire
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


def processor_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process, in seconds."""
    total = 0.0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread may end meanwhile
            total += int((thread / "schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    return total
