"""What no rule can name: said to be a flood when it is beyond what is usual, or refused by this machine."""

from __future__ import annotations

from typing import Any

import numpy as np
from analysis_factory import make_batch, make_frames, make_tables, make_window
from msgspec.structs import replace

from fwtop.analysis.memory import class_rates
from fwtop.incidents.advisor import Advisor
from fwtop.model.traffic.counters import DropCount
from fwtop.model.traffic.snapshot import Judgement

VISITORS = {"make": "connections", "src": "60", "count": 30}
# A tunnel's look, few peers with packets of many sizes, at 4,000 packets a second
TUNNEL = {"protocol": 98, "src": "8", "payload": "random_any", "count": 2000}
SECONDS, WEIGHT = 5.0, 10.0


def judged(items: list[dict[str, Any]], *drops: DropCount, advisor: Advisor | None = None) -> Judgement:
    window = make_window(make_batch(make_frames(items, SECONDS), weight=WEIGHT), SECONDS, live=True)
    window = replace(window, counters=replace(window.counters, drops=drops))
    return (advisor or Advisor()).judge(window, make_tables(window))


def test_what_is_refused_in_such_numbers_is_a_flood_without_any_baseline() -> None:
    refused = DropCount("netfilter", "NETFILTER_DROP", 20_000)
    judgement = judged([VISITORS, TUNNEL], refused)
    (attack,) = judgement.attacks
    assert attack.kind == "unknown_flood"
    assert 0.4 < attack.confidence < 0.8  # it says only that nothing known explains it
    assert any("are rejected by this host" in sentence for sentence in attack.evidence)
    assert any("have protocol 98" in sentence for sentence in attack.evidence)
    first = judgement.proposals[0]
    assert first.attack_share >= 0.95
    assert first.collateral_share <= 0.005
    assert {one.kind for one in judgement.proposals} >= {"xdp", "ipset"}
    assert any(one.fwtop == "fwtop drop -4 --proto 98 --via xdp --ttl 10m" for one in judgement.proposals)


def test_what_a_full_socket_loses_is_no_refusal() -> None:
    assert judged([VISITORS, TUNNEL]).attacks == ()
    assert judged([VISITORS, TUNNEL], DropCount("socket", "SOCKET_RCVBUFF", 20_000)).attacks == ()


def test_a_few_refused_packets_a_second_are_every_day() -> None:
    few = {**TUNNEL, "count": 600}  # 1,200 a second
    assert judged([few], DropCount("netfilter", "NETFILTER_DROP", 6_000)).attacks == ()


def test_packets_of_a_protocol_that_nothing_here_handles_are_no_tunnels() -> None:
    few = {**TUNNEL, "count": 300}  # 600 a second
    gre = {"protocol": 47, "src": "1", "payload": "random_any", "count": 300}
    window = make_window(
        make_batch(make_frames([VISITORS, few, gre], SECONDS), weight=WEIGHT), SECONDS, live=True
    )
    assert not Advisor().judge(window, make_tables(window)).attacks
    samples = window.arrived.select(window.arrived.protocol == 98)
    samples = replace(samples, reason=np.full(len(samples), 5, np.uint16))
    drop = DropCount("ip", "IP_NOPROTO", 3_000, code=5)
    window = replace(window, dropped=samples, counters=replace(window.counters, drops=(drop,)))
    (attack,) = Advisor().judge(window, make_tables(window)).attacks
    assert attack.kind == "ip_protocol_flood"
    assert "nothing on this host handles them" in attack.evidence


def quiet_advisor() -> Advisor:
    """An advisor that has watched visitors for 20 s."""
    advisor = Advisor()
    batch = make_batch(make_frames([{**VISITORS, "count": 300}], 20.0))
    first = int(batch.time_ns.min())
    for end in range(1, 21):
        inside = (batch.time_ns >= first + (end - 2) * 10**9) & (batch.time_ns < first + end * 10**9)
        window = make_window(batch.select(inside), 2.0, live=True, started=float(end - 2))
        assert not advisor.judge(window, make_tables(window)).attacks
    assert advisor.baseline.ready
    return advisor


def test_more_than_ever_before_is_a_flood_though_it_is_delivered() -> None:
    (attack,) = judged([VISITORS, TUNNEL], advisor=quiet_advisor()).attacks
    assert attack.kind == "unknown_flood"
    assert any("normally up to" in sentence for sentence in attack.evidence)


def test_a_surge_counts_by_its_busiest_second() -> None:
    advisor = quiet_advisor()
    visitors, surge = make_frames([VISITORS], SECONDS), make_frames([{**TUNNEL, "count": 1000}], 1.0)
    last = [(at + SECONDS - 1, frame) for at, frame in surge]  # 10,000 packets in the last second
    window = make_window(make_batch(sorted([*visitors, *last]), weight=WEIGHT), SECONDS, live=True)
    (attack,) = advisor.judge(window, make_tables(window)).attacks
    assert attack.kind == "unknown_flood"


def test_what_this_host_usually_rejects_in_such_numbers_is_none() -> None:
    refused = DropCount("netfilter", "NETFILTER_DROP", 20_000)
    usual = make_batch(make_frames([VISITORS, TUNNEL], SECONDS), weight=WEIGHT)
    advisor = Advisor()
    advisor.baseline.keep_rates(class_rates(usual, SECONDS), 20.0)
    advisor.baseline.keep_rows(usual)
    assert judged([VISITORS, TUNNEL], refused, advisor=advisor).attacks == ()
