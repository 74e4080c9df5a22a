"""The host of the night in anger: services, steady clients, attackers, and counters not of fwtop's."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct

from benches.anger.tools import BOTS, Tool
from benches.tables.hour import PEERS, EverydayLab
from fwtop.kernel.namespaces import inside
from fwtop.lab import namespaces
from fwtop.lab.network import ATTACKER_INTERFACE, VICTIM_4

_PEERS = ",".join(PEERS)
# What is no client's is the attacker's: counted where it leaves, and behind every rule of fwtop's.
_SENT = f"""table netdev bench {{
 counter sent {{ }}
 chain leaving {{ type filter hook egress device "{ATTACKER_INTERFACE}" priority 0;
  ip daddr {VICTIM_4} ip saddr != {{ {_PEERS} }} counter name sent; }}
}}"""
_DELIVERED = f"""table ip bench {{
 counter delivered {{ }}
 chain delivered {{ type filter hook input priority 1000;
  iif != lo ip saddr != {{ {_PEERS} }} counter name delivered; }}
}}"""


class Passed(Struct, frozen=True):
    """Packets of attackers since the lab exists."""

    sent: int
    delivered: int  # to the local stack, past every firewall


class AngerLab(EverydayLab):
    """The everyday host with attackers beside its clients."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, (*PEERS, *BOTS))

    def _serve(self) -> None:
        super()._serve()
        for netns, text in ((self.attacker, _SENT), (self.victim, _DELIVERED)):
            namespaces.run("ip", "netns", "exec", netns, "nft", "-f", "-", text=text)
        # A program that chooses no address of its own must not attack with the gateway's.
        source = ("dev", ATTACKER_INTERFACE, "src", BOTS[0])
        namespaces.run("ip", "-n", self.attacker, "route", "replace", f"{VICTIM_4}/32", *source)

    def passed(self) -> Passed:
        """Read both counters."""
        sent = self.counted(self.attacker, "netdev", "bench", "sent")[0]
        return Passed(sent, self.counted(self.victim, "ip", "bench", "delivered")[0])

    @contextmanager
    def attacked(self, tool: Tool) -> Iterator[None]:
        """Let a program attack for the duration of the block."""
        command = self.filled(tool.command.replace("{bots}", " ".join(BOTS)).replace("{bot}", BOTS[0]))
        words = ["ip", "netns", "exec", self.attacker, "sh", "-c", command]
        quiet = subprocess.DEVNULL
        child = subprocess.Popen(words, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
        try:
            yield
        finally:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


TIMEOUT_SECONDS = 2.0
_QUERY = bytes.fromhex("beef01000001000000000000") + b"\x04www7\x07example\0\0\x01\0\x01"
_CONNECT = bytes.fromhex("101100044d5154540402003c0005") + b"steds"


class Served(Struct, frozen=True):
    """A service: where it listens, what a client sends, and how a right answer begins."""

    name: str
    port: int
    request: bytes
    answer: bytes
    protocol: int = socket.SOCK_STREAM


SERVED = (
    Served("web", 80, b"GET /style.css HTTP/1.0\r\nHost: www.example\r\n\r\n", b"HTTP/1.1 200"),
    Served("ssh", 22, b"SSH-2.0-steady\r\n", b"SSH-2.0"),
    Served("mqtt", 1883, _CONNECT, b"\x20\x02\x00\x00"),
    Served("dns", 53, _QUERY, b"\xbe\xef", socket.SOCK_DGRAM),
)


class Steady:
    """Clients that each ask one service at a steady rate; an answer is noted by the second of its request."""

    def __init__(self, netns: str, host: str, clients: Sequence[str], every_s: float) -> None:
        self._netns, self._host, self._every_s = netns, host, every_s
        self._answers: list[tuple[float, str, bool]] = []
        self._end = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(client, served), daemon=True)
            for number, client in enumerate(clients)
            for served in [SERVED[number % len(SERVED)]]
        ]

    @contextmanager
    def asking(self) -> Iterator[Steady]:
        """Ask for the duration of the block."""
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._end.set()
            for thread in self._threads:
                thread.join(TIMEOUT_SECONDS * 2)

    def _run(self, client: str, served: Served) -> None:
        while not self._end.wait(self._every_s):
            began = time.monotonic()
            self._answers.append((began, served.name, self._ask(client, served)))

    def _ask(self, client: str, served: Served) -> bool:
        with inside(self._netns):
            sock = socket.socket(socket.AF_INET, served.protocol)
        with sock:
            sock.settimeout(TIMEOUT_SECONDS)
            try:
                sock.bind((client, 0))
                sock.connect((self._host, served.port))
                sock.sendall(served.request)
                return sock.recv(4096).startswith(served.answer)
            except OSError:
                return False

    def share(self, since: float, until: float) -> dict[str, float]:
        """Return which share of each service's requests of a time was answered rightly."""
        found: dict[str, list[bool]] = {}
        for at, name, answered in [*self._answers]:
            if since <= at < until:
                found.setdefault(name, []).append(answered)
        return {name: sum(each) / len(each) for name, each in found.items()}
