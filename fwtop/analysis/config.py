"""All thresholds of the judgement, each with the reason for its value.

How often findings are right, by kind and by confidence: docs/ACCURACY.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.model.config_file import read_table
from fwtop.model.costs import DEFAULT_COST_NS
from fwtop.model.text import safe_text


class AdviseConfig(Struct, frozen=True):
    """Thresholds; rates are packets per second, shares are 0 to 1.

    Live traffic is judged by rate, by share and against the baseline. A capture may be short, sampled or
    truncated, so its rates mean little: only shares and structure count.
    """

    max_rows: int = 16_384  # samples per judgement: shares to ±0.8 percentage points
    max_capture_rows: int = 100_000
    feature_rows: int = 4_096  # enough for payload statistics of a vector
    min_samples: int = 30  # with fewer, the interval of a share is wider than the share
    capture_share: float = 0.03  # of packets: less is internet background noise
    live_share: float = 0.005
    shaped_share: float = 0.015  # enough if the payload proves the kind
    flood_pps: float = 300.0  # no core notices a smaller flood
    reflection_pps: float = 100.0  # unsolicited answers are suspicious at any rate
    request_rate_per_source: float = (
        20.0  # HTTP or TLS per second: browsers open at most 6 connections at once
    )
    baseline_factor: float = 4.0  # times the normal rate, as the manuals of FastNetMon and Arbor advise
    spoof_threshold: float = 0.7  # probability above which block lists are not proposed
    scan_ports: int = 40  # distinct (address, port) pairs per source; nmap -F probes 100
    scan_memory_seconds: float = 900.0  # memory of slow scans
    carpet_addresses: int = 16  # evenly attacked addresses of this host
    carpet_top_share: float = 0.5  # of the attack on one address; above it the attack has a single target
    conntrack_fill: float = 0.9  # of nf_conntrack_max
    conntrack_seconds: float = 60.0  # to a full table at the present growth
    linger_seconds: float = 30.0  # a vector that returns within this time keeps its onset (pulse waves)
    settle_seconds: float = 3.0  # delay before quiet samples count as normal
    baseline_rows: int = 8_192
    collateral_limit: float = 0.005  # a signature that matches more of normal traffic doesn't separate
    source_share: float = 0.97  # of an attack that a block list aims to cover
    max_prefixes: int = 4_096  # in a proposed block list
    ttl_seconds: int = 600
    link_bits_per_second: float | None = None  # of the uplink, if configured
    link_full: float = 0.9
    cost_ns: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_COST_NS))  # a packet
    measured_costs: frozenset[str] = frozenset()  # kinds whose cost was measured on this machine
    beside_netfilter: frozenset[int] = frozenset()  # families that a watched bridge passes on unseen by it


JUDGE_FILE = "/etc/fwtop/judge.toml"
# `fwtop bench --calibrate` measures the costs; the loader of the observers tells what bridges do.
_MEASURED = ("cost_ns", "measured_costs", "beside_netfilter")
_MEMORY = (
    "max_rows",
    "max_capture_rows",
    "feature_rows",
    "baseline_rows",
)  # bound memory, so not configurable
_SHARES = ("spoof_threshold", "conntrack_fill", "collateral_limit", "link_full")
_MOST = 1e15
_MOST_COUNTED = 100_000  # of samples, ports, addresses, prefixes
NAMES = tuple(name for name in AdviseConfig.__struct_fields__ if name not in (*_MEASURED, *_MEMORY))


def read_thresholds(
    config: AdviseConfig, path: Path = Path(JUDGE_FILE)
) -> tuple[AdviseConfig, tuple[str, ...]]:
    """Return the configuration with the values of the file, and the errors of the file."""
    data, unusable = read_table(path)
    wrong = [*unusable]
    for name, value in data.items():
        if name not in NAMES:
            wrong.append(f"{path}: {name} is unknown and ignored; docs/judge.toml holds the names")
        elif reason := _refused(config, name, value):
            wrong.append(f"{path}: {name} must be {reason}; {getattr(config, name)} is used")
        else:
            kept: dict[str, Any] = {name: value if isinstance(getattr(config, name), int) else float(value)}
            config = replace(config, **kept)
    return config, tuple(safe_text(line) for line in wrong)


def _refused(config: AdviseConfig, name: str, value: object) -> str:
    """Describe the valid values of a setting; empty if the value is valid."""
    if isinstance(getattr(config, name), int):
        good = type(value) is int and 1 <= value <= _MOST_COUNTED
        return "" if good else f"a whole number from 1 to {_MOST_COUNTED:,}"
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else -1.0
    if name in _SHARES or name.endswith("_share"):
        return "" if 0 < number <= 1 else "above 0 and at most 1"
    return "" if 0 < number < _MOST else "a number above 0"
