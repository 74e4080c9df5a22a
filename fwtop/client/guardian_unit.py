"""Have systemd start the guardian, for a caller in a sandbox that the guardian must not inherit.

Mounts, system call filters and lost capabilities stay with everything that a process starts, whatever cgroup
it moves to. The recorder's guardian is therefore a unit of its own, which the recorder's end leaves alone.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from pathlib import Path

from fwtop.kernel.procfs import read_text
from fwtop.kernel.programs import ENVIRONMENT, GUARDIAN_ENVIRONMENT
from fwtop.model.errors import FwtopError
from fwtop.model.paths import GUARDIAN_UNIT, SYSTEMD_BOOTED
from fwtop.model.text import safe_text


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
        done = subprocess.run(
            unit_argv(argv, unit),
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except FileNotFoundError:
        raise FwtopError("systemd-run is not installed; the guardian was not started", 3) from None
    except subprocess.TimeoutExpired:
        raise FwtopError("the guardian was not ready in time; nothing was changed") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise FwtopError(
            safe_text(f"systemd did not start the guardian: {lines[0]}; see: journalctl -u {unit}", limit=500)
        )


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
