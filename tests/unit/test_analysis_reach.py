"""Whom proposals reach beyond an attack: addresses that their lists add, and all clients of a service."""

from __future__ import annotations

import copy
import functools
import json

import pytest
from analysis_factory import SYN_OPTIONS, make_batch, make_frames, make_tables, make_window

from fwtop.analysis.memory import Baseline
from fwtop.analysis.proposals.preview import preview
from fwtop.incidents.advisor import Advisor
from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Kind, Match, Rule
from fwtop.model.traffic.packets import Window
from fwtop.model.traffic.snapshot import Judgement

SECONDS = 20
CALM = (
    {"make": "connections", "src": "60", "count": 800, "dport": 80},
    {"make": "connections", "src": "30", "count": 200, "dport": 25},
    {"make": "udp_conversations", "src": "80", "count": 1600, "dport": 53, "payload": "many_queries"},
)
TABLE = """
attack                       first proposal                              not first, if offered
ntp from three /10s          drop IPv4 UDP from port 123                 block
noise to dns, forged         call the provider                           closes 53/udp to everybody: drop
noise to dns, 100 bots       block                                       closes 53/udp to everybody: drop
names of one zone, 100 bots  resolver playbook                           closes 53/udp to everybody: drop
names of one zone, a /25     block 45.128.3.0/25                         closes 53/udp to everybody: drop
syns of a tool to mail       drop IPv4 TCP to port 25 of 40 bytes        answer handshakes
syns like clients' to mail   answer handshakes                           closes 25/tcp to everybody: drop
"""
NTP = {"sport": 123, "dport": "random", "payload": "ntp", "count": 9000}
DNS = {"dport": 53, "count": 9000}
ZONE = "random_query victim.example"
SYN = {"protocol": "tcp", "dport": 25, "flags": "S", "count": 9000}
ATTACKS = {
    "ntp from three /10s": {**NTP, "src": "1800 in 10.64.0.0/10 172.0.0.0/10 45.128.0.0/10"},
    "noise to dns, forged": {**DNS, "payload": "random_any", "ttl": "40-60"},
    "noise to dns, 100 bots": {**DNS, "payload": "random_any", "src": "100"},
    "names of one zone, 100 bots": {**DNS, "payload": ZONE, "src": "100"},
    "names of one zone, a /25": {**DNS, "payload": ZONE, "src": "100 in 45.128.3.0/25"},
    "syns of a tool to mail": SYN,
    "syns like clients' to mail": {**SYN, "options": SYN_OPTIONS, "ttl": "40-60"},
}


@functools.cache
def baseline() -> Baseline:
    """Learn from clients of three services."""
    advisor, batch = Advisor(), make_batch(make_frames([*CALM], float(SECONDS)))
    first = int(batch.time_ns.min())
    for end in range(1, SECONDS + 1):
        inside = (batch.time_ns >= first + (end - 2) * 10**9) & (batch.time_ns < first + end * 10**9)
        window = make_window(batch.select(inside), 2.0, live=True, started=float(end - 2))
        advisor.judge(window, make_tables(window))
    assert advisor.baseline.ready
    return advisor.baseline


@functools.cache
def window_of(attack: str) -> Window:
    calm = [{**item, "count": item["count"] // 4} for item in CALM]
    return make_window(
        make_batch(make_frames([*calm, json.loads(attack)], 5.0)), 5.0, live=True, started=30.0
    )


def judged(attack: str) -> Judgement:
    window = window_of(json.dumps(ATTACKS[attack]))
    return Advisor(baseline=copy.deepcopy(baseline())).judge(window, make_tables(window))


@pytest.mark.parametrize("row", TABLE.strip().splitlines()[1:])
def test_what_ends_a_service_or_covers_whole_networks_is_never_first(row: str) -> None:
    attack, first, other = (part.strip() for part in (row[:29], row[29:73], row[73:]))
    offered = judged(attack).proposals
    assert offered[0].summary.startswith(first)
    assert not offered[0].is_last_resort
    assert any(one.summary.startswith(other) for one in offered[1:])
    for one in offered:
        assert one.summary.startswith("closes") is bool(one.reach.closes)
        sources = one.rule.match.sources if one.rule is not None else ()
        assert all(prefix.length >= 16 for prefix in sources)


def test_what_a_block_adds_unseen_is_harm_and_is_told() -> None:
    window = window_of(json.dumps(ATTACKS["ntp from three /10s"]))
    harms = []
    for text, addresses in (("10.64.0.0/10", 1 << 22), ("10.64.0.0/16", 1 << 16)):
        rule = Rule("", Kind.IPSET, Match(sources=(Prefix.parse(text),)), "a block", 600)
        shown = preview(rule, window, baseline())
        assert shown.reach.addresses == addresses
        assert 0 < shown.reach.attackers < 1800
        assert (
            f"covers {addresses:,} addresses, of which {shown.reach.attackers} attacked" == shown.reach.covers
        )
        harms.append(shown.collateral_share)
    assert harms[0] > 50 * harms[1] > 0


def test_a_carpet_over_a_network_is_called_that_network_whatever_strays_beside_it() -> None:
    carpet = {"src": "200", "dst": "10.64.3.0/24", "dport": "random", "payload": "random_any", "count": 9000}
    for stray in ("10.90.3.7", "10.64.200.1"):
        beside = {**carpet, "dst": stray, "count": 60}
        window = make_window(make_batch(make_frames([carpet, beside], 5.0)), 5.0, live=True)
        found = Advisor().judge(window, make_tables(window)).attacks
        assert "256 addresses in 10.64.3.0/24" in found[0].title
