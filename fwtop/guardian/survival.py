"""Keep the guardian alive, and have its sysctls given back where it is not: cgroup, watchdog, records.

Neither the end of a login session nor `systemctl stop` of the service that started it ends the guardian, and
the OOM killer chooses it last (proc(5), oom_score_adj).

The watchdog is a shell that outlives it, because sysctls have no clock in the kernel. It sleeps until the
next of them is to be given back, and wakes no machine before. A guardian that has not said by then that it
did so is taken for stopped or hanging, whatever else it still does: the shell has the sysctl given back
without it. If the guardian is gone, the shell starts another one in time.

To give a sysctl back only the records on the tmpfs are needed, so the guardian's lock is not waited for.
What was given back is marked there: a guardian that goes on, or the next one, leaves the sysctl as it is.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import subprocess
import syslog
import time
from pathlib import Path

from fwtop.guardian.mechanisms.settings import restore
from fwtop.guardian.records.files import Records, lock_path_of
from fwtop.guardian.records.former import Changed, FormerState
from fwtop.guardian.records.journal import deadline_of
from fwtop.kernel import children, namespaces
from fwtop.kernel.descriptors import closing, is_held
from fwtop.kernel.programs import ENVIRONMENT, GUARDIAN_ENVIRONMENT, PRIORITY, hurry, module_argv
from fwtop.model.errors import FwtopError
from fwtop.model.paths import GUARDIAN_UNIT, SYSTEMD_BOOTED
from fwtop.model.text import safe_text

OOM_GUARDIAN = -900  # below it are only processes that must never go (-1000)
_SCOPE_SECONDS = 5.0
_ENTERED_SECONDS = 5.0  # after which a guardian has entered the cgroup that it made
_CAP_IPC_LOCK = 14  # linux/capability.h
_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4  # asm-generic/mman.h
_CGROUP2 = re.compile(r"^\S+ \S+ \S+ (/\S*) (\S+) (\S+) .*?- cgroup2 ")
NOTHING = "none"  # instead of a time
SLACK_SECONDS = 1.0  # a guardian that runs has ended the rule by then
_RETRY_SECONDS = 10.0
HERE = "here"  # of `--overdue`, else everywhere
_NAME = "fwtop-watchdog"
# Times are those of /proc/uptime, which a shell can read, and some seconds more: the rule is over by then.
# `read -t` fails with more than 128 when the time is over, with 1 once the guardian is gone.
_SCRIPT = rf"""
at={NOTHING}
left() {{ read -r now rest </proc/uptime; seconds=$((at + $1 - ${{now%.*}})); }}
look() {{ at=$("$@" --overdue={HERE}); [ -n "$at" ] || {{ at=0; sleep 10; }}; }}
while :; do
  if [ "$at" = {NOTHING} ]; then read -r at || exit 0; continue; fi
  left 3
  if read -r -t $((seconds > 1 ? seconds : 1)) line; then at=$line
  elif [ $? -gt 128 ]; then look "$@"
  else break
  fi
done
left 1
[ $seconds -gt 0 ] && sleep $seconds
until "$@"; do
  look "$@"
  [ "$at" = {NOTHING} ] && exit 0
  sleep 10
