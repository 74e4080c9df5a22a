"""The files of a policy with long lists: for fwtop, and the same lists for ipset(8) and nft(8)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from fwtop.bench.testbed import SOURCES
from fwtop.lab.traffic.pools import LegitimateClients
from fwtop.model.addresses.address import Prefix

LISTS = ("access", "block1", "block2")
NOTHING, FIRST, SECOND = "nothing", "first", "second"  # policies; the second has three signatures more
_POLICY = """
schema = 1
[list.access]
file = "access"
[list.block1]
file = "block1"
[list.block2]
file = "block2"
[[port]]
service = ["80/tcp", "443/tcp", "443/udp"]
acl = "access"
[[block]]
list = "block1"
[[block]]
list = "block2"
"""
_LIMITS = "".join(
    f'[[limit]]\nproto = "udp"\ndport = {port}\nper = 24\nrate = "{rate}/s"\n'
    for port, rate in ((53, 1000), (123, 500), (161, 10), (1900, 10))
)
_SIGNATURES = "".join(
    f'[[signature]]\nstring = "{text}"\nproto = "udp"\ndport = 443\n'
    for text in ("fwtop-one", "fwtop-two", "fwtop-three")
)
_NFT = """table inet bench {
 set on { type ipv4_addr; flags interval; }
 set shut { type ipv4_addr; flags interval; }
 set access { type ipv4_addr; flags interval; auto-merge; }
 set block1 { type ipv4_addr; }
 set block2 { type ipv4_addr; }
}
"""
_STEP = 2_654_435_769  # odd: its multiples modulo a power of two are all different
_BLOCK_BITS = 29  # each block list has an eighth of the address space of its own
_BLOCK_FIRST = {"block1": 4 << _BLOCK_BITS, "block2": 5 << _BLOCK_BITS}


class PolicyFiles:
    """Files in a directory; the clients' addresses are on the access list and on no block list."""

    def __init__(self, directory: Path, clients: LegitimateClients) -> None:
        self._directory = directory
        self._clients = clients.all
        self.entries = 0  # of all lists

    def path(self, name: str) -> Path:
        """Return the path of a list's or policy's file."""
        return self._directory / name

    def ipset_script(self, name: str) -> Path:
        """Return the file that `ipset restore` reads."""
        return self.path(f"{name}.ipset")

    @property
    def nft_script(self) -> Path:
        """The file that `nft -f` reads: all lists in one table."""
        return self.path("nft")

    def write(self, access: int, blocked: int) -> None:
        """Write lists with so many entries, and the policies."""
        lists = {
            "access": list(self._access(access)),
            "block1": [SOURCES, *self._blocked("block1", blocked - 1)],
            "block2": list(self._blocked("block2", blocked)),
        }
        self.entries = sum(map(len, lists.values()))
        for name, entries in lists.items():
            self.path(name).write_text("\n".join(entries) + "\n")
            head = f"create bench-{name} hash:net maxelem {2 * len(entries)}\n"
            adds = (f"add bench-{name} {entry}\n" for entry in _of_ipv4(entries))
            self._write_lines(self.ipset_script(name), [head], adds)
        self._write_lines(self.nft_script, [_NFT], _nft_elements(lists))
        for name, text in (
            (NOTHING, "schema = 1\n"),
            (FIRST, _POLICY + _LIMITS),
            (SECOND, _POLICY + _LIMITS + _SIGNATURES),
        ):
            self.path(name).write_text(text)

    @staticmethod
    def _write_lines(path: Path, *parts: Iterable[str]) -> None:
        with path.open("w") as file:
            for lines in parts:
                file.writelines(lines)

    def _access(self, count: int) -> Iterator[str]:
        yield from self._clients
        drawn = random.Random(20261122)  # noqa: S311
        for value in drawn.sample(range(11 << 16, 126 << 16), count - len(self._clients)):
            yield f"{value >> 16}.{value >> 8 & 255}.{value & 255}.0/24"

    def _blocked(self, name: str, count: int) -> Iterator[str]:
        first, mask = _BLOCK_FIRST[name], (1 << _BLOCK_BITS) - 1
        spared = set(self._clients)
        number = given = 0
        while given < count:
            value = first + (number * _STEP & mask)
            number += 1
            text = f"{value >> 24}.{value >> 16 & 255}.{value >> 8 & 255}.{value & 255}"
            if text not in spared:
                given += 1
                yield text


def _of_ipv4(entries: Iterable[str]) -> Iterator[str]:
    return (entry for entry in entries if ":" not in entry)


def _nft_elements(lists: dict[str, list[str]]) -> Iterator[str]:
    """Yield lines that fill nft's sets; those of single addresses get a prefix address by address."""
    for name, entries in lists.items():
        yield f"add element inet bench {name} {{ "
        for entry in _of_ipv4(entries):
            yield f"{entry}, " if name == "access" else _single(entry)
        yield "}\n"


def _single(entry: str) -> str:
    if "/" not in entry:
        return f"{entry}, "
    prefix = Prefix.parse(entry)
    span = range(prefix.value, prefix.value + (1 << prefix.bits - prefix.length))
    return "".join([f"{Prefix(4, value, 32)}, " for value in span])
