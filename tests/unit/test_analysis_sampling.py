"""At one sample in 20, packets of one connection are hardly ever seen together: still no false names."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from analysis_factory import make_batch, make_frames, make_tables, make_window
from analysis_flows import connection, hosts
from analysis_payloads import client_hello
from msgspec.structs import replace

from fwtop.incidents.advisor import Advisor
from fwtop.model.traffic.snapshot import Judgement

ONE_IN = 20
WEB = {"make": "connections", "src": "500", "count": 1500}
SYN = {"protocol": "tcp", "flags": "S", "dport": 80, "count": 20_000}
ANSWERS = {"src": "900", "sport": 53, "payload": "answer a.example 255 2900", "fragment": 1480, "count": 9000}
OPTIONS = {"options": "020405b40402080a" + "0" * 24}


def sampled(items: list[dict[str, Any]]) -> Judgement:
    batch = make_batch(make_frames(items, 5.0))
    batch = batch.select(np.random.default_rng(1).random(len(batch)) < 1 / ONE_IN)
    batch.weight[:] = ONE_IN
    window = make_window(batch, 5.0, live=True)
    return Advisor().judge(window, make_tables(window))


@pytest.mark.parametrize(
    "items",
    [
        [{**WEB, "src": "2000", "count": 3000, "payload": "same_page", "requests": 2}],
        [{**WEB, "src": "2000", "count": 3000, "payload": "hello", "dport": 443, "acks": 8}],
        [{**WEB, "src": "2000", "count": 5000, "acks": 1}],
        [{"make": "udp_conversations", "src": "300", "dport": 27015, "payload": "game", "count": 20_000}],
        [{"src": "2000", "dport": 53, "payload": "many_queries", "count": 20_000}],
    ],
    ids=["crowd", "tls_crowd", "short_connections", "game", "dns"],
)
def test_crowds_are_no_attacks(items: list[dict[str, Any]]) -> None:
    judgement = sampled(items)
    assert [(attack.kind, attack.evidence) for attack in judgement.attacks] == []


@pytest.mark.parametrize(
    ("items", "kinds"),
    [
        ([SYN], {"syn_flood"}),
        ([{**SYN, **OPTIONS}], {"syn_flood"}),
        ([{**SYN, "flags": "A"}], {"ack_flood"}),
        ([{**SYN, "flags": "F"}], {"fin_flood"}),
        ([{**SYN, "flags": "R"}], {"rst_flood"}),
        ([{**SYN, "count": 12_000}, {**SYN, "flags": "A"}], {"syn_flood", "ack_flood"}),
        ([ANSWERS], {"dns_amplification"}),
        ([{"dport": 80, "payload": "zeros", "fragment": 264, "count": 12_000}], {"udp_flood"}),
    ],
    ids=["syn", "syn_with_options", "ack", "fin", "rst", "syn_and_ack", "dns_fragments", "udp_fragments"],
)
def test_floods_among_visitors_are_named(items: list[dict[str, Any]], kinds: set[str]) -> None:
    judgement = sampled([WEB, *items])
    assert {attack.kind for attack in judgement.attacks} == kinds, judgement.attacks
    shares = sum(attack.share for attack in judgement.attacks)
    assert 0.5 < shares <= 1.0


def test_rates_add_up_to_what_the_kernel_counted_though_samples_were_lost() -> None:
    batch = make_batch(make_frames([SYN], 5.0))
    window = make_window(batch.select(slice(None, None, 2)), 5.0, live=True)
    counters = replace(window.counters, arrived_packets=len(batch))
    window = replace(window, counters=counters)
    (attack,) = Advisor().judge(window, make_tables(window)).attacks
    assert attack.pps == pytest.approx(len(batch) / 5.0)


@pytest.mark.parametrize("one_in", [2, 6])
@pytest.mark.parametrize(("loads", "end", "kinds"), [
    (0, "FA", {"tls_flood"}), (3, "FA", set()), (0, "", set()),
])  # fmt: skip
def test_floods_of_hellos_show_in_a_sample_where_no_connection_is_whole(
    one_in: int, loads: int, end: str, kinds: set[str]
) -> None:
    rng = Random(11)
    frames = []
    for host in hosts(rng, 200):
        for _ in range(20):
            said = [
                client_hello(rng, "shop.example"),
                *(b"\x17\3\3\1\0" + rng.randbytes(256) for _ in range(loads)),
            ]
            frames += connection(rng, host, 443, said, end=end, at=rng.random() * 3.5)
    frames = sorted((frame for frame in frames if rng.randrange(one_in) == 0), key=lambda frame: frame[0])
    window = make_window(make_batch(frames, weight=float(one_in)), 4.0, live=True)
    assert {attack.kind for attack in Advisor().judge(window, make_tables(window)).attacks} == kinds
