"""What the judge goes by here: measured costs, the operator's thresholds, the speed of the uplink."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from fwtop.advise.config import AdviseConfig
from fwtop.advise.thresholds import read_thresholds
from fwtop.model.costs import load_costs

_INTERFACES = Path("/sys/class/net")


@dataclass(frozen=True, slots=True)
class Standards:
    """The configuration of an observation, and what the operator should know of where it is from."""

    config: AdviseConfig
    notes: tuple[str, ...]


def standards(uplinks: Iterable[str] = (), directory: Path = _INTERFACES) -> Standards:
    """Read all of it. `uplinks` are the watched interfaces, where the link may be full; else none."""
    costs = load_costs()
    config = AdviseConfig(
        cost_ns=costs.cost_ns,
        measured_costs=costs.measured,
        link_bits_per_second=_speed(uplinks, directory),
    )
    config, wrong = read_thresholds(config)
    return Standards(config, (*((costs.note,) if costs.stale else ()), *wrong))


def _speed(interfaces: Iterable[str], directory: Path) -> float | None:
    """Add up what the hardware says (Mbit/s; sysfs-class-net); None where one has none or doesn't know."""
    total = 0
    for name in interfaces:
        try:
            speed = int((directory / name / "speed").read_text())
            real = (directory / name / "device").exists()
        except (OSError, ValueError):
            return None
        if speed <= 0 or not real:  # a virtual cable has a number, but no such limit
            return None
        total += speed
    return total * 1e6 or None


def for_captures() -> Standards:
    """Return what a capture is judged by: no link of this machine is full in it."""
    found = standards()
    return replace(found, config=replace(found.config, link_bits_per_second=None))
