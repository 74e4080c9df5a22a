"""All thresholds of the judgement, each with the reason for its value.

How often findings are right, by kind and by confidence: docs/ACCURACY.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from fwtop.model.files import read_regular_text
from fwtop.model.settings_file import read
from fwtop.rules.costs import DEFAULT_COST_NS

JUDGE_FILE = "/etc/fwtop/judge.toml"
Count = Annotated[int, Meta(ge=1, le=100_000)]  # of samples, ports, addresses, prefixes; seconds
Share = Annotated[float, Meta(gt=0, le=1)]
Positive = Annotated[float, Meta(gt=0, lt=1e15)]


class Thresholds(Struct, frozen=True):
    """What /etc/fwtop/judge.toml may set; rates are packets per second, shares are 0 to 1.

    Live traffic is judged by rate, by share and against the baseline. A capture may be short, sampled or
    truncated, so its rates mean little: only shares and structure count.
    """

    min_samples: Count = 30  # with fewer, the interval of a share is wider than the share
    capture_share: Share = 0.03  # of packets: less is internet background noise
    live_share: Share = 0.005
    shaped_share: Share = 0.015  # enough if the payload proves the kind
    flood_pps: Positive = 300.0  # no core notices a smaller flood
    reflection_pps: Positive = 100.0  # unsolicited answers are suspicious at any rate
    # HTTP or TLS per second: browsers open at most 6 connections at once
    request_rate_per_source: Positive = 20.0
    baseline_factor: Positive = 4.0  # times the normal rate, as the manuals of FastNetMon and Arbor advise
    spoof_threshold: Share = 0.7  # probability above which block lists are not proposed
    scan_ports: Count = 40  # distinct (address, port) pairs per source; nmap -F probes 100
    scan_memory_seconds: Positive = 900.0  # memory of slow scans
    carpet_addresses: Count = 16  # evenly attacked addresses of this host
    carpet_top_share: Share = 0.5  # of the attack on one address; above it the attack has a single target
    conntrack_fill: Share = 0.9  # of nf_conntrack_max
    conntrack_seconds: Positive = 60.0  # to a full table at the present growth
    linger_seconds: Positive = 30.0  # what nobody could watch for no longer than this goes on
    settle_seconds: Positive = 3.0  # delay before quiet samples count as normal
    # until what is far above normal is learned; 94 % of floods end within 20 minutes (Cloudflare, 2022 Q3)
    quarantine_seconds: Positive = 1_200.0
    learn_factor: Positive = 2.0  # times its normal rate is the most that a class teaches at once
    collateral_limit: Share = 0.005  # a signature that matches more of normal traffic doesn't separate
    source_share: Share = 0.97  # of an attack that a block list aims to cover
    max_prefixes: Count = 4_096  # in a proposed block list
    ttl_seconds: Count = 600
    link_bits_per_second: Positive | None = None  # of the uplink, if configured
    link_full: Share = 0.9


class AdviseConfig(Thresholds, frozen=True):
    """Thresholds, and what no file sets: bounds of memory, and what was measured on this machine."""

    max_rows: int = 16_384  # samples per judgement: shares to ±0.8 percentage points
    max_capture_rows: int = 100_000
    feature_rows: int = 4_096  # enough for payload statistics of a vector
    baseline_rows: int = 8_192
    cost_ns: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_COST_NS))  # a packet
    measured_costs: frozenset[str] = frozenset()  # kinds whose cost was measured on this machine
    beside_netfilter: frozenset[int] = frozenset()  # families that a watched bridge passes on unseen by it


def read_thresholds(
    config: AdviseConfig, path: Path = Path(JUDGE_FILE)
) -> tuple[AdviseConfig, tuple[str, ...]]:
    """Return the configuration with the values of the file, and the errors of the file."""
    found = read(Thresholds, read_regular_text(path))
    return replace(config, **found.given), found.lines()
