"""Import the guardian, then fork one for each request: its arguments in JSON, with its network namespace.

Arguments: the clone's path, and the module's name. The requests come on standard input, a socket.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

MOST_BYTES = 1 << 16
FORKED = (
    "fwtop.policy.agent",  # 0.3 s of CPU for each policy of a program
    "fwtop.xdp.loader",  # 0.1 s for each change of a rule
)  # modules that guardians start


class Forked:
    """A child of a guardian, as far as it uses a Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._collect(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and timeout is not None:
            ended = os.pidfd_open(self.pid)
            ready = select.select([ended], [], [], timeout)[0]
            os.close(ended)
            if not ready:
                raise subprocess.TimeoutExpired(self.pid, timeout)
        return self._collect(0) or 0

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _collect(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def fork_modules() -> None:
    """Have this guardian fork what it would start as a new process."""
    from fwtop.kernel import children

    start = children.start

    def started(
        module: str, *arguments: str, descriptors: Sequence[int], stderr: int = subprocess.DEVNULL
    ) -> Forked | subprocess.Popen[bytes]:
        if module not in FORKED:
            return start(module, *arguments, descriptors=descriptors, stderr=stderr)
        pid = os.fork()
        if pid:
            return Forked(pid)
        become_module(module, arguments, descriptors)

    children.start = started


def name_of(module: str) -> str:
    """Return the name that a forked module's process has, by which tests know it."""
    return module[-15:]


def become_module(module: str, arguments: Sequence[str], descriptors: Sequence[int]) -> NoReturn:
    """Run a module as a new process would: with these descriptors and no handler of a signal."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(nothing, standard)
        kept = [2, *sorted(descriptors), os.sysconf("SC_OPEN_MAX")]
        for before, after in pairwise(kept):
            os.closerange(before + 1, after)
        os.umask(0o077)
        Path("/proc/self/comm").write_text(name_of(module))
        status = import_module(module).main(list(arguments))
    finally:
        os._exit(status)


def serve(requests: socket.socket) -> None:
    """Answer each request with the exit status of what starts the guardian, and its complaint."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, MOST_BYTES, 1)
        if not message:
            return
        (netns,) = descriptors
        reader, writer = os.pipe()
        starter = os.fork()
        if starter == 0:
            requests.close()
            os.close(reader)
            os.dup2(writer, 2)
            os.close(writer)
            become_guardian([*json.loads(message), "--netns-fd", str(netns)])
        os.close(netns)
        os.close(writer)
        with os.fdopen(reader, "rb") as stream:
            complaint = stream.read()
        status = os.waitstatus_to_exitcode(os.waitpid(starter, 0)[1])
        requests.send(b"%d " % status + complaint[-MOST_BYTES // 2 :])


def become_guardian(arguments: list[str]) -> NoReturn:
    from fwtop.guardian.main import main

    status = 1
    try:
        sys.argv = [sys.argv[2], *arguments]
        fork_modules()
        status = main()
        sys.stderr.flush()
    finally:
        os._exit(status)


if __name__ == "__main__":
    sys.path[0] = sys.argv[1]
    for name in ("fwtop.guardian.main", *FORKED):
        import_module(name)  # for all that are forked

    with socket.socket(fileno=os.dup(0)) as asked:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        serve(asked)
