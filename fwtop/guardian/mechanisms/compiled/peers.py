"""Allow-listed peers that pass compiled rules in their role: tables shared with the programs.

A session that comes or goes is a few stores, not another program. Layout and lookup: bpf/xdp_allow.h.
"""

from __future__ import annotations

import mmap
from binascii import crc32
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce

from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import Passes
from fwtop.model.errors import FwtopError
from fwtop.model.traffic.protocols import TCP
from fwtop.xdp.maps import (
    ALLOW_BEHIND,
    ALLOW_BYTES,
    ALLOW_PEERS,
    ALLOW_PORT_WORDS,
    ALLOW_PROBES,
    BEHIND_AT,
    BEHIND_WORDS,
    PEER_WORDS,
)

_EMPTY, _GIVEN_UP = 0, 1
_LOGIN = 0x86  # LOGIN of bpf/xdp_allow.h
_LOW_64 = (1 << 64) - 1
_FACTORS = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93

_Entry = tuple[int, ...]  # one address or two, each as two words; the key last


class Peers:
    """The tables of one namespace; the descriptor stays the caller's."""

    def __init__(self, descriptor: int) -> None:
        size = -(-ALLOW_BYTES // mmap.PAGESIZE) * mmap.PAGESIZE
        self._map = mmap.mmap(descriptor, size, mmap.MAP_SHARED)
        self._words = memoryview(self._map).cast("Q")
        self._peers = _Table(self._words, 0, PEER_WORDS, ALLOW_PEERS)
        self._behind = _Table(self._words, BEHIND_AT, BEHIND_WORDS, ALLOW_BEHIND)
        self._written: int | None = None  # checksum of what is in the map

    def replace(self, wanted: Iterable[Passes]) -> None:
        """Replace the tables' contents; raises FwtopError if some did not fit, the others are in then."""
        passing = list(wanted)
        peers = dict.fromkeys(entry for passes in passing for entry in _entries(passes))
        behind = dict.fromkeys(entry for passes in passing for entry in _entries_behind(passes))
        tcp = {port for passes in passing for _, protocol, port in passes.peers if protocol == TCP}
        tcp |= {port for passes in passing for _, port in passes.logins}
        tcp_behind = {item.port for passes in passing for item in passes.behind if item.protocol == TCP}
        missing = self._peers.replace(list(peers), tcp) + self._behind.replace(list(behind), tcp_behind)
        self._written = crc32(self._words)
        if missing:
            raise FwtopError(
                f"XDP rules have no room for {missing} of {len(peers) + len(behind)} sessions and servers "
                "that must never be cut off; use another kind of rule"
            )

    @property
    def changed(self) -> bool:
        """Whether somebody else wrote into the map."""
        return self._written is not None and crc32(self._words) != self._written

    def close(self) -> None:
        """Unmap."""
        self._words.release()
        self._map.close()


class _Table:
    """A bitmap of TCP ports, and behind it a hash table with open addressing."""

    def __init__(self, words: memoryview, first: int, width: int, places: int) -> None:
        """Take the words of the map, where the bitmap begins, the words of an entry, and how many fit."""
        self._words, self._first = words, first
        self._width, self._size = width, places
        self._places = {entry: place for place, entry in self._found()}  # a former guardian's, too

    def replace(self, entries: Sequence[_Entry], tcp_ports: Iterable[int]) -> int:
        """Replace the contents; returns how many entries did not fit."""
        wanted = set(entries)
        for entry in [entry for entry in self._places if entry not in wanted]:
            self._words[self._at(self._places.pop(entry)) + self._width - 1] = _GIVEN_UP
        missing = sum(not self._put(entry) for entry in entries)
        ports = [0] * ALLOW_PORT_WORDS
        for port in tcp_ports:
            ports[port >> 6] |= 1 << (port & 63)
        for word, bits in enumerate(ports, self._first):
            if self._words[word] != bits:
                self._words[word] = bits
        return missing

    def _put(self, entry: _Entry) -> bool:
        """Write a missing entry, its key last; returns False if its places are taken."""
        if entry in self._places:
            return True
        first = _place(entry, self._size)
        for probe in range(ALLOW_PROBES):
            place = (first + probe) % self._size
            at, key = self._at(place), self._at(place) + self._width - 1
            if self._words[key] in (_EMPTY, _GIVEN_UP):
                for offset, word in enumerate(entry[:-1]):
                    self._words[at + offset] = word
                self._words[key] = entry[-1]
                self._places[entry] = place
                return True
        return False

    def _found(self) -> Iterator[tuple[int, _Entry]]:
        for place in range(self._size):
            at = self._at(place)
            if self._words[at + self._width - 1] not in (_EMPTY, _GIVEN_UP):
                yield place, tuple(self._words[at : at + self._width])

    def _at(self, place: int) -> int:
        return self._first + ALLOW_PORT_WORDS + self._width * place


def _entries(passes: Passes) -> Iterator[_Entry]:
    family = passes.family << 24
    for address, protocol, port in passes.peers:
        yield *_words_of(address), family | protocol << 16 | port
    for address, port in passes.logins:
        yield *_words_of(address), family | _LOGIN << 16 | port
    for address in passes.gateways:
        yield *_words_of(address), family


def _entries_behind(passes: Passes) -> Iterator[_Entry]:
    family = passes.family << 24
    for item in passes.behind:
        yield *_words_of(item.peer), *_words_of(item.host), family | item.protocol << 16 | item.port


def _words_of(address: Prefix) -> tuple[int, int]:
    return address.value >> 64, address.value & _LOW_64


def _place(entry: _Entry, places: int) -> int:
    """Return the first place of an entry, as `is_peer` and `may_talk` of bpf/xdp_allow.h do."""
    *words, key = entry
    pairs = zip(words[::2], words[1::2], strict=True)

    def mix(value: int, pair: tuple[int, int]) -> int:
        return ((value ^ pair[0]) * _FACTORS[0] + pair[1]) * _FACTORS[1] & _LOW_64

    return reduce(mix, pairs, key) >> 64 - (places - 1).bit_length()
