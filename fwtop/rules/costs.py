"""The CPU time of a dropped packet on this machine by kind of rule: measured once, read at every start.

Written by `fwtop bench --calibrate` (root), read by the unprivileged console. The file names the machine and
kernel, as figures of another machine would be worse than the defaults.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from fwtop.model.errors import FwtopError
from fwtop.model.files import replacing
from fwtop.model.paths import COSTS_FILE
from fwtop.model.rule import Kind
from fwtop.model.text import safe_text
from fwtop.model.wire import of_json, plain
from fwtop.rules.kinds import KINDS

CALIBRATE = "sudo fwtop bench --calibrate"
DEFAULT_COST_NS = {kind.value: known.cost_ns for kind, known in KINDS.items() if known.cost_ns}
_MAX_BYTES = 65_536
_Kind = Annotated[str, Meta(pattern=f"^({'|'.join(Kind)})$")]
_Cost = Annotated[float, Meta(gt=0, lt=1e9)]  # a second a packet: the file is damaged


class Costs(Struct, frozen=True):
    """Nanoseconds of CPU time by `Kind` value, and where they were measured."""

    machine: str
    kernel: str
    measured: str  # RFC 3339
    cost_ns: Mapping[_Kind, _Cost] = field(default_factory=dict)
    schema: Literal[1] = 1


class KnownCosts(Struct, frozen=True):
    """This machine's costs: measured, or defaults and a sentence that says why."""

    costs: Costs | None
    note: str
    stale: bool = False  # the file exists but does not apply here; worth a warning

    @property
    def cost_ns(self) -> dict[str, float]:
        """The cost of every kind, measured or default."""
        return {**DEFAULT_COST_NS, **(self.costs.cost_ns if self.costs else {})}

    @property
    def measured(self) -> frozenset[str]:
        """The kinds measured on this machine."""
        return frozenset(self.costs.cost_ns) if self.costs else frozenset()


def machine_name() -> str:
    """Return the CPU model and count."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            lines = file.read(8192).splitlines()  # those of the first CPU
    except OSError:
        lines = []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return safe_text(f"{model or platform.machine()}, {os.cpu_count()} CPUs")


def load_costs(path: Path = COSTS_FILE) -> KnownCosts:
    """Read the measured costs, or explain why none apply to this machine and kernel. Never raises."""
    try:
        with path.open("rb") as file:
            costs = of_json(Costs, file.read(_MAX_BYTES))
    except FileNotFoundError:
        return KnownCosts(None, f"costs are defaults; '{CALIBRATE}' measures this machine's")
    except (OSError, ValueError):
        return KnownCosts(None, f"costs are defaults: {path} can't be read; '{CALIBRATE}' rewrites it", True)
    if (costs.machine, _series(costs.kernel)) != (machine_name(), _series(platform.release())):
        other = f"{safe_text(costs.machine, limit=80)}, kernel {safe_text(costs.kernel, limit=80)}"
        return KnownCosts(
            None, f"costs are defaults: the measured ones are of {other}; '{CALIBRATE}' renews them", True
        )
    costs = replace(costs, measured=safe_text(costs.measured, limit=40))
    return KnownCosts(costs, f"costs were measured here on {costs.measured[:10]}")


def _series(kernel: str) -> tuple[str, ...]:
    """Return the release without its patch level: 6.18 of 6.18.44-1."""
    return tuple(kernel.split(".")[:2])


def save_costs(costs: Costs, path: Path = COSTS_FILE) -> None:
    """Write the file atomically, readable by all; raises FwtopError."""
    text = json.dumps(plain(costs), indent=1) + "\n"
    try:
        with replacing(path) as file:
            file.write(text)
    except OSError as error:
        raise FwtopError(
            f"{safe_text(path)} was not written: {error.strerror}; the old costs still apply"
        ) from None
