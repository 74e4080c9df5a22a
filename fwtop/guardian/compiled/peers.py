"""Allow-listed peers that pass compiled rules in their role: a table shared with the programs.

A session that comes or goes is a few stores, not another program. Layout and lookup: bpf/xdp_allow.h.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator

from fwtop.model.addresses.roles import TCP, Passes
from fwtop.model.errors import FwtopError
from fwtop.xdp.maps import ALLOW_BYTES, ALLOW_PEERS, ALLOW_PORT_WORDS, ALLOW_PROBES, PEER_WORDS

_EMPTY, _GIVEN_UP = 0, 1
_LOW_64 = (1 << 64) - 1

_Entry = tuple[int, int, int]


class Peers:
    """The table of one namespace; the descriptor stays the caller's."""

    def __init__(self, descriptor: int) -> None:
        size = -(-ALLOW_BYTES // mmap.PAGESIZE) * mmap.PAGESIZE
        self._map = mmap.mmap(descriptor, size, mmap.MAP_SHARED)
        self._words = memoryview(self._map).cast("Q")
        self._places = {entry: place for place, entry in self._found()}  # a former guardian's, too

    def replace(self, wanted: Iterable[Passes]) -> None:
        """Replace the table's contents; raises FwtopError if some did not fit, the others are in then."""
        entries: dict[_Entry, None] = {}
        ports = [0] * ALLOW_PORT_WORDS
        for passes in wanted:
            entries |= dict.fromkeys(_entries(passes))
            for _, protocol, port in passes.peers:
                if protocol == TCP:
                    ports[port >> 6] |= 1 << (port & 63)
        for entry in [entry for entry in self._places if entry not in entries]:
            self._words[self._at(self._places.pop(entry)) + 2] = _GIVEN_UP
        missing = [entry for entry in entries if not self._put(entry)]
        for word, bits in enumerate(ports):
            if self._words[word] != bits:
                self._words[word] = bits
        if missing:
            raise FwtopError(
                f"XDP rules have no room for {len(missing)} of {len(entries)} sessions and servers that must "
                "never be cut off; use another kind of rule"
            )

    def close(self) -> None:
        """Unmap."""
        self._words.release()
        self._map.close()

    def _put(self, entry: _Entry) -> bool:
        """Write a missing entry, its key last; returns False if its places are taken."""
        if entry in self._places:
            return True
        first = _place(entry)
        for probe in range(ALLOW_PROBES):
            place = (first + probe) % ALLOW_PEERS
            at = self._at(place)
            if self._words[at + 2] in (_EMPTY, _GIVEN_UP):
                self._words[at], self._words[at + 1] = entry[:2]
                self._words[at + 2] = entry[2]
                self._places[entry] = place
                return True
        return False

    def _found(self) -> Iterator[tuple[int, _Entry]]:
        for place in range(ALLOW_PEERS):
            at = self._at(place)
            if self._words[at + 2] not in (_EMPTY, _GIVEN_UP):
                yield place, (self._words[at], self._words[at + 1], self._words[at + 2])

    @staticmethod
    def _at(place: int) -> int:
        return ALLOW_PORT_WORDS + PEER_WORDS * place


def _entries(passes: Passes) -> Iterator[_Entry]:
    family = passes.family << 24
    for address, protocol, port in passes.peers:
        yield address.value >> 64, address.value & _LOW_64, family | protocol << 16 | port
    for address in passes.gateways:
        yield address.value >> 64, address.value & _LOW_64, family


def _place(entry: _Entry) -> int:
    """Return the first place of an entry: 13 bits, as in `is_peer` of bpf/xdp_allow.h."""
    high, low, key = entry
    return (
        (((high ^ key) * 0x9E3779B97F4A7C15 & _LOW_64) + low & _LOW_64) * 0xD6E8FEB86659FD93 & _LOW_64
    ) >> 51
