"""Compiled rules in a clsact filter, for kernels before 6.6; newer ones support it, too."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from guardian_bench import PORT, Path4or6
from xdp_programs import Compiled

from fwtop.kernel import bpffs, clsact
from fwtop.model.rule import Match
from fwtop.xdp import attach
from fwtop.xdp.build import build_tc
from tests.kernel.wire import inside

pytestmark = pytest.mark.kernel


@pytest.fixture
def pins(netns_pair) -> Iterator[Path]:
    netns = os.stat(f"/run/netns/{netns_pair.victim.netns}").st_ino  # any guardian sweeps the pins of others
    with bpffs.locked():
        directory = bpffs.make_directory(netns)
    yield directory
    with bpffs.locked():
        bpffs.remove_directory(netns)


def rules(port: int) -> Compiled:
    return Compiled([Match(protocol=17, dport=port)], build=build_tc)


@pytest.mark.parametrize("foreign", [False, True])
def test_a_filter_drops_is_replaced_and_leaves_nothing_behind(netns_pair, pins: Path, foreign: bool) -> None:
    victim = netns_pair.victim
    if foreign:
        victim.run("tc", "qdisc", "add", "dev", "v0", "clsact")
    before, no_pins = victim.run("tc", "qdisc").stdout, list(pins.iterdir())
    path = Path4or6(netns_pair, 4)
    assert path.passes(wait_s=30)
    with rules(PORT) as hits, rules(PORT + 1) as misses, inside(victim.netns):
        index = socket.if_nametoindex("v0")
        attach.attach_filter(pins, hits.program, index, "ingress")
        assert not path.passes()
        assert hits.counts()[0] == 1
        clsact.attach(misses.program, index, 0)  # as an observer, whose going leaves the rules
        clsact.detach(None)
        assert not path.passes()
        attach.attach_filter(pins, misses.program, index, "ingress")
        assert path.passes(wait_s=30)
        assert [(at, mode) for _, at, mode in attach.pinned(pins)] == [(index, "ingress")]
        attach.detach_all(pins)
        assert list(pins.iterdir()) == no_pins
    assert victim.run("tc", "qdisc").stdout == before
    assert "bpf" not in victim.run("tc", "filter", "show", "dev", "v0", "ingress").stdout
    path.close()
