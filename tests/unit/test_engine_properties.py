"""What may not matter to the judgement: order of packets, who is who among sources, and sampling rate.

The order in which hypotheses are declared is another one (test_engine.py).
"""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from benches.corpus.cases import LabelledWindow, draw
from fwtop.analysis.classify import find_attacks
from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.context import make_context
from fwtop.model.traffic.packets import PacketBatch, Window

FAMILIES_OF_CASES = (
    "mixture of attacks", "one kind on two targets", "lab: syn_flood", "lab: ack_flood",
    "lab: dns_amplification", "lab: dns_random_subdomain", "lab: carpet_bombing", "lab: gre_flood",
    "tool: random_pages", "tool: tls_handshakes", "tool: syn_with_resets", "tool: dns_questions",
    "tool: junk_to_dns", "tool: one_page",
    "ordinary: proxied", "ordinary: resolving", "ordinary: wireguard", "ordinary: own_scan",
)  # fmt: skip
SEED = 2026
# Of many requests and names a part is parsed, in another order other ones: how much that may change
NEAR, SOME = 0.05, 0.002  # of the confidence; of the packets
Told = list[tuple[str, int, float]]


def told(case: LabelledWindow, window: Window) -> Told:
    """Return kinds, numbers of packets and confidences of the attacks, in a repeatable order."""
    found = find_attacks(make_context(window, AdviseConfig(), case.baseline))
    return sorted((one.kind, len(one.rows), one.confidence) for one in found)


def alike(one: Told, other: Told) -> bool:
    if [kind for kind, *_ in one] != [kind for kind, *_ in other]:
        return False
    return all(
        abs(a - b) <= SOME * a and abs(stated - now) <= NEAR
        for (_, a, stated), (_, b, now) in zip(one, other, strict=True)
    )


@pytest.fixture(scope="module", params=FAMILIES_OF_CASES)
def cases(request: pytest.FixtureRequest) -> list[tuple[LabelledWindow, Told]]:
    """Two windows of a family, and what is said of them."""
    drawn = [draw(request.param, number, SEED) for number in range(2)]
    return [(case, told(case, case.window)) for case in drawn]


def test_attacks_are_among_the_cases_and_ordinary_traffic_too() -> None:
    named = [told(case, case.window) for case in (draw(family, 0, SEED) for family in FAMILIES_OF_CASES)]
    assert sum(map(bool, named)) >= 12
    assert not all(named)


@pytest.mark.one_each(*FAMILIES_OF_CASES[::3])
def test_packets_may_come_in_any_order(cases: list[tuple[LabelledWindow, Told]]) -> None:
    """Processors deliver their samples in turns, and each tool of capture joins them in its own way."""
    for case, before in cases:
        packets = case.window.arrived
        order = np.random.default_rng(SEED).permutation(len(packets))
        assert alike(told(case, replace(case.window, arrived=packets.select(order))), before), case.name


@pytest.mark.one_each(*FAMILIES_OF_CASES[1::3])
def test_sources_may_change_places(cases: list[tuple[LabelledWindow, Told]]) -> None:
    """Who sends what matters, not by which of the window's addresses."""
    for case, before in cases:
        window = replace(case.window, arrived=relabelled(case.window.arrived))
        assert alike(told(case, window), before), case.name


def relabelled(packets: PacketBatch) -> PacketBatch:
    """Give each source the address of another one of its family."""
    hi, lo = packets.src_hi.copy(), packets.src_lo.copy()
    for family in (4, 6):
        rows = np.flatnonzero(packets.family == family)
        known, place = np.unique(np.stack([hi[rows], lo[rows]], 1), axis=0, return_inverse=True)
        moved = known[np.random.default_rng(SEED).permutation(len(known))[place.reshape(-1)]]
        hi[rows], lo[rows] = moved[:, 0], moved[:, 1]
    return replace(packets, src_hi=hi, src_lo=lo)


@pytest.mark.one_each(*FAMILIES_OF_CASES[2::3])
def test_twice_the_rate_seen_through_half_the_samples_keeps_the_name(
    cases: list[tuple[LabelledWindow, Told]],
) -> None:
    """Another attack may show, because a rate is twice as high; what was named stays named.

    A scan is an exception: who repeats each port more than four times no longer looks for open ones.
    """
    for case, before in cases:
        now = {kind for kind, *_ in told(case, doubled(case.window))}
        assert not {kind for kind, *_ in before} - now - {"port_scan"}, case.name


def doubled(window: Window) -> Window:
    counters, packets = window.counters, window.arrived
    return replace(
        window,
        arrived=replace(packets, weight=packets.weight * 2),
        counters=replace(
            counters,
            arrived_packets=2 * counters.arrived_packets,
            arrived_bytes=2 * counters.arrived_bytes,
            one_in=2 * counters.one_in,
        ),
    )