done
"""


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
    """Keep this process in memory, first on a processor, and from the OOM killer; never fails.

    Pages are locked as they are touched (MCL_ONFAULT): what lies unused in libraries stays on disk. Without
    CAP_IPC_LOCK nothing is locked: with a limit (RLIMIT_MEMLOCK) a longer list could not be read.
    """
    children.set_oom_score(OOM_GUARDIAN)
    hurry()
    with contextlib.suppress(OSError):  # sched(7): else priorities count within a session only
        Path("/proc/self/autogroup").write_text(str(PRIORITY), encoding="ascii")
    if not _has_capability(_CAP_IPC_LOCK):
        syslog.syslog(syslog.LOG_NOTICE, "no CAP_IPC_LOCK: the guardian's memory is not locked")
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT) != 0:
        reason = os.strerror(ctypes.get_errno())
        syslog.syslog(syslog.LOG_NOTICE, f"the guardian's memory is not locked: {reason}")


def _start_scope(name: str) -> str:
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


class Watchdog:
    """The shell, as the guardian knows it."""

    def __init__(self, *arguments: str) -> None:
        self._argv = ["/bin/bash", "-c", _SCRIPT, _NAME, *module_argv("fwtop.guardian", *arguments)]
        self._pipe: int | None = None
        self._told = NOTHING

    def set_deadline(self, ends: float | None) -> None:
        """Set when the next rule that changed sysctls ends: CLOCK_MONOTONIC seconds, None: none.

        A shell that was killed gets a successor.
        """
        text = uptime_of(ends)
        if text == self._told and (ends is None or self._is_read()):
            return
        line = f"{text}\n".encode()
        with contextlib.suppress(OSError):  # no process to be had: the guardian's own clock is left
            alive = self._pipe is not None and _written(self._pipe, line)
            if not alive and ends is not None:
                _written(self._start(), line)
            self._told = text

    def _is_read(self) -> bool:
        """Return whether the shell still has its end of the pipe (poll(2): POLLERR without a reader)."""
        poll = select.poll()
        if self._pipe is not None:
            poll.register(self._pipe, 0)
        return self._pipe is not None and not poll.poll(0)

    def _start(self) -> int:
        """Start the shell, again if it was killed; returns the pipe that it reads."""
        if self._pipe is not None:
            os.close(self._pipe)
        reader, self._pipe = os.pipe2(os.O_CLOEXEC)
        with os.fdopen(reader) as end:
            # Not waited for: it is there to outlive us.
            subprocess.Popen(
                self._argv,
                stdin=end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=GUARDIAN_ENVIRONMENT,
                cwd="/",
                start_new_session=True,
            )
        return self._pipe


def uptime_of(moment: float | None) -> str:
    """Return a time of CLOCK_MONOTONIC as whole seconds of /proc/uptime, `NOTHING` for None."""
    if moment is None:
        return NOTHING
    uptime = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    return str(int(uptime + moment - time.monotonic()))


def give_back_here(run_directory: Path) -> tuple[float | None, list[str]]:
    """Give back what is overdue in this namespace.

    Returns when to look again, CLOCK_MONOTONIC seconds (None: nothing is changed), and what was done.
    """
    number = namespaces.own()
    records = Records(run_directory, namespaces.cookie(), namespaces.boot_id(), number)
    values = _Values(records)
    now = time.monotonic()
    ends = {item.rule_id: _end(run_directory, number, records, item.rule_id) for item in values.settings()}
    over = {rule_id for rule_id, end in ends.items() if end + SLACK_SECONDS <= now}
    later = [end for rule_id, end in ends.items() if rule_id not in over]
    try:
        restore(values, over)
    except FwtopError as error:
        syslog.syslog(syslog.LOG_ERR, safe_text(f"overdue: {error}"))
        later.append(now + _RETRY_SECONDS)
    for line in values.lines:
        syslog.syslog(syslog.LOG_WARNING, line)
    return min(later, default=None), values.lines


def give_back_everywhere(run_directory: Path) -> list[str]:
    """Give back what is overdue in every network namespace; returns a line for each sysctl.

    It leaves this process in any of them.
    """
    lines: list[str] = []
    waiting = {path.parent.name for path in run_directory.glob("state-*/setting-*.json")}
    paths = namespaces.everywhere() if waiting else {}
    for name in sorted(waiting):
        _, cookie, inode = name.split("-")
        path = paths.get(int(inode)) if inode.isdigit() else None
        if path is None:
            continue  # it is gone, and its sysctls with it
        with (
            contextlib.suppress(OSError, FwtopError),
            closing(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as descriptor,
        ):
            namespaces.enter(descriptor)
            if cookie == str(namespaces.cookie()):
                lines += give_back_here(run_directory)[1]
    return lines


def _end(run_directory: Path, number: int, records: Records, rule_id: str) -> float:
    """Return when a rule ends, CLOCK_MONOTONIC seconds.

    A rule without a record is over; but while a guardian lives, that is for it to say.
    """
    record = records.record(f"rule-{rule_id}")
    try:
        return deadline_of(record["state"], float(record["expires"]), record["confirm_by"])
    except (KeyError, TypeError, ValueError):
        return time.monotonic() + _RETRY_SECONDS if is_held(lock_path_of(run_directory, number)) else 0.0


class _Values(FormerState):
    """The old values, of which somebody else than the guardian gives some back."""

    def __init__(self, records: Records) -> None:
        super().__init__(records, lambda _: None)
        self.lines: list[str] = []  # what was done

    def settings(self) -> list[Changed]:
        return [item for item in super().settings() if not self.is_given_back(item)]

    def forget_setting(self, changed: Changed) -> None:
        self.mark_given_back(changed)
        self.lines.append(
            f"rule {changed.rule_id} was over and its guardian did nothing: "
            f"{changed.name} has its old value {changed.old} again"
        )


def _written(pipe: int, line: bytes) -> bool:
    try:
        os.write(pipe, line)
    except BrokenPipeError:
        return False
    return True
