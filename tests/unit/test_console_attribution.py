"""Sampled drops carry the rule that made them: by its conditions, or else by its counter."""

from __future__ import annotations

import time

import numpy as np
import pytest
from msgspec.structs import replace

from fwtop.console.attribution import DropAttribution
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import AllowedPeer, Role
from fwtop.model.rule import Kind, Match, RateLimit, Rule, RuleStatus, State
from fwtop.model.traffic.counters import Counters, DropCount, RuleCount
from fwtop.model.traffic.packets import Hook, PacketBatch
from fwtop.stats.ledger import balance

CODE = 7
DROPS = (DropCount("netfilter", "NETFILTER_DROP", 600, code=CODE),)


SECOND = 1_000_000_000  # of the kernel's clock, in ns
BOOT = time.time() - time.monotonic()  # Unix seconds


def read_at(second: int) -> float:
    """Return the wall clock's time just after the last packet of that second."""
    return BOOT + second - 0.001


def drops(count: int, weight: float = 1.0, length: int = 114, **columns: int) -> PacketBatch:
    batch = PacketBatch.zeros(count, 8)
    batch.weight[:] = weight
    batch.length[:] = length
    batch.family[:] = 4
    batch.hook[:] = Hook.DROP
    batch.reason[:] = CODE
    batch.src_lo[:] = Prefix.parse("192.0.2.1").lo
    for name, value in columns.items():
        getattr(batch, name)[:] = value
    return batch


def status(match: Match, kind: Kind = Kind.STRING, **fields: object) -> RuleStatus:
    rule = Rule("5", kind, match, "drop", 600, limit=fields.pop("limit", None))  # type: ignore[arg-type]
    return replace(RuleStatus(rule, State.CONFIRMED), **fields)  # type: ignore[arg-type]


def counters(**changes: object) -> Counters:
    return replace(Counters(1.0, 600, 60_000, 0, drops=DROPS), **changes)  # type: ignore[arg-type]


def test_a_fragmented_datagram_is_its_rules_as_a_whole() -> None:
    """A rule counts the datagram, the kernel's drop counter its three fragments."""
    batch = DropAttribution().mark(
        drops(200, weight=3.0, protocol=17, sport=53), counters(), [status(Match(protocol=17, sport=53))]
    )
    counted = counters(rules=(RuleCount("5", 200, 0),))
    rows = balance(counted, batch, PacketBatch.empty()).rows
    assert [(row.rule, row.packets) for row in rows if row.layer == "netfilter"] == [("5", 600)]


def test_what_another_firewall_drops_stays_foreign() -> None:
    batch = PacketBatch.concat([drops(300, protocol=17, sport=53), drops(300, protocol=6, dport=23)])
    marked = DropAttribution().mark(batch, counters(), [status(Match(protocol=17, sport=53))])
    rows = balance(counters(), marked, PacketBatch.empty()).rows
    found = {row.rule: row for row in rows if row.layer == "netfilter"}
    assert {rule: row.packets for rule, row in found.items()} == {"5": 300, None: 300}
    assert "foreign" in found[None].reason
    assert found[None].mostly == Match(protocol=6, dport=23)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (Kind.HASHLIMIT, {"limit": RateLimit(10, 10)}),
        (Kind.IPSET, {"sources_total": 1_000}),  # most of its sources are known to the guardian only
    ],
)
def test_counter_decides_where_the_conditions_dont(kind: Kind, changes: dict[str, object]) -> None:
    attribution = DropAttribution()
    share = 0.0
    for reading in range(6):  # of 40,000 bytes that may be its own it counts 10,000
        now = status(Match(protocol=17), kind, bytes=10_000 * reading, counted_at=read_at(reading), **changes)
        marked = attribution.mark(drops(400, protocol=17, time_ns=SECOND * reading), counters(), [now])
        share = float((marked.rule == 5).mean())
    assert share == pytest.approx(0.25, abs=0.1)


