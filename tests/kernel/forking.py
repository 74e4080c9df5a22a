"""Fork what the kernel tests start over and over, from one process that has imported it already.

Imports are most of what a process of fwtop costs: 0.2 s of CPU for a guardian, a second with scapy and numpy.
A request is JSON with a module, its arguments and environment; with it come its standard streams and its
namespace. The module's own `main` runs, as from a command line. This process is told the clone's path.
"""

from __future__ import annotations

import ctypes
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
from typing import Any, NoReturn

GUARDIAN = "fwtop.guardian"
MOST_BYTES = 1 << 16
FORKED = (
    "fwtop.policy.agent",  # 0.3 s of CPU for each policy of a program
    "fwtop.xdp.loader",  # 0.1 s for each change of a rule
)  # modules that guardians start
CLONE_NEWNET, CLONE_NEWNS = 0x40000000, 0x00020000  # linux/sched.h
MS_BIND, MS_REC, MS_SLAVE = 1 << 12, 1 << 14, 1 << 19  # linux/mount.h
MNT_DETACH = 2
libc = ctypes.CDLL(None, use_errno=True)


class Child:
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


def fork_children() -> None:
    """Have this guardian fork what it would start as a new process."""
    from fwtop.kernel import children

    start = children.start

    def started(
        module: str, *arguments: str, descriptors: Sequence[int], stderr: int = subprocess.DEVNULL
    ) -> Child | subprocess.Popen[bytes]:
        if module not in FORKED:
            return start(module, *arguments, descriptors=descriptors, stderr=stderr)
        pid = os.fork()
        if pid:
            return Child(pid)
        become_child(module, arguments, descriptors)

    children.start = started


def name_of(module: str) -> str:
    """Return the name that a guardian's forked child has, by which tests know it."""
    return module[-15:]


def become_child(module: str, arguments: Sequence[str], descriptors: Sequence[int]) -> NoReturn:
    """Run a module as a guardian's new process would: with these descriptors and no handler of a signal."""
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


def must(status: int) -> None:
    if status:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def enter(name: str, namespace: int) -> None:
    """Do what `ip netns exec` does: with /sys and the files of /etc/netns of the namespace."""
    must(libc.setns(namespace, CLONE_NEWNET))
    must(libc.unshare(CLONE_NEWNS))
    must(libc.mount(b"", b"/", b"none", MS_SLAVE | MS_REC, None))
    must(libc.umount2(b"/sys", MNT_DETACH))
    must(libc.mount(name.encode(), b"/sys", b"sysfs", 0, None))
    for path in Path("/etc/netns", name).glob("*"):
        must(libc.mount(bytes(path), bytes(Path("/etc", path.name)), b"none", MS_BIND, None))


def rename(name: str) -> None:
    """Give this process a command line of one word, by which the tests know a guardian."""
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    ctypes.memmove(start, name.encode()[: end - start - 1].ljust(end - start, b"\0"), end - start)


def become(asked: dict[str, Any], descriptors: Sequence[int]) -> NoReturn:
    """Run a module; a guardian enters its namespace itself, and its status follows its complaint."""
    status: Any = 1
    is_guardian = asked["module"] == GUARDIAN
    try:
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        namespace = len(descriptors) - 1
        os.closerange(namespace + 1, os.sysconf("SC_OPEN_MAX"))
        rename(asked["module"])
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.update(asked["environment"])
        sys.argv = [asked["module"], *asked["arguments"]]
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(at, "w" if at else "r") for at in range(3))
        if is_guardian:
            sys.argv += ["--netns-fd", str(namespace)]
            fork_children()
        else:
            os.setsid()
            enter(asked["netns"], namespace)
            os.close(namespace)
        status = import_module(main_of(asked["module"])).main() or 0
        sys.stdout.flush()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        if is_guardian:
            os.write(2, b"\0%d" % status)
        os._exit(status)


def main_of(module: str) -> str:
    return f"{module}.main" if module == GUARDIAN else module


def serve(requests: socket.socket) -> None:
    """Answer each request with the process that was forked for it."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, MOST_BYTES, 4)
        if not message:
            return
        asked = json.loads(message)
        import_module(main_of(asked["module"]))  # for all of its kind
        if asked["module"] == GUARDIAN:
            for name in FORKED:
                import_module(name)
        pid = os.fork()
        if pid == 0:
            become(asked, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        requests.send(b"%d" % pid)


if __name__ == "__main__":
    sys.path[0] = sys.argv[1]
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # nobody's threads are there after a fork
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    with socket.socket(fileno=os.dup(0)) as asked:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        serve(asked)
