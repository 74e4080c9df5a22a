"""What of this machine distorts a table of speeds: named beside it, as the figures don't show it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from fwtop.kernel.receive_path import PacketSockets
from fwtop.model.text import safe_text

CPU = Path("/sys/devices/system/cpu")
_PROCESSORS = Path("/proc/cpuinfo")
_BUSY = 0.5  # processes ready to run, for each CPU
_LONGEST = 60


def distortions(cpu: Path = CPU, processors: Path = _PROCESSORS) -> Iterator[str]:
    """Yield a line for each thing that makes figures differ between machines, or between runs."""
    weak = _listed(cpu / "vulnerabilities")
    if on := [path.name for path in weak if _read(path).startswith("Mitigation")]:
        names = ", ".join(on)
        yield f"mitigations of the CPU are on, which make indirect and system calls cost more: {names}"
    turbo = {"intel_pstate/no_turbo": "0", "cpufreq/boost": "1"}
    if any(_read(cpu / name) == on for name, on in turbo.items()):
        yield "turbo is on: the clock depends on heat, and on how many cores work"
    yield from _frequency(cpu / "cpu0/cpufreq")
    if " hypervisor" in _read(processors, 8192):
        yield "a virtual machine: its host sets the clock, and other guests share the cores and their caches"
    for item in PacketSockets().read():
        name, where = safe_text(item.process, limit=_LONGEST), safe_text(item.interface or "all interfaces")
        yield f"{name} (PID {item.pid}) has a packet socket on {where}: each packet there is copied for it"
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > _BUSY * cores:
        yield f"other processes were busy: load {load:.1f} on {cores} CPUs"


def _frequency(scaling: Path) -> Iterator[str]:
    governor = _read(scaling / "scaling_governor")
    if governor in ("", "performance"):
        return
    low, high = (_read(scaling / f"scaling_{name}_freq") for name in ("min", "max"))
    span = f", {int(low) // 1000:,} to {int(high) // 1000:,} MHz" if low.isdigit() and high.isdigit() else ""
    yield f"the clock follows the load (governor {safe_text(governor, limit=_LONGEST)}{span})"


def _listed(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def _read(path: Path, most: int = 200) -> str:
    """Return the beginning of a file, "" where there is none."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(most).strip()
    except OSError:
        return ""
