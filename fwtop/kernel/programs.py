"""Run system programs, with a fixed PATH and a time limit, and modules of this copy of fwtop."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import wraps
from typing import ParamSpec, TypeVar

from fwtop.model.errors import FwtopError
from fwtop.model.paths import ROOT
from fwtop.model.text import safe_text

ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
# Return the pages of short-lived large arrays to the system (mallopt(3)), and start no BLAS threads, whose
# stacks and buffers nothing here uses.
GUARDIAN_ENVIRONMENT = ENVIRONMENT | {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "1048576",
    "MALLOC_TRIM_THRESHOLD_": "4194304",
    "OPENBLAS_NUM_THREADS": "1",
}

PRIORITY = -10  # weighs 9.3 times a process of nice 0
RUN_SECONDS = 20.0  # of a program, unless its caller says otherwise: well below what any client waits


class CommandError(FwtopError):
    """A system program failed; `status` is its exit status, the message its first line on stderr."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, 1)
        self.status = status


def run(argv: list[str], *, text: str | None = None, timeout: float = RUN_SECONDS) -> str:
    """Run a program with `text` on its stdin and return its stdout.

    Raises FwtopError (code 3) if it is not installed, CommandError if it fails or exceeds `timeout` seconds
    or the current deadline.
    """
    done = _run_once(argv, text, limited(timeout))
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if line.strip()), "no message")
        raise CommandError(f"{argv[0]} failed: {safe_text(first, limit=200)}", done.returncode)
    return done.stdout


def restart_with(variables: dict[str, str]) -> None:
    """Start this program again, in this process, unless it has these variables already.

    The C library reads them at its start only.
    """
    if any(os.environ.get(name) != value for name, value in variables.items()):
        os.execve(sys.executable, sys.orig_argv, os.environ | variables)  # noqa: S606 - itself


_PACKAGES = {
    "nft": "nftables", "unshare": "util-linux", "systemctl": "systemd", "systemd-run": "systemd",
    **dict.fromkeys(("iptables-restore", "ip6tables", "ip6tables-restore"), "iptables"),
}  # fmt: skip


def _missing(program: str) -> FwtopError:
    package = _PACKAGES.get(program, program)
    return FwtopError(f"{program} is not installed; nothing was changed: apt-get install {package}", 3)


def _run_once(argv: list[str], text: str | None, timeout: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            argv,
            input=text if text is not None else "",
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=ENVIRONMENT,
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError:
        raise _missing(argv[0]) from None
    except OSError as error:  # out of memory or processes, as is likely under attack
        raise CommandError(f"{argv[0]} could not be started: {error.strerror}", 126) from None
    except subprocess.TimeoutExpired:
        raise CommandError(f"{argv[0]} did not finish within {timeout:.0f} s and was killed", 124) from None


_BOOT = (
    "import runpy, sys; root, module = sys.argv[1:3]; del sys.argv[1:3]; sys.path.insert(0, root);"
    "runpy.run_module(module, run_name='__main__', alter_sys=True)"
)


def module_argv(module: str, *arguments: str) -> list[str]:
    """Return the argv that runs a module of this copy in an isolated interpreter.

    `-I` ignores the working directory and the environment, so `-m` would not find a clone that isn't
    installed: the path of this copy is passed instead.
    """
    return [sys.executable, "-I", "-c", _BOOT, str(ROOT), module, *arguments]


# Deadlines are nested: a program's is before the worker's, and that before the client's, so that whoever
# times out can still report what was left untouched.
RESERVE_SECONDS = 5.0  # to roll back and to answer
_LEAST_SECONDS = 0.5
_end: ContextVar[float | None] = ContextVar("end", default=None)

_P = ParamSpec("_P")
_R = TypeVar("_R")


@contextlib.contextmanager
def until(end: float | None) -> Iterator[None]:
    """Limit programs to RESERVE_SECONDS before `end` (CLOCK_MONOTONIC); None: to their own limits."""
    token = _end.set(end)
    try:
        yield
    finally:
        _end.reset(token)


def limited(seconds: float) -> float:
    """Return how long a program may run whose own limit is `seconds`."""
    end = _end.get()
    if end is None:
        return seconds
    return max(_LEAST_SECONDS, min(seconds, end - RESERVE_SECONDS - time.monotonic()))


def unlimited(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Exempt a function from the deadline: removing a rule is completed however late it is."""

    @wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with until(None):
            return function(*args, **kwargs)

    return run


def hurry() -> None:
    """Run this process and its children before others, as atop does; never fails.

    They work for moments, but a rule waits for them: beside 20 busy processes a verb took 4 to 20 s.
    """
    with contextlib.suppress(OSError):  # a container lacks CAP_SYSPRIORITY, others are not root
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
