"""Run the system's own programs: fixed PATH, no user environment, a time limit, errors as one line."""

from __future__ import annotations

import subprocess

from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
# Long lists are arrays that live for a moment: their pages go back to the system (mallopt(3)), and no BLAS
# threads, which nothing here uses, keep stacks and buffers.
GUARDIAN_ENVIRONMENT = ENVIRONMENT | {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "1048576",
    "MALLOC_TRIM_THRESHOLD_": "4194304",
    "OPENBLAS_NUM_THREADS": "1",
}


class CommandError(FwtopError):
    """A system program failed; `status` is its exit status and the message its first line of complaint."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, 1)
        self.status = status


def run(argv: list[str], *, text: str | None = None, timeout: float = 60.0) -> str:
    """Run a program, with `text` on its standard input, and return its standard output.

    Raises FwtopError (code 3) where the program is missing, CommandError where it fails or takes
    longer than `timeout` seconds.
    """
    done = _run_once(argv, text, timeout)
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if line.strip()), "no message")
        raise CommandError(f"{argv[0]} failed: {safe_text(first, limit=200)}", done.returncode)
    return done.stdout


def _missing(program: str) -> FwtopError:
    package = "ipset" if program == "ipset" else "nftables" if program == "nft" else "iptables"
    return FwtopError(f"{program} is not installed; nothing was changed: apt-get install {package}", 3)


def _run_once(argv: list[str], text: str | None, timeout: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            argv,
            input=text if text is not None else "",
            capture_output=True,
            text=True,
            errors="replace",
            env=ENVIRONMENT,
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError:
        raise _missing(argv[0]) from None
    except OSError as error:  # no memory, no process to be had: likely enough under an attack
        raise CommandError(f"{argv[0]} could not be started: {error.strerror}", 126) from None
    except subprocess.TimeoutExpired:
        raise CommandError(f"{argv[0]} did not finish within {timeout:.0f} s and was ended", 124) from None
