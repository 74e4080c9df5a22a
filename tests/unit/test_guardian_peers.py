"""The table of who passes compiled rules in a role: as its reader in bpf/xdp_allow.h finds things."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from fwtop.guardian.compiled.peers import Peers, _place
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import TCP, Passes
from fwtop.model.errors import FwtopError
from fwtop.xdp.maps import ALLOW_BYTES, ALLOW_PEERS, ALLOW_PORT_WORDS, ALLOW_PROBES


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = os.memfd_create("peers")
    os.truncate(descriptor, ALLOW_BYTES)
    yield descriptor
    os.close(descriptor)


def passes(count: int, first: int = 0) -> Passes:
    peers = [(Prefix(4, 10 << 24 | at, 32), TCP, 30000 + at % 20000) for at in range(first, first + count)]
    return Passes(4, (), tuple(peers), ())


def found(memory: int, wanted: Passes) -> list[bool]:
    """Look each up as the program does: up to so many places, none behind an empty one."""
    data = memoryview(os.pread(memory, ALLOW_BYTES, 0)).cast("Q")
    result = []
    for address, protocol, port in wanted.peers:
        entry = (0, address.value, 4 << 24 | protocol << 16 | port)
        hit = bool(data[port >> 6] >> (port & 63) & 1)
        for probe in range(ALLOW_PROBES if hit else 0):
            at = ALLOW_PORT_WORDS + 3 * ((_place(entry) + probe) % ALLOW_PEERS)
            hit = tuple(data[at : at + 3]) == entry
            if hit or data[at + 2] == 0:
                break
        result.append(hit)
    return result


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
