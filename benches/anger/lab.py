"""The host of the night in anger: real services, attackers, and counters that fwtop has no part in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct

from benches.anger.tools import BOTS, Tool
from benches.tables.hour import PEERS, EverydayLab
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
        return Passed(
            self._counter(self.attacker, "netdev", "sent"), self._counter(self.victim, "ip", "delivered")
        )

    def _counter(self, netns: str, family: str, name: str) -> int:
        words = ("ip", "netns", "exec", netns, "nft", "-j", "list", "counter", family, "bench", name)
        return int(json.loads(namespaces.run(*words))["nftables"][-1]["counter"]["packets"])

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
