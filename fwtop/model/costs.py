"""What a dropped packet costs on this machine, by kind of rule: measured once, read at every start.

`fwtop bench --calibrate` (root) writes the file, the unprivileged console reads it. It names the machine and
the kernel that it was measured on, because figures of another would be worse than sound defaults.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fwtop.model.errors import FwtopError
from fwtop.model.paths import COSTS_FILE
from fwtop.model.rule import Kind
from fwtop.model.text import safe_text

CALIBRATE = "sudo fwtop bench --calibrate"
# Of the machine where fwtop was made (2 virtual CPUs, Linux 6.18), for those that were never measured
DEFAULT_COST_NS: Mapping[str, float] = {
    "xdp": 105.0, "tc": 330.0, "nftables": 490.0, "ipset": 570.0, "hashlimit": 530.0, "string": 945.0,
    "notrack": 100.0, "synproxy": 1500.0,
}  # fmt: skip
_SCHEMA = 1
_MAX_BYTES = 65_536
_MOST_NS = 1e9  # a second a packet: more is no cost but damage to the file


@dataclass(frozen=True, slots=True)
class Costs:
    """Nanoseconds of processor time by `Kind` value, and what they were measured on."""

    machine: str
    kernel: str
    measured: str  # RFC 3339
    cost_ns: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of this machine's costs: measured figures, or none and the reason in a sentence."""

    costs: Costs | None
    note: str
    stale: bool = False  # there are figures, but none that hold here: the operator should know

    @property
    def cost_ns(self) -> dict[str, float]:
        """Every kind's figure; the defaults where nothing was measured."""
        return {**DEFAULT_COST_NS, **(self.costs.cost_ns if self.costs else {})}

    @property
    def measured(self) -> frozenset[str]:
        """The kinds that were measured here."""
        return frozenset(self.costs.cost_ns) if self.costs else frozenset()


def machine_name() -> str:
    """Name the processor and how many of it there are."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            lines = file.read(8192).splitlines()  # the first processor's: the file has one part for each
    except OSError:
        lines = []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return safe_text(f"{model or platform.machine()}, {os.cpu_count()} CPUs")


def load_costs(path: Path = COSTS_FILE) -> Known:
    """Read the measured costs; without any that hold for this machine and kernel, say why. Never raises."""
    try:
        with path.open("rb") as file:
            data = json.loads(file.read(_MAX_BYTES))
        costs = _costs(data)
    except FileNotFoundError:
        return Known(None, f"costs are defaults; '{CALIBRATE}' measures this machine's")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Known(None, f"costs are defaults: {path} can't be read; '{CALIBRATE}' writes it anew", True)
    if (costs.machine, _series(costs.kernel)) != (machine_name(), _series(platform.release())):
        other = f"{safe_text(costs.machine, limit=80)}, kernel {safe_text(costs.kernel, limit=80)}"
        return Known(
            None, f"costs are defaults: the measured ones are of {other}; '{CALIBRATE}' renews them", True
        )
    return Known(costs, f"costs were measured here on {costs.measured[:10]}")


def _series(kernel: str) -> tuple[str, ...]:
    """Return what is compared of a kernel's release: 6.18 of 6.18.44-1; fixes don't change costs."""
    return tuple(kernel.split(".")[:2])


def _costs(data: dict[str, object]) -> Costs:
    figures = data["cost_ns"]
    if data["schema"] != _SCHEMA or not isinstance(figures, dict):
        raise ValueError("not the costs of this version")
    cost_ns = {str(Kind(kind)): float(value) for kind, value in figures.items()}
    if not all(math.isfinite(value) and 0 < value < _MOST_NS for value in cost_ns.values()):
        raise ValueError("a cost that can't be")
    machine, kernel, measured = (str(data[name]) for name in ("machine", "kernel", "measured"))
    return Costs(machine, kernel, safe_text(measured, limit=40), cost_ns)


def save_costs(costs: Costs, path: Path = COSTS_FILE) -> None:
    """Put the file in its place whole or not at all, readable for all; raises FwtopError."""
    text = json.dumps({"schema": _SCHEMA, **asdict(costs)}, indent=1) + "\n"
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise FwtopError(
            f"{safe_text(path)} was not written: {error.strerror}; the costs stay as they were"
        ) from None
