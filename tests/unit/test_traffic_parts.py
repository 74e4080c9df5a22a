"""The tables of a part of the traffic: its own packets and no others, made once per window."""

from __future__ import annotations

import numpy as np
from analysis_factory import make_batch, make_frames, make_tables, make_window
from msgspec.structs import replace
from test_analysis_propose import VISITORS
from test_packet_signatures import SYNS
from test_standing import Halves

from fwtop.analysis.shown import JudgedTraffic
from fwtop.console.samples import TrafficParts
from fwtop.incidents.advisor import Advisor
from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.counters import DropCount
from fwtop.model.traffic.packets import Hook, NoOrigin, Window
from fwtop.model.traffic.snapshot import Judgement, TrafficPart

FLOOD = {"dport": 27015, "src": "random", "payload": "random_any", "count": 3000}


def judged(window: Window) -> tuple[Advisor, Judgement]:
    advisor = Advisor()
    return advisor, advisor.judge(window, make_tables(window))


def tables_of(advisor: Advisor) -> TrafficParts:
    return TrafficParts(lambda: advisor.judged, advisor.standing.mark, NoOrigin(), 20)


def test_each_attack_has_its_own_ports_sources_and_signatures() -> None:
    window = make_window(make_batch(make_frames([VISITORS, SYNS, FLOOD], 5.0)), 5.0)
    advisor, judgement = judged(window)
    tables = tables_of(advisor)
    syn, other = (next(a for a in judgement.attacks if ("SYN" in a.title) is syn) for syn in (True, False))
    for attack, port, protocol in ((syn, 80, "tcp"), (other, 27015, "udp")):
        found = tables.of(TrafficPart(attack.id))
        assert found is not None
        assert found.part.attack == attack.id
        assert {row.port for row in found.tables.ports if row.side == "dst"} == {port}
        assert list(found.tables.protocols) == [protocol]
        assert found.tables.totals.packets == round(attack.pps * 5)
        assert {row.who for row in found.tables.sources.address} == {"attack"}
        assert found.tables.destinations[0].share.share == 1.0
        assert all(one.attack_share == 1.0 and one.match.dport == port for one in found.signatures)
    signature = tables.of(TrafficPart(syn.id))
    assert signature is not None
    assert signature.signatures[0].share.share > 0.99


def test_they_are_made_once_per_window() -> None:
    window = make_window(make_batch(make_frames([VISITORS, SYNS], 5.0)), 5.0)
    advisor, judgement = judged(window)
    tables, part = tables_of(advisor), TrafficPart(judgement.attacks[0].id)
    first = tables.of(part)
    assert tables.of(part) is first
    advisor.judge(window, make_tables(window))
    assert tables.of(part) is not first
    assert tables.of(part) == first


def test_an_attack_without_packets_and_an_unknown_one_have_no_tables() -> None:
    assert TrafficParts(lambda: None, lambda rows: rows, NoOrigin(), 20).of(TrafficPart()) is None
    window = make_window(make_batch(make_frames([VISITORS, SYNS], 5.0)), 5.0)
    advisor, judgement = judged(window)
    assert tables_of(advisor).of(TrafficPart("udp_flood nowhere")) is None
    assert isinstance(advisor.judged, JudgedTraffic)
    finding = advisor.judged.findings[judgement.attacks[0].id]
    state = replace(advisor.judged, findings={"state": replace(finding, state=True)})
    assert TrafficParts(lambda: state, lambda rows: rows, NoOrigin(), 20).of(TrafficPart("state")) is None


def test_drops_of_other_traffic_are_not_its_own() -> None:
    whole = make_batch(make_frames([SYNS, FLOOD], 5.0), weight=2.0)
    lost = whole.select(np.flatnonzero(whole.dport == 27015))
    lost.hook[:] = Hook.DROP
    window = make_window(whole, 5.0, live=True)
    drops = (DropCount("netfilter", "NETFILTER_DROP", round(lost.weight.sum())),)
    window = replace(window, dropped=lost, counters=replace(window.counters, drops=drops))
    advisor, judgement = judged(window)
    tables = tables_of(advisor)
    by_port = {}
    for attack in judgement.attacks:
        found = tables.of(TrafficPart(attack.id))
        if found is not None:
            by_port[found.tables.ports[0].port] = found.tables.destinations[0].dropped_share
    assert by_port[80] == 0.0
    assert by_port[27015] > 0.95


def test_a_prefix_has_all_its_addresses_and_what_attacks_claim_of_it() -> None:
    window = make_window(make_batch(make_frames([VISITORS, SYNS], 5.0)), 5.0)
    advisor, _ = judged(window)
    assert advisor.judged is not None
    packets = advisor.judged.context.traffic.packets
    visitor = packets.src_lo[packets.tcp_flags == 24][0]
    prefix = Prefix(4, int(visitor) >> 24 << 24, 8)
    inside = packets.src_lo >> np.uint64(24) == prefix.value >> 24
    found = tables_of(advisor).of(TrafficPart(prefix=prefix))
    assert found is not None
    assert found.tables.totals.packets == inside.sum()
    assert sum(row.share.packets for row in found.tables.sources.address) <= inside.sum()
    assert all(row.prefix is not None and prefix.contains(row.prefix) for row in found.tables.sources.address)
    both = tables_of(advisor).of(TrafficPart(next(iter(advisor.judged.findings)), prefix))
    assert both is not None
    assert 0 < both.tables.totals.packets < inside.sum()


def test_networks_and_countries_are_told_apart_by_the_lookup() -> None:
    window = make_window(make_batch(make_frames([VISITORS, SYNS], 5.0)), 5.0)
    advisor, _ = judged(window)
    parts = TrafficParts(lambda: advisor.judged, lambda rows: rows, Halves(), 20)
    by_number, by_letters = parts.of(TrafficPart(asn=1)), parts.of(TrafficPart(country="NL"))
    assert by_number is not None
    assert by_letters is not None
    assert by_number.tables == by_letters.tables
    assert [row.key for row in by_number.tables.sources.asn] == ["AS1"]
    assert parts.of(TrafficPart(asn=7)) is None
