"""Have systemd start the guardian, for a caller in a sandbox that the guardian must not inherit.

Mounts, system call filters and lost capabilities stay with everything that a process starts, whatever cgroup
it moves to. The recorder's guardian is therefore a unit of its own, which the recorder's end leaves alone.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from fwtop.kernel.procfs import read_text
from fwtop.kernel.programs import GUARDIAN_ENVIRONMENT, CommandError, run
from fwtop.model.errors import FwtopError
from fwtop.model.paths import GUARDIAN_UNIT, SYSTEMD_BOOTED


def is_needed(status: str | None = None, booted: Path = SYSTEMD_BOOTED) -> bool:
    """Return whether this process is confined for good and systemd runs (sd_booted(3))."""
    text = read_text("/proc/self/status") if status is None else status
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return booted.is_dir() and any(fields.get(name, "0").strip() != "0" for name in ("NoNewPrivs", "Seccomp"))


def start(argv: list[str], netns: int, seconds: float) -> None:
    """Run a guardian as a unit of its own until it is ready; raises FwtopError with where its complaint is.

    `netns` is a descriptor of its network namespace.
    """
    argv = [*argv, "--netns-path", f"/proc/{os.getpid()}/fd/{netns}"]
    unit = f"{GUARDIAN_UNIT}{os.fstat(netns).st_ino}-{uuid.uuid4().hex[:8]}"
    try:
        run(unit_argv(argv, unit), timeout=seconds)
    except CommandError as error:
        raise FwtopError(f"systemd did not start the guardian: {error}; see: journalctl -u {unit}") from None


def unit_argv(argv: list[str], unit: str) -> list[str]:
    """Return the call of systemd-run(1) for a guardian, which forks when it is ready."""
    properties = (
        "Description=fwtop guardian",
        "Type=forking",
        "KillMode=process",  # the shell that restores sysctls outlives the guardian
        "OOMPolicy=continue",
    )
    return [
        "systemd-run",
        "--quiet",
        "--collect",
        f"--unit={unit}",
        *(f"--property={setting}" for setting in properties),
        *(f"--setenv={name}={value}" for name, value in GUARDIAN_ENVIRONMENT.items()),
        "--",
        *argv,
    ]
