"""The table of who passes compiled rules in a role: as its reader in bpf/xdp_allow.h finds things."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from fwtop.guardian.mechanisms.compiled.slots import Peers, _place
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import Conversation, Passes
from fwtop.model.errors import FwtopError
from fwtop.model.traffic.protocols import TCP
from fwtop.xdp.maps import (
    ALLOW_BEHIND,
    ALLOW_BYTES,
    ALLOW_PEERS,
    ALLOW_PORT_WORDS,
    ALLOW_PROBES,
    BEHIND_AT,
)


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = os.memfd_create("peers")
    os.truncate(descriptor, ALLOW_BYTES)
    yield descriptor
    os.close(descriptor)


def passes(count: int, first: int = 0) -> Passes:
    peers = [(Prefix(4, 10 << 24 | at, 32), TCP, 30000 + at % 20000) for at in range(first, first + count)]
    host = Prefix(4, 192 << 24 | first, 32)
    behind = [Conversation(*peer, host) for peer in peers[: count // 4]]
    return Passes(4, (), tuple(peers), (), tuple(behind))


def found(memory: int, wanted: Passes) -> list[bool]:
    """Look each up as the program does: up to so many places, none behind an empty one."""
    data = memoryview(os.pread(memory, ALLOW_BYTES, 0)).cast("Q")
    peers = [(port, (0, who.value, 4 << 24 | protocol << 16 | port)) for who, protocol, port in wanted.peers]
    behind = [
        (it.port, (0, it.peer.value, 0, it.host.value, 4 << 24 | it.protocol << 16 | it.port))
        for it in wanted.behind
    ]
    tables = ((0, ALLOW_PEERS, peers), (BEHIND_AT, ALLOW_BEHIND, behind))
    return [
        bool(data[first + (port >> 6)] >> (port & 63) & 1)
        and is_in(data[first + ALLOW_PORT_WORDS :], entry, size)
        for first, size, entries in tables
        for port, entry in entries
    ]


def is_in(table: memoryview, entry: tuple[int, ...], size: int) -> bool:
    for probe in range(ALLOW_PROBES):
        at = len(entry) * ((_place(entry, size) + probe) % size)
        there = tuple(table[at : at + len(entry)])
        if there == entry or there[-1] == 0:
            return there == entry
    return False


def test_who_comes_is_found_and_who_goes_is_not(memory: int) -> None:
    peers = Peers(memory)
    for first in range(0, 20_000, 1_000):  # so that many places have been given up
        peers.replace([passes(2_000, first)])
        assert all(found(memory, passes(2_000, first)))
        assert not any(found(memory, passes(1_000, first - 1_000 if first else 5_000)))
    peers.close()


def test_the_next_guardian_takes_over_what_is_there(memory: int) -> None:
    first = Peers(memory)
    first.replace([passes(100)])
    first.close()
    second = Peers(memory)
    second.replace([passes(100, 50)])
    second.close()
    assert all(found(memory, passes(100, 50)))
    assert not any(found(memory, passes(50)))


def test_too_many_are_told(memory: int) -> None:
    peers = Peers(memory)
    with pytest.raises(FwtopError, match="no room"):
        peers.replace([passes(9_000)])
    peers.close()
