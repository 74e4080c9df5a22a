"""Looks at a real connection table: who fills it, and what other namespaces' entries are to that."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from benches.connections import establish
from fwtop.harden.table import read_table, service_of
from fwtop.kernel import netlink
from fwtop.netfilter import ctnetlink
from fwtop.netfilter.ctnetlink import Entry
from tests.kernel.conftest import ip
from tests.kernel.wire import inside

pytestmark = pytest.mark.kernel


@contextlib.contextmanager
def _namespace(name: str) -> Iterator[str]:
    ip("netns", "add", name)
    try:
        yield name
    finally:
        with contextlib.suppress(AssertionError):
            ip("netns", "delete", name)


@pytest.fixture
def netns() -> Iterator[str]:
    with _namespace(f"fwc{os.getpid()}") as name:
        yield name


@pytest.fixture
def neighbour() -> Iterator[str]:
    with _namespace(f"fwc{os.getpid()}n") as name:
        yield name


def test_what_comes_first_is_a_fair_sample(netns: str) -> None:
    """Five services of known shares; ten standard errors leave no room for chance, and little for bias."""
    sizes = {443: 12_000, 80: 6_000, 25: 4_000, 8443: 1_000, 9: 500}
    with inside(netns):
        for port, size in sizes.items():
            establish(size, "198.51.100.1", port)
        table = read_table()
    assert table.count == sum(sizes.values())
    seen = len(table.sampled)
    assert 256 < seen < table.count  # beside other tests' namespaces fewer than SAMPLED
    shares = dict(table.top(service_of, 10))
    for port, size in sizes.items():
        share = size / table.count
        assert abs(shares[f"tcp/{port}"] - share) < 10 * (share * (1 - share) / seen) ** 0.5


def test_few_entries_among_many_of_another_namespace_are_not_looked_for(netns: str, neighbour: str) -> None:
    with inside(netns):
        establish(100, "198.51.100.1", 80)
    with inside(neighbour):
        establish(120_000, "198.51.100.1", 443)
    with inside(netns):
        table = read_table()
    assert (table.count, table.sampled) == (100, ())
    assert table.everywhere >= 120_100


@pytest.mark.parametrize(("few", "walks"), [(ctnetlink._FEW, 1), (-1, 3)])
def test_what_some_addresses_began_is_read_in_one_walk_of_a_small_table(
    netns: str, monkeypatch: pytest.MonkeyPatch, few: int, walks: int
) -> None:
    own = [(4, bytes([10, 0, 0, 1])), (4, bytes([10, 0, 0, 2])), (6, bytes(15) + b"\2")]
    peers = [(4, bytes([10, 0, 0, 9])), (6, bytes(15) + b"\3")]
    asked, dump = [], netlink.dump
    monkeypatch.setattr(ctnetlink, "_FEW", few)
    monkeypatch.setattr(netlink, "dump", lambda *about: asked.append(about) or dump(*about))
    with inside(netns):
        for family, address in own:
            peer = dict(peers)[family]
            for source, destination, sport in ((address, peer, 4000), (peer, address, 5000)):
                ctnetlink.establish(Entry(family, 6, source, destination, sport, 443), None, 60)
        begun = list(ctnetlink.begun_by(own, 8))
        assert len(list(ctnetlink.begun_by(own, 2))) == 2
    assert sorted((one.family, one.source) for one in begun) == own
    assert {one.sport for one in begun} == {4000}
    assert walks <= len(asked) <= 2 * walks
