from __future__ import annotations

import ipaddress
import os
import random
import sys
import time

import pytest

from benches.accuracy.scenarios import Played, Signature
from benches.screens import Screen
from benches.tables import bulk, xdp
from benches.tables.observe import per_second
from benches.tables.screen import proportional_bytes
from fwtop.bench.tables import rules
from fwtop.bench.testbed import PAYLOAD_START, SMALL, STRONGARM, flood_text, processor_seconds
from fwtop.lab import network as net
from fwtop.lab import scenario
from fwtop.lab.traffic.plan import build_plan
from fwtop.model.errors import FwtopError


@pytest.mark.parametrize(("payload", "frame"), [(SMALL, 60), (STRONGARM, 142)])
def test_the_flood_has_frames_of_the_published_sizes(payload: int, frame: int) -> None:
    plan = build_plan(scenario.parse(flood_text(payload), "bench"), net.Wire(bytes(6), bytes(6)))
    assert {len(template.data) for template in plan.templates} == {frame}
    assert all(PAYLOAD_START.encode() in template.data for template in plan.templates)


def test_mixed_prefixes_are_distinct_and_have_no_host_bits() -> None:
    made = list(bulk._mixed_prefixes(random.Random(1), 5000))
    networks = {ipaddress.ip_network(text) for text in made}  # strict: raises on host bits
    assert len(networks) == 5000
    assert len({network.prefixlen for network in networks}) > 3


def test_the_long_xdp_list_is_disjoint_and_misses_the_flood() -> None:
    networks = [ipaddress.ip_network(xdp._prefix(number)) for number in (*range(2000), 999_999)]
    assert len({network.supernet(new_prefix=22) for network in networks}) == len(networks)
    flood = ipaddress.ip_network("198.18.0.0/15")
    assert not any(network.overlaps(flood) for network in networks)


def test_rates_cpu_time_and_memory_are_measured() -> None:
    count, began = iter([100, 150]), time.monotonic()
    rate = per_second(lambda: next(count), 0.05)
    assert 50 / (time.monotonic() - began) <= rate <= 1000
    before, end = processor_seconds(os.getpid()), time.process_time() + 0.05
    while time.process_time() < end:
        pass
    assert processor_seconds(os.getpid()) - before >= 0.04
    assert proportional_bytes(os.getpid()) > 1 << 20


def test_a_terminal_ignores_escapes_and_accepts_keys() -> None:
    program = "import sys; print('\\x1b[1mat\\x1b[0mtack'); print('got', sys.stdin.readline())"
    with Screen([sys.executable, "-c", program]) as terminal:
        terminal.wait_for("attack", 20)
        assert terminal.bytes > 6
        terminal.forget()
        terminal.press("word\r")
        terminal.wait_for("got word", 20)
        with pytest.raises(FwtopError, match="not on the screen"):
            terminal.wait_for("attack", 0.05)


def _case(**values: object) -> Played:
    share = {"share": 0.5, "share_low": 0.4, "share_high": 0.6}
    observation = {
        "sampling": {"one_in": 1.0}, "attacks": [{"kind": "syn_flood"}, {"kind": "conntrack_exhaustion"}],
        "ledger": [
            {"layer": "ip", "packets": 60}, {"layer": "delivered", "packets": 30},
            {"layer": "unexplained", "packets": -10},
        ],
        "sources": {"address": [{"key": "192.0.2.1", "share_low": 0.4, "share_high": 0.6}]},
        "ports": [{"protocol": "udp", "side": "dst", "port": 53, "share_low": 0.1, "share_high": 0.2}],
        "payloads": [
            {"hex": "6162", "offset": 0, "baseline_share": 0.0, **share},
            {"hex": "7a", "offset": 9, "baseline_share": 0.2, **share},
        ],
    }  # fmt: skip
    given: dict[str, object] = {
        "name": "case", "kinds": ("syn_flood",), "packets": 100, "bytes": 1000, "sources": {"192.0.2.1": 50},
        "ports": {}, "observation": observation, "payloads": ((Signature(b"abc", 0), 50),), **values,
    }  # fmt: skip
    return Played(**given)  # type: ignore[arg-type]


def test_a_case_compares_only_shares_with_known_truth() -> None:
    case = _case()
    assert {interval.name: interval.true for interval in case.intervals()} == {
        "case: 192.0.2.1": 0.5, "case: payload 6162": 0.5,
    }  # fmt: skip
    assert (case.ledger, case.unexplained) == (90, 0.1)
    assert case.signatures == [Signature(b"ab", 0)]  # the other one is common in the baseline


def test_a_cause_may_be_named_with_its_consequence() -> None:
    alone = ("conntrack_exhaustion",)
    assert _case(also=("syn_flood",), kinds=alone).named_kinds == alone


def test_a_full_connection_table_is_not_a_false_alarm() -> None:
    assert _case().named_kinds == ("syn_flood", "conntrack_exhaustion")
    assert _case(conntrack_fill=0.9).named_kinds == ("syn_flood",)
    alone = _case(conntrack_fill=0.9, kinds=("conntrack_exhaustion",))
    assert "conntrack_exhaustion" in alone.named_kinds


def test_every_rule_of_fwtop_is_compared_with_a_bare_rule_of_the_table() -> None:
    rows = {name for name, _, _ in rules._dropping(None)}  # type: ignore[arg-type]  # builds, but doesn't run
    assert rules._OWN.keys() == rules._OWN_MISSED.keys()
    assert {*rules._OWN, *(bare + rules._MISSED for bare in rules._OWN)} <= rows


def test_the_worst_five_seconds_of_a_terminal_are_found_wherever_they_lie() -> None:
    terminal = Screen(["true"])
    terminal._arrivals.extend(
        [(0.0, 9_000), (10.0, 100), (14.9, 1_000), (15.0, 2_000), (19.8, 1_500), (30.0, 10)]
    )
    assert terminal.most_in(5.0, since=-1.0) == 9_000 / 5
    assert terminal.most_in(5.0, since=5.0) == 4_500 / 5
    assert terminal.most_in(5.0, since=40.0) == 0