def test_readings_that_come_late_dont_make_drops_foreign() -> None:
    """The first reading of the counter arrives at once, each later one half a second after it was made."""
    attribution = DropAttribution()
    shares = []
    for half in range(1, 11):  # polls of half a second, in which the rule drops all of 20,000 bytes
        second = half // 2 if half < 4 else (half - 1) // 2
        now = status(Match(protocol=17), bytes=40_000 * second, counted_at=read_at(second))
        times = np.linspace(half - 1, half, 200, endpoint=False) * SECOND // 2 + 1
        batch = replace(drops(200, protocol=17), time_ns=times.astype(np.int64))
        shares.append(float((attribution.mark(batch, counters(), [now]).rule == 5).mean()))
    assert shares == [1.0] * len(shares)


def test_only_active_rules_and_their_kind_of_drop_count() -> None:
    match = Match(protocol=17)
    batch = drops(50, protocol=17)
    gone = replace(status(match), state=State.EXPIRED)
    assert not DropAttribution().mark(batch, counters(), [gone]).rule.any()
    compiled = status(match, Kind.XDP)
    assert not DropAttribution().mark(batch, counters(), [compiled]).rule.any()
    at_tc = counters(drops=(DropCount("tc", "TC_INGRESS", 50, code=CODE),))
    assert DropAttribution().mark(batch, at_tc, [compiled]).rule.all()
    peer = AllowedPeer(Prefix.parse("192.0.2.0/24"), Role.OPERATOR)
    assert not DropAttribution().mark(batch, counters(), [status(match)], [peer]).rule.any()


@pytest.mark.parametrize("after", ["gone", "ended", "changed"])
def test_the_last_drops_of_a_rule_that_just_went_are_its_own(after: str) -> None:
    """Samples wait in buffers: they come when the guardian says already that the rule is no more."""
    attribution, rule = DropAttribution(), status(Match(protocol=17))
    attribution.mark(drops(10, protocol=17), counters(), [rule])
    changed = replace(rule, stamp=1, rule=replace(rule.rule, match=Match(protocol=6)))
    told = {"gone": [], "ended": [replace(rule, state=State.REVERTED)], "changed": [changed]}[after]
    assert (attribution.mark(drops(10, protocol=17), counters(), told).rule == 5).all()
    later = drops(10, protocol=17, time_ns=time.monotonic_ns() + 60 * SECOND)
    assert not attribution.mark(later, counters(), told).rule.any(), "another firewall's"


def test_a_counter_that_began_anew_makes_no_drop_foreign() -> None:
    """The lines of a rule were flushed and put back: they count from 0."""
    attribution, shares = DropAttribution(), []
    for second in range(1, 8):  # it counts all of 40,000 bytes a second, and from the fourth on anew
        now = status(Match(protocol=17), bytes=40_000 * (second % 4), counted_at=read_at(second))
        times = np.linspace(second - 1, second, 400, endpoint=False) * SECOND + 1
        batch = replace(drops(400, protocol=17), time_ns=times.astype(np.int64))
        shares.append(float((attribution.mark(batch, counters(), [now]).rule == 5).mean()))
    assert shares == [1.0] * len(shares)


def test_drops_from_before_a_rule_are_not_its_own() -> None:
    late = status(Match(protocol=17))
    late = replace(late, rule=replace(late.rule, created=4e9))
    batch = drops(10, protocol=17)
    assert not np.any(DropAttribution().mark(batch, counters(), [late]).rule)


def test_a_rule_in_raw_gets_packets_before_a_syn_proxy() -> None:
    proxy = status(Match(protocol=17), Kind.SYNPROXY)
    block = status(Match(protocol=17), Kind.IPSET)
    block = replace(block, rule=replace(block.rule, id="9"))
    assert set(DropAttribution().mark(drops(50, protocol=17), counters(), [proxy, block]).rule) == {9}
