"""The maps that all compiled rules share, mapped into the guardian: slots, deadlines, counters, peers.

Enabling, disabling and keeping a rule is one store into its deadline, reading its counter a few loads: no
system calls. A session that comes or goes is a few stores, not another program. Layouts: struct xdp_slot and
struct xdp_counters of bpf/xdp.h; bpf/xdp_allow.h.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
from binascii import crc32
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from pathlib import Path

from fwtop.guardian.allow.allowlist import AllowList
from fwtop.kernel import bpf
from fwtop.kernel.descriptors import close_all
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
    COUNTERS_BYTES,
    MAX_RULES,
    PARSE_ERRORS_AT,
    PEER_WORDS,
    RULES_AT,
    SLOT_BYTES,
    find_shared,
    map_array,
    possible_cpus,
)

_SLOT_WORDS = SLOT_BYTES // 8  # deadline; number and padding
_NUMBER = struct.Struct("<Q")
_COUNT = struct.Struct("<QQ")  # packets, bytes
_EMPTY, _GIVEN_UP = 0, 1
_LOGIN = 0x86  # LOGIN of bpf/xdp_allow.h
_LOW_64 = (1 << 64) - 1
_FACTORS = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93
_Entry = tuple[int, ...]  # one address or two, each as two words; the key last


class Slots:
    """The mapped memory. Owns the descriptors that it is given."""

    def __init__(self, maps: dict[str, int]) -> None:
        self.maps = dict(maps)
        self.cpus = possible_cpus()  # that count separately
        self._slots_map = map_array(self.maps["slots"], SLOT_BYTES * MAX_RULES, writable=True)
        self._counters = map_array(self.maps["counters"], self.cpus * COUNTERS_BYTES, writable=False)
        self._words = memoryview(self._slots_map).cast("Q")
        self._peers: Peers | None = None  # mapped for the first rule: without one nothing asks the table

    def numbers(self) -> dict[int, int]:
        """Return the slots in use: rule number by slot."""
        found = {at: self._words[_SLOT_WORDS * at + 1] & 0xFFFFFFFF for at in range(MAX_RULES)}
        return {at: number for at, number in found.items() if number}

    def slot_of(self, rule_id: str) -> int | None:
        """Return a rule's slot."""
        return next((at for at, number in self.numbers().items() if str(number) == rule_id), None)

    def assign(self, slot: int, rule_id: str) -> None:
        """Give a planned rule its number; it is disabled until `enable`."""
        flags = self._words[_SLOT_WORDS * slot + 1] >> 32
        self._words[_SLOT_WORDS * slot] = 0
        self._words[_SLOT_WORDS * slot + 1] = flags << 32 | int(rule_id)

    def enable(self, slot: int, seconds: float) -> None:
        """Enable a rule for so many seconds from now: one store, so no packet sees half of it."""
        deadline = time.clock_gettime_ns(time.CLOCK_MONOTONIC) + int(seconds * 1e9)
        self._words[_SLOT_WORDS * slot] = deadline

    def allow(self, allow: AllowList) -> None:
        """Write the peers that pass in their role; raises FwtopError if they are too many."""
        if self._peers is not None and self._peers.changed:
            self._peers.close()
            self._peers = None  # read anew what is in the map
        if self._peers is None:
            try:
                self._peers = Peers(self.maps["allow"])
            except OSError as error:
                raise FwtopError(f"the table of XDP rules' peers can't be mapped: {error.strerror}") from None
        self._peers.replace([allow.passes(family) for family in (4, 6)])

    @property
    def peers_changed(self) -> bool:
        """Whether somebody else changed the table of peers."""
        return self._peers is not None and self._peers.changed

    def is_enabled(self, slot: int) -> bool:
        """Return whether a rule's deadline lies ahead."""
        return self._words[_SLOT_WORDS * slot] > time.clock_gettime_ns(time.CLOCK_MONOTONIC)

    def disable(self, slot: int) -> None:
        """Stop a rule at once."""
        self._words[_SLOT_WORDS * slot] = 0

    def free(self, slot: int) -> None:
        """Free a slot that no program reads any more."""
        self._words[_SLOT_WORDS * slot] = 0
        self._words[_SLOT_WORDS * slot + 1] = 0

    def count(self, slot: int) -> tuple[int, int]:
        """Return the packets and bytes that a slot's rule hit, over all CPUs."""
        at = RULES_AT + _COUNT.size * slot
        pairs = [_COUNT.unpack_from(self._counters, at + cpu * COUNTERS_BYTES) for cpu in range(self.cpus)]
        return sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)

    @property
    def parse_errors(self) -> int:
        """Packets with malformed headers since the first rule, over all CPUs."""
        at = PARSE_ERRORS_AT
        return sum(
            _NUMBER.unpack_from(self._counters, at + cpu * COUNTERS_BYTES)[0] for cpu in range(self.cpus)
        )

    def close(self) -> None:
        """Unmap and close."""
        self._words.release()
        self._slots_map.close()
        self._counters.close()
        if self._peers is not None:
            self._peers.close()
        close_all(self.maps.values())
        self.maps = {}


def disable_pinned(path: Path, rule_ids: set[str]) -> set[str] | None:
    """Zero the deadlines of rules in a pinned map that the loader could not open, or of another version.

    Returns the ids of the rules that are still enabled; None where there is no such map, or it has another
    layout. Raises FwtopError.
    """
    try:
        descriptor = _open_slots(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FwtopError(
            f"{path} can't be opened: {error.strerror}; its XDP rules end by their deadlines"
        ) from None
    try:
        if bpf.value_size(descriptor) != SLOT_BYTES * MAX_RULES:
            return None
        with (
            map_array(descriptor, SLOT_BYTES * MAX_RULES, writable=True) as view,
            memoryview(view).cast("Q") as words,
        ):
            enabled, now = set(), time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            for at in range(0, _SLOT_WORDS * MAX_RULES, _SLOT_WORDS):
                rule_id = str(words[at + 1] & 0xFFFFFFFF)
                if rule_id in rule_ids:
                    words[at] = 0
                elif words[at] > now:
                    enabled.add(rule_id)
            return enabled
    finally:
        os.close(descriptor)


def _open_slots(path: Path) -> int:
    """Open the pinned map of slots; without its pin, find it through the programs that use it."""
    with contextlib.suppress(FileNotFoundError):
        return open_pin(path)
    for directory in (path.parent, Path(f"/proc/1/root{path.parent}")):
        with contextlib.suppress(PermissionError):
            if (found := find_shared(directory, path.name)) is not None:
                return found
    raise FileNotFoundError


def is_pinned(path: Path) -> bool:
    """Return whether something is pinned there, or in process 1's /sys: see `open_pin`."""
    for place in (path, Path(f"/proc/1/root{path}")):
        with contextlib.suppress(OSError):  # such as without CAP_SYS_PTRACE
            if place.exists():
                return True
    return False


def open_pin(path: Path) -> int:
    """Open a pinned object, in process 1's /sys, too: inside `ip netns exec` our own is another one."""
    try:
        return bpf.open_pin(path)
    except FileNotFoundError:
        with contextlib.suppress(PermissionError):  # without CAP_SYS_PTRACE
            return bpf.open_pin(Path(f"/proc/1/root{path}"))
        raise


def free_slot(used: dict[int, int]) -> int:
    """Return the lowest slot that is not in use; raises FwtopError when all are."""
    slot = next((at for at in range(MAX_RULES) if at not in used), None)
    if slot is None:
        raise FwtopError(f"{MAX_RULES} XDP rules are active already; nothing was installed")
    return slot


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
