"""What the console can't find out by itself: who listens, receive rings, other firewalls' chains, functions.

Nothing here forks. Finding a socket's process means reading every process's descriptors: a reading spends a
bounded time on that and the next one goes on. Of the kernel functions that drop packets no client ever names
an address, or whoever took over a console could probe where the kernel lies in memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO

from fwtop.kernel.links import receive_ring
from fwtop.kernel.procfs import read_text
from fwtop.kernel.sockets import ListeningSocket, command_name, listening_sockets, processes, sockets_of
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.netfilter.iptables import loaded_tables
from fwtop.netfilter.nf_tables import filter_chains, generation

FRESH_SECONDS = 2.0
_SCAN_SECONDS = 0.05  # for processes, in a reading
_MOST = 256  # listeners, chains
_NAME = 15  # characters of a process's name (TASK_COMM_LEN)
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
        self._owners = SocketOwners()
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
        rings = ((name, receive_ring(name)) for name in interfaces)
        return {
            "listeners": self._owners.listeners(_sockets()),
            "rings": [[safe_text(name), *ring] for name, ring in rings if ring is not None],
            "chains": self._filter_chains(),
        }

    def _filter_chains(self) -> list[list[Any]]:
        """Read the chains again if the rule set changed."""
        now = generation()
        if now != self._chains[0]:
            self._chains = now, _foreign_chains()
        return [*self._chains[1], *_legacy_chains()]


def _sockets() -> list[ListeningSocket]:
    try:
        return listening_sockets()
    except OSError:  # a kernel without inet_diag
        return []


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


class SocketOwners:
    """The names of the processes that hold listening sockets, by inode."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}  # "": none does, as with the kernel's own sockets
        self._seen: frozenset[int] = frozenset()
        self._waiting: list[int] = []  # processes that a search has still to look at, in reverse
        self._wanted: frozenset[int] = frozenset()  # what it looks for

    def listeners(self, sockets: Iterable[ListeningSocket]) -> list[list[Any]]:
        """Return protocol, port and process name of each listening port, a bounded number.

        UDP sockets on ports that the kernel chose are mostly clients (of DNS), soon gone: they are looked up
        once they have been there in two readings.
        """
        listed = sorted(sockets, key=lambda item: (item.port, item.protocol, item.inode))
        inodes = frozenset(item.inode for item in listed)
        self._names = {inode: name for inode, name in self._names.items() if inode in inodes}
        chosen = _first_chosen_port()
        lasting = {item.inode for item in listed if not item.port >= chosen > 0 or item.inode in self._seen}
        self._seen = inodes
        self._search(frozenset(lasting - self._names.keys()))
        found: dict[tuple[str, int], str] = {}
        for item in listed:
            if item.inode in lasting:
                key = item.protocol, item.port
                found[key] = found.get(key) or self._names.get(item.inode, "")
        return [[protocol, port, name] for (protocol, port), name in found.items()][:_MOST]

    def _search(self, missing: frozenset[int]) -> None:
        """Look for the holders, for a bounded time; what no process holds is the kernel's."""
        if not missing:
            self._waiting = []
            return
        if not self._waiting:
            self._waiting, self._wanted = processes()[::-1], missing
        end = time.monotonic() + _SCAN_SECONDS
        left = set(missing)
        while self._waiting and left and time.monotonic() < end:
            pid = self._waiting.pop()
            held = left.intersection(sockets_of(pid))
            if held:
                name = safe_text(command_name(pid), limit=_NAME)
                self._names |= dict.fromkeys(held, name)
                left -= held
        if not self._waiting:
            self._names |= dict.fromkeys(left & self._wanted, "")


def _first_chosen_port() -> int:
    """Return the lowest port that the kernel gives to sockets without one, 0 if not known."""
    words = read_text("/proc/sys/net/ipv4/ip_local_port_range").split()
    return int(words[0]) if words and words[0].isdigit() else 0


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
