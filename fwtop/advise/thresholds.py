"""The operator's own thresholds: /etc/fwtop/judge.toml over the defaults of `AdviseConfig`.

docs/judge.toml holds every name with its default and its reason. Where a value can't be used its default
holds, and a line says so: a slip in a file must not leave a machine without a judgement.
"""

from __future__ import annotations

import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fwtop.advise.config import AdviseConfig
from fwtop.model.text import safe_text

JUDGE_FILE = "/etc/fwtop/judge.toml"
_COSTS = ("cost_ns", "measured_costs")  # `fwtop bench --calibrate` measures them
_MEMORY = ("max_rows", "max_capture_rows", "feature_rows", "baseline_rows")  # bounded, so not the operator's
_SHARES = ("spoof_threshold", "conntrack_fill", "collateral_limit", "link_full")
_MOST = 1e15
_MOST_COUNTED = 100_000  # of samples, ports, addresses, prefixes
NAMES = tuple(item.name for item in fields(AdviseConfig) if item.name not in (*_COSTS, *_MEMORY))


def read_thresholds(
    config: AdviseConfig, path: Path = Path(JUDGE_FILE)
) -> tuple[AdviseConfig, tuple[str, ...]]:
    """Return the configuration with the file's values in it, and what is wrong with the file."""
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return config, ()
    except (OSError, ValueError) as error:
        return config, (safe_text(f"{path} is ignored, the defaults hold: {error}"),)
    wrong = []
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
    """Say what a value would have to be; "" where it can be used."""
    if isinstance(getattr(config, name), int):
        good = type(value) is int and 1 <= value <= _MOST_COUNTED
        return "" if good else f"a whole number from 1 to {_MOST_COUNTED:,}"
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else -1.0
    if name in _SHARES or name.endswith("_share"):
        return "" if 0 < number <= 1 else "above 0 and at most 1"
    return "" if 0 < number < _MOST else "a number above 0"
