"""Keep the guardian alive: a cgroup of its own, and locked memory.

Neither the end of a login session nor `systemctl stop` of the service that started it ends the guardian, and
the OOM killer chooses it last (proc(5), oom_score_adj).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import subprocess
import syslog
import time
from pathlib import Path

from fwtop.kernel import children
from fwtop.kernel.programs import ENVIRONMENT
from fwtop.model.paths import GUARDIAN_UNIT, SYSTEMD_BOOTED
from fwtop.model.text import safe_text

OOM_GUARDIAN = -900  # below it are only processes that must never go (-1000)
_SCOPE_SECONDS = 5.0
_ENTERED_SECONDS = 5.0  # after which a guardian has entered the cgroup that it made
_CAP_IPC_LOCK = 14  # linux/capability.h
_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4  # asm-generic/mman.h
_CGROUP2 = re.compile(r"^\S+ \S+ \S+ (/\S*) (\S+) (\S+) .*?- cgroup2 ")


class Cgroup:
    """A cgroup of the guardian's own, for as long as it runs."""

    def __init__(self, netns: int) -> None:
        self._name = f"{GUARDIAN_UNIT}{netns}-{os.getpid()}"
        self._root: Path | None = None

    def enter(self) -> None:
        """Move this process into a systemd scope, or without systemd into a new cgroup of cgroup v2.

        Children follow. If neither is possible, that is logged. One that systemd started has its own.
        """
        if f"/{GUARDIAN_UNIT}" in Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="replace"):
            return
        if SYSTEMD_BOOTED.is_dir() and not _start_scope(self._name):
            return
        if complaint := self._make():
            line = f"no cgroup of its own ({complaint}): the guardian ends with what started it"
            syslog.syslog(syslog.LOG_WARNING, safe_text(line))

    def leave(self) -> None:
        """Remove it; a scope systemd removes by itself. What else is in it (a watchdog) goes to the root."""
        if self._root is None:
            return
        with contextlib.suppress(OSError):
            for pid in (self._root / self._name / "cgroup.procs").read_text(encoding="ascii").split():
                with contextlib.suppress(OSError):  # it has ended
                    (self._root / "cgroup.procs").write_text(pid, encoding="ascii")
            (self._root / self._name).rmdir()  # else the next guardian does

    def _make(self) -> str:
        """Create and enter the cgroup; returns the reason if that fails, else ""."""
        root = _cgroup2_root()
        if root is None:
            return "cgroup v2 is not mounted for writing"
        for left in root.glob(f"{GUARDIAN_UNIT}*"):
            with contextlib.suppress(OSError):
                if _is_deserted(left):
                    left.rmdir()
        try:
            (root / self._name).mkdir(mode=0o755)
            (root / self._name / "cgroup.procs").write_text("0", encoding="ascii")
        except OSError as error:
            return str(error)
        self._root = root
        return ""


def _is_deserted(cgroup: Path) -> bool:
    """Return whether a cgroup of a killed guardian is empty; one just made may not be entered yet.

    Its process id says nothing: it may be another process's by now. Raises OSError.
    """
    is_empty = "populated 0" in (cgroup / "cgroup.events").read_text(encoding="ascii").splitlines()
    return is_empty and time.time() - cgroup.stat().st_mtime > _ENTERED_SECONDS


def protect() -> None:
    """Keep this process from being paged out, and from being the OOM killer's choice; never fails.

    Pages are locked as they are touched (MCL_ONFAULT): what lies unused in libraries stays on disk. Without
    CAP_IPC_LOCK nothing is locked: with a limit (RLIMIT_MEMLOCK) a longer list could not be read.
    """
    children.set_oom_score(OOM_GUARDIAN)
    if not _has_capability(_CAP_IPC_LOCK):
        syslog.syslog(syslog.LOG_NOTICE, "no CAP_IPC_LOCK: the guardian's memory is not locked")
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT) != 0:
        reason = os.strerror(ctypes.get_errno())
        syslog.syslog(syslog.LOG_NOTICE, f"the guardian's memory is not locked: {reason}")


def _start_scope(name: str) -> str:
    """Have systemd move this process into a scope; returns its complaint, else ""."""
    try:
        done = subprocess.run(
            scope_argv(name, os.getpid()),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=ENVIRONMENT,
            timeout=_SCOPE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr.strip() or "busctl failed" if done.returncode else ""


def scope_argv(name: str, pid: int) -> list[str]:
    """Return the call of StartTransientUnit (org.freedesktop.systemd1(5)) for a scope with one process."""
    manager = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
    properties = (
        *("PIDs", "au", "1", str(pid)),
        *("Slice", "s", "system.slice"),
        *("Description", "s", "fwtop guardian"),
        *("CollectMode", "s", "inactive-or-failed"),
    )
    unit = (f"{name}.scope", "fail", "4", *properties, "0")
    return ["busctl", "--system", "call", *manager, "StartTransientUnit", "ssa(sv)a(sa(sv))", *unit]


def _cgroup2_root() -> Path | None:
    """Return where the root of cgroup v2 is mounted read-write."""
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        found = _CGROUP2.match(line)
        if found and found[1] == "/" and "ro" not in found[3].split(","):
            return Path(found[2])
    return None


def _has_capability(number: int) -> bool:
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False
