"""Every threshold of the judgement in one place, each with the reason for its value.

How sure is sure: the confidence that rules give, against how often the name was right. Counted on captures
that were written with their expectations before the judgement saw them (every kind, real payload shapes,
one to three vectors, clean traffic of 80 sorts, snap lengths from 64 bytes, sampled, fragmented, IPv6):

    confidence                  below 0.8   0.8     0.85    0.9     0.95 on
    first 304, before mending   3 of 10     16/20   16/27   53/66   136/139
    last 319, random mixtures   4 of 4      19/19   66/66   76/81   186/186

So 0.95 and more is what the packets prove. From 0.85 to 0.94 it is behaviour: 142 of 147 on the mixtures,
but 69 of 93 on traffic of sorts that were new to the rules, which the next new sort may repeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fwtop.model.costs import DEFAULT_COST_NS


@dataclass(frozen=True, slots=True)
class AdviseConfig:
    """What counts as an attack; rates are packets a second, shares are 0 to 1.

    Live traffic is judged by rate, by share and against the baseline. A capture may be short, sampled or
    cut, so its rates mean little: there shares and structure decide alone.
    """

    max_rows: int = 16_384  # samples judged a tick: shares to ±0.8 percentage points, in about 40 ms
    max_capture_rows: int = 100_000
    feature_rows: int = 4_096  # payload statistics of one vector need no more
    min_samples: int = 30  # below that a share's interval is wider than the share
    capture_share: float = 0.03  # of packets: less is background noise of the internet
    live_share: float = 0.005
    shaped_share: float = 0.015  # enough where the payload itself proves the kind
    flood_pps: float = 300.0  # a floor under which one core doesn't notice any flood
    reflection_pps: float = 100.0  # unsolicited answers need no volume to be wrong
    request_rate_per_source: float = 20.0  # HTTP or TLS a second: browsers burst 6 connections, no more
    baseline_factor: float = 4.0  # times the class's normal rate, as FastNetMon and Arbor manuals advise
    spoof_threshold: float = 0.7  # probability above which blocking single sources is refused
    scan_ports: int = 40  # distinct (address, port) pairs by one source; nmap's -F probes 100
    scan_memory_seconds: float = 900.0  # a slow scan is remembered for that long
    carpet_addresses: int = 16  # own addresses hit evenly
    carpet_top_share: float = 0.5  # of the attack on one address: above it the attack has one target
    conntrack_fill: float = 0.9  # of nf_conntrack_max
    conntrack_seconds: float = 60.0  # to full, at the present growth
    linger_seconds: float = 30.0  # a vector that returns within that keeps its onset (pulse waves)
    settle_seconds: float = 3.0  # samples wait that long before they count as normal
    baseline_rows: int = 8_192
    collateral_limit: float = 0.005  # a signature that hits more of normal traffic doesn't separate
    target_share: float = 0.95  # of an attack that a proposal should stop
    source_share: float = 0.97  # that a block list should hold: more than the target, as sources change
    max_prefixes: int = 4_096  # in one block list that is proposed
    ttl_seconds: int = 600
    link_bits_per_second: float | None = None  # of the uplink, where the operator told it
    link_full: float = 0.9
    cost_ns: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_COST_NS))  # a packet
    measured_costs: frozenset[str] = frozenset()  # kinds whose cost was measured on this machine
