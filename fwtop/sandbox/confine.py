"""Confine a process that has given root away: seccomp, Landlock, limits, no core dumps, no ptrace."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import sys
from collections.abc import Iterable
from pathlib import Path

from fwtop.model.errors import FwtopError
from fwtop.model.paths import COSTS_FILE, ROOT, STATE_DIRECTORY
from fwtop.sandbox import landlock
from fwtop.sandbox.syscalls import Profile, build_filter

_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
# All of /proc, because Landlock rules refer to inodes, and procfs recreates those of single files.
_READABLE = (
    ROOT, COSTS_FILE, *map(Path, (sys.prefix, sys.base_prefix, "/usr", "/lib", "/lib64", "/etc/fwtop",
    "/etc/localtime", "/etc/timezone", "/etc/terminfo", "/proc", "/sys/class/net", "/sys/devices",
    "/var/lib/GeoIP", "/dev/urandom")),
)  # fmt: skip


def hide_memory() -> None:
    """Deny ptrace and pidfd_getfd to other processes of the same user, and disable core dumps."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def confine(
    profile: Profile,
    *,
    read: Iterable[Path | str | None] = (),
    write: Iterable[Path] = (),
    remove: Iterable[Path] = (),
) -> None:
    """Enter the sandbox irrevocably; call this before parsing any untrusted input.

    Besides the program's own files, the process may read below `read`, read and write below `write`, and
    remove empty directories below `remove`. Raises FwtopError (3) if the system lacks seccomp.
    """
    hide_memory()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    allowed: list[tuple[Path, int]] = []
    if profile is not Profile.DISSECTOR:
        allowed += [(path, landlock.READ) for path in _READABLE]
        allowed += [(Path(path).absolute(), landlock.READ) for path in read if path is not None]
        allowed += [(path, landlock.READ_WRITE) for path in (STATE_DIRECTORY, *write)]
        allowed += [(path, landlock.REMOVE) for path in remove]
        allowed.append((Path("/dev/null"), landlock.READ_WRITE))
    try:
        install = build_filter(profile)
        landlock.restrict(allowed)
        install()
    except ImportError:
        raise FwtopError("python3-seccomp is missing, so nothing was started; run 'make setup'", 3) from None
    except (OSError, RuntimeError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        # Code 3 means that this machine can't; a machine short of memory can, later: a service tries again.
        code = 1 if isinstance(error, OSError) and error.errno == errno.ENOMEM else 3
        raise FwtopError(f"the sandbox could not be entered ({reason}); nothing was started", code) from None


def limit(memory_bytes: int, *, cpu_seconds: int | None = None, descriptors: int | None = None) -> None:
    """Let this process write no file, start no other, and have no more of memory, time and descriptors.

    Call it after `confine`, which needs a descriptor.
    """
    limits = {
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_CPU: cpu_seconds,
        resource.RLIMIT_NOFILE: descriptors,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_CORE: 0,
    }
    for what, value in limits.items():
        if value is not None:
            resource.setrlimit(what, (value, value))
