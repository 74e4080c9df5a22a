"""A console sees drops by XDP rules: as arrivals, in the ledger by rule, and as samples."""

from __future__ import annotations

import os

import numpy as np
import pytest
from guardian_bench import PORT, Bench, answers, apply, inside
from msgspec import Struct
from xdp_bench import XdpBench, xdp

from fwtop.client.discovery import GuardianClient
from fwtop.live.mapped import SLOT_BYTES
from fwtop.live.source import LiveSource
from fwtop.model.protocol import Undo, Watch
from fwtop.model.rule import Match
from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.packets import Hook, PacketBatch
from fwtop.observe.messages import SHARED_MAPS, decode_reply
from fwtop.observe.programs import RING_BYTES
from fwtop.stats.ledger import balance
from tests.kernel.wire import put_behind_a_bridge

pytestmark = pytest.mark.kernel
BENCH = XdpBench
RECORDS = RING_BYTES // SLOT_BYTES
RULE = Match(protocol=17, dport=PORT)


class Watching(Struct):
    bench: Bench
    source: LiveSource

    def poll(self) -> tuple[PacketBatch, Counters]:
        with inside(self.bench.netns):
            return self.source.poll()

    def send(self, count: int) -> tuple[PacketBatch, Counters]:
        """Send packets; returns what is seen of them once all have arrived."""
        self.poll()
        for _ in range(count):
            self.bench.path(4).send()
        assert answers(self.bench, 4, 8, wait_s=30)  # what was sent before it has come, too
        return self.poll()


def watch(bench: Bench, guardian: GuardianClient, interface: str = "v0") -> Watching:
    answer, descriptors = guardian.watch(Watch((interface,)))
    assert answer.ok, answer.error
    with inside(bench.netns):
        source = LiveSource(*decode_reply(answer, descriptors))
    return Watching(bench, source)


def xdp_rows(batch: PacketBatch) -> PacketBatch:
    return batch.select(batch.hook == Hook.XDP)


def check(watching: Watching, rule_id: str) -> None:
    batch, counters = watching.send(50)
    drops = [drop for drop in counters.drops if drop.rule == rule_id]
    assert [(drop.layer, drop.packets) for drop in drops] == [("xdp", 50)]
    assert counters.protocols["udp"][0] == 50  # beside ARP, which may come in between
    assert counters.arrived_packets == sum(packets for packets, _ in counters.protocols.values())
    ledger = balance(counters, PacketBatch.empty(), PacketBatch.empty())
    # The kernel's own multicast listener reports come at any time and end nowhere in particular
    assert sum(abs(row.packets) for row in ledger.rows if row.layer == "unexplained") < 5
    seen = xdp_rows(batch)
    assert seen.weight.sum() == 50
    assert set(seen.rule.tolist()) == {int(rule_id)}
    assert np.all(seen.dport == PORT)
    assert np.all(seen.ifindex > 0)


def test_a_rule_installed_after_the_console_started(bench: Bench) -> None:
    with bench.connect("console") as console, bench.connect() as guardian:
        watching = watch(bench, console)
        batch, counters = watching.send(5)
        assert counters.protocols["udp"][0] == 5
        assert len(xdp_rows(batch)) == 0
        rule_id = apply(guardian, xdp(RULE))
        check(watching, rule_id)
        guardian.demand(Undo((rule_id,)))
        again = apply(guardian, xdp(RULE))
        _, counters = watching.poll()  # what the rule before it hit, in the same slot, is not its own
        assert [drop for drop in counters.drops if drop.rule == again] == []
        check(watching, again)
        watching.source.close()


def test_a_ring_that_nobody_empties_gets_fewer_samples_and_loses_none(bench: Bench) -> None:
    with bench.connect("console") as console, bench.connect() as guardian:
        watching = watch(bench, console)
        apply(guardian, xdp(RULE))
        batch, counters = watching.send(RECORDS * 5 // 4)
        assert counters.records_lost == 0
        assert xdp_rows(batch).weight.sum() == pytest.approx(RECORDS * 5 // 4, rel=0.1)
        watching.source.close()


def test_consoles_started_after_the_rule(bench: Bench) -> None:
    with bench.connect() as guardian:
        rule_id = apply(guardian, xdp(RULE))
        with bench.connect("console") as one, bench.connect("console") as two:
            first, second = watch(bench, one), watch(bench, two)
            check(first, rule_id)
            batch, counters = second.poll()
            assert xdp_rows(batch).weight.sum() == 50
            assert counters.protocols["udp"][0] == 50
            first.source.close()
            second.source.close()
        with bench.connect("console") as third:  # the rings of those that left are not in the way
            later = watch(bench, third)
            check(later, rule_id)
            later.source.close()


def test_a_consoles_descriptors_cant_change_rules(bench: Bench) -> None:
    with bench.connect("console") as console:
        answer, descriptors = console.watch(Watch(("v0",)))
        names = answer.data["fds"]
        assert not any(name.startswith(SHARED_MAPS) for name in names)
        from fwtop.xdp.maps import map_array

        slots = descriptors[names.index("xdp:slots")]
        with pytest.raises(PermissionError):
            map_array(slots, 4096, writable=True)
        for descriptor in descriptors:
            os.close(descriptor)


def test_generic_drops_are_counted_once(bench: Bench) -> None:
    """The kernel frees packets dropped by generic XDP like any others, and counts them as drops, too."""
    put_behind_a_bridge(bench.pair.victim)
    assert bench.path(4).passes(wait_s=30)
    with bench.connect("console") as console, bench.connect() as guardian:
        answer, descriptors = console.watch(Watch())
        with inside(bench.netns):
            source = LiveSource(*decode_reply(answer, descriptors))
        watching = Watching(bench, source)
        rule_id = apply(guardian, xdp(RULE))
        _, counters = watching.send(50)
        assert [(d.layer, d.packets, d.rule) for d in counters.drops if d.packets > 9] == [
            ("xdp", 50, rule_id)
        ], counters.drops
        source.close()
