"""Leave every network namespace of the machine; scripts/uninstall.sh runs this module.

A namespace needs no name: a process may be in it, or it is mounted somewhere, or a descriptor of it is open.
Where the kernel has anything of fwtop's, or a guardian runs, all is undone and the guardian ended; then the
kernel is asked again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import sys
import time
from pathlib import Path

from fwtop.client import discovery
from fwtop.guardian.main import Options
from fwtop.kernel import bpffs, namespaces
from fwtop.kernel.descriptors import closing
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Undo
from fwtop.model.text import safe_text
from fwtop.netfilter.listing.reader import RulesetReader

_END_SECONDS = 20.0  # that a guardian may take to end
_NAMED = 3  # things that are named of those that are left
_CLEAN_SECONDS = 2.0  # in which what detaches with the guardian's end is gone


def main() -> int:
    """Leave all; returns 0 if nothing is left anywhere."""
    arguments = sys.argv[1:]
    try:
        options = Options.parse(arguments)
    except FwtopError as error:
        print(error, file=sys.stderr)
        return error.code
    _end_streams(options.run_directory)
    left = 0
    for inode, path in sorted(namespaces.everywhere(held=True).items()):
        child = os.fork()  # a process enters one namespace after the other, but connects from one only
        if child == 0:
            os._exit(_leave(options, tuple(arguments), inode, path))
        left |= os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
    return int(left)


def _end_streams(run_directory: Path) -> None:
    """End what serves programs a stream: it would start guardians again."""
    for path in run_directory.glob("api*.lock"):
        with contextlib.suppress(OSError, ValueError, FwtopError), path.open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _end(int(lock.read()))


def _leave(options: Options, arguments: tuple[str, ...], inode: int, path: str) -> int:
    name = namespaces.name_of(inode)
    where = safe_text(f"network namespace {name or inode}", limit=80)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0  # it has gone meanwhile, and everything in it
    try:
        namespaces.enter(descriptor)
        if not _here(inode) and not (options.run_directory / f"{inode}.sock").exists():
            return 0
        with discovery.connect(run_directory=options.run_directory, guardian_arguments=arguments) as guardian:
            undone = guardian.demand(Undo(all=True)).data["undone"]
            pid = int(str(guardian.about["pid"]))
        _end(pid)
    except (OSError, FwtopError) as error:
        print(f"{where}: {FwtopError.of(error)}", file=sys.stderr)
        return 1
    left = _here(inode)
    end = time.monotonic() + _CLEAN_SECONDS
    while left and time.monotonic() < end:
        time.sleep(0.1)  # nothing tells when the kernel has detached a program
        left = _here(inode)
    if left:
        more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        print(f"{where}: the kernel still has {', '.join(left[:_NAMED])}{more}", file=sys.stderr)
        return 1
    print(f"{where}: removed {', '.join(undone) or 'what was left'}", file=sys.stderr)
    return 0


def _here(inode: int) -> list[str]:
    """Return what fwtop has left in this namespace's kernel state."""
    ruleset = RulesetReader().read()
    found = [f"{rule.place}: {rule.text}" for rule in ruleset.rules if rule.ours]
    found += [f"set {item.name}" for item in ruleset.sets if item.ours]
    directory = bpffs.directory_of(inode)
    return found + ([str(directory)] if directory.is_dir() else [])


def _end(pid: int) -> None:
    """End a guardian that serves on without rules, because programs may come; raises OSError, FwtopError."""
    with contextlib.suppress(ProcessLookupError), closing(os.pidfd_open(pid)) as process:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        poll = select.poll()
        poll.register(process, select.POLLIN)
        if not poll.poll(_END_SECONDS * 1000):
            raise FwtopError(f"the guardian, process {pid}, does not end")


if __name__ == "__main__":
    sys.exit(main())
