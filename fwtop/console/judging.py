"""What judgement is configured with (costs, thresholds, link speed), and what is said where it fails."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from fwtop.analysis.config import AdviseConfig, read_thresholds
from fwtop.model.traffic.snapshot import Judgement
from fwtop.rules.costs import load_costs
from fwtop.sandbox.crash_log import CRASHES, failure_words

_INTERFACES = Path("/sys/class/net")


class LoadedConfig(Struct, frozen=True):
    """The configuration of an observation, and notes for the operator on where it comes from."""

    config: AdviseConfig
    notes: tuple[str, ...]


def load_config(uplinks: Iterable[str] = (), directory: Path = _INTERFACES) -> LoadedConfig:
    """Read costs and thresholds; `uplinks` are the watched interfaces with a speed: a capture has none."""
    costs = load_costs()
    config = AdviseConfig(
        cost_ns=costs.cost_ns, measured_costs=costs.measured, link_bits_per_second=_speed(uplinks, directory)
    )
    config, wrong = read_thresholds(config)
    return LoadedConfig(config, (*((costs.note,) if costs.stale else ()), *wrong))


def _speed(interfaces: Iterable[str], directory: Path) -> float | None:
    """Return the sum of the links' speeds in bit/s (sysfs-class-net), None if any of them is unknown."""
    total = 0
    for name in interfaces:
        try:
            speed = int((directory / name / "speed").read_text())
            real = (directory / name / "device").exists()
        except (OSError, ValueError):
            return None
        if speed <= 0 or not real:  # a virtual interface reports a speed that is no limit
            return None
        total += speed
    return total * 1e6 or None


def failure_line(what: str, failure: Exception) -> str:
    """Return what failed and where the log is; `what` as in "judging"."""
    try:
        path = CRASHES.path_of(failure)
    except MemoryError:  # the failure itself, most likely: there is none left for a log
        path = ""
    where = f"; details in {path}" if path else ""  # first: a narrow screen cuts the end off
    return f"{what} failed{where} ({failure_words(failure)})"


def not_judged(last: Judgement, failure: Exception, what: str = "judging") -> Judgement:
    """Return the judgement of a window that could not be judged: the last one's attacks, marked as such."""
    return replace(last, not_judged=failure_line(what, failure))
