"""What the console can't find out by itself: services, receive rings, other firewalls' chains, functions.

Nothing here forks. Of the kernel functions that drop packets no client ever names an address, or whoever took
over a console could probe where the kernel lies in memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO

from fwtop.guardian.services import Services
from fwtop.kernel.links import receive_ring
from fwtop.kernel.receive_path import PacketSockets, queue_counters
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.model.wire import plain
from fwtop.netfilter.iptables import loaded_tables
from fwtop.netfilter.nf_tables import filter_chains, generation

FRESH_SECONDS = 2.0
_MOST = 256  # chains
KALLSYMS = "/proc/kallsyms"
_TEXT = b"tTwW"
_FARTHEST = 1 << 16  # an address further behind a symbol isn't in that function
_UPPER_DIGITS = 12  # of an address's 16, without those below _FARTHEST
_PAUSE_SECONDS = 1.0  # between two readings of the file, which take a tenth of a second
_MAX_KNOWN = 4096  # addresses


class LastSurvey:
    """The last reading. `read` is the worker's, `data` and `due` are the event loop's."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {}
        self._due = 0.0
        self._services = Services()
        self._packet_sockets = PacketSockets()
        self._chains: tuple[int, list[list[Any]]] = -1, []  # as of a generation of the rule set

    def due(self) -> bool:
        """Return whether it is time for a new reading, which the caller then starts."""
        now = time.monotonic()
        if now < self._due:
            return False
        self._due = now + FRESH_SECONDS
        return True

    def read(self, interfaces: Iterable[str]) -> dict[str, Any]:
        """Read everything; what can't be read is left out."""
        names = list(interfaces)
        rings = ((name, receive_ring(name)) for name in names)
        queues = ((name, row) for name in names for row in queue_counters(name).items())
        services, asks = self._services.read()
        return {
            "listeners": [[item.protocol, item.port, item.name] for item in services],
            "services": plain(services),
            "asks": plain(asks),
            "answering": plain(self._services.answering.places()),
            "rings": [[safe_text(name), *ring] for name, ring in rings if ring is not None],
            "queues": [[safe_text(name), queue, *counts] for name, (queue, counts) in queues],
            "packet_sockets": plain(self._packet_sockets.read()),
            "chains": self._filter_chains(),
        }

    def _filter_chains(self) -> list[list[Any]]:
        """Read the chains again if the rule set changed."""
        now = generation()
        if now != self._chains[0]:
            self._chains = now, _foreign_chains()
        return [*self._chains[1], *_legacy_chains()]


def _foreign_chains() -> list[list[Any]]:
    """Return stage, name and whether the policy drops, of each base chain that isn't fwtop's."""
    try:
        chains = filter_chains()
    except FwtopError:
        return []
    found = {(chain.stage, f"{chain.family} {chain.table} {chain.name}"): chain.drops for chain in chains}
    return [[stage, safe_text(name, limit=64), drops] for (stage, name), drops in found.items()][:_MOST]


def _legacy_chains() -> list[list[Any]]:
    """Return those of iptables-legacy, of which only the tables are known."""
    tables = {*loaded_tables(4), *loaded_tables(6)}
    stages = {"raw": ("raw",), "mangle": ("raw", "filter"), "filter": ("filter",)}
    return [
        [stage, f"iptables {table}", False] for table in sorted(tables) for stage in stages.get(table, ())
    ]


class Functions:
    """A cache of functions by addresses inside them. Of the worker's thread."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {0: ""}
        self._next = 0.0

    def names(self, addresses: Sequence[int]) -> list[str]:
        """Name the functions, "" where none is known (yet); raises OSError."""
        new = [address for address in addresses if address not in self._known]
        if new and time.monotonic() >= self._next:
            if len(self._known) + len(new) > _MAX_KNOWN:
                self._known = {0: ""}
            with open(KALLSYMS, "rb") as file:
                self._known.update(zip(new, names_in(file, new), strict=True))
            self._next = time.monotonic() + _PAUSE_SECONDS
        return [self._known.get(address, "") for address in addresses]


def names_in(file: BinaryIO, addresses: Sequence[int]) -> list[str]:
    """Name addresses by a file in the format of /proc/kallsyms."""
    best = dict.fromkeys(addresses, (0, b""))
    # Functions that contain an address begin with its upper digits or those before: only their lines, a few
    # of 200,000, are parsed.
    near: dict[bytes, list[int]] = {}
    for address in best:
        for upper in (address // _FARTHEST, address // _FARTHEST - 1):
            near.setdefault(b"%0*x" % (_UPPER_DIGITS, upper), []).append(address)
    for line in file if near else ():
        inside = near.get(line[:_UPPER_DIGITS])
        if inside and len(line) > 20 and line[17] in _TEXT:
            start, name = int(line[:16], 16), line[19:].split(maxsplit=1)[0]
            for address in inside:
                if best[address][0] <= start <= address:
                    best[address] = (start, name)
    found = (best[address] for address in addresses)
    return [
        safe_text(name.decode("ascii", "replace"), limit=40) if start > address - _FARTHEST else ""
        for address, (start, name) in zip(addresses, found, strict=True)
    ]
