"""The root process that outlives every console: one per network namespace, on a socket of its own.

It holds no packet contents. It installs and removes rules, runs their clocks, and hands observers'
descriptors to consoles. `python -I -m fwtop.mitigate.guardian [--netns NAME | --netns-fd N]`.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import signal
import socket
import sys
import syslog
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from fwtop.mitigate import allowlist, links, netns, variants
from fwtop.mitigate.chain import Chains
from fwtop.mitigate.journal import Journal
from fwtop.mitigate.kernel import Kernel
from fwtop.mitigate.limits import LIMITS_FILE, read_limits
from fwtop.mitigate.nft import NftTables
from fwtop.mitigate.run import GUARDIAN_ENVIRONMENT
from fwtop.mitigate.server import Identity, Server
from fwtop.mitigate.service import Service
from fwtop.mitigate.steps import Step, Steps
from fwtop.mitigate.watchdog import Watchdog
from fwtop.mitigate.xdp import FastPath
from fwtop.model import paths
from fwtop.model.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_LOCK_SECONDS = 5.0  # how long a predecessor may take to hand over


def main(arguments: list[str] | None = None) -> int:
    """Start a guardian; returns when it is ready and detached (or, in the foreground, when it ended)."""
    options = _parser().parse_args(arguments)
    os.umask(0o077)
    os.chdir("/")
    os.environ.clear()
    os.environ.update(GUARDIAN_ENVIRONMENT)
    try:
        if os.geteuid() != 0:
            raise FwtopError("the guardian needs root; nothing was started; try: sudo fwtop", 3)
        descriptor = options.netns_fd if options.netns_fd is not None else netns.open_netns(options.netns)
        netns.enter(descriptor)
        os.close(descriptor)
        if options.foreground:
            return _serve(options, lambda: None)
        return _daemonise(options)
    except FwtopError as error:
        print(error, file=sys.stderr)
        return error.code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fwtop-guardian", allow_abbrev=False)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--netns", help="work in this named network namespace")
    where.add_argument("--netns-fd", type=int, help="work in the namespace of this inherited descriptor")
    parser.add_argument("--build", default=paths.build_id(), help="hash of the program that starts it")
    parser.add_argument("--run-directory", type=Path, default=paths.RUN_DIRECTORY)
    parser.add_argument("--journal", type=Path, default=paths.JOURNAL)
    parser.add_argument("--allow-file", default=allowlist.ALLOW_FILE)
    parser.add_argument("--limits-file", type=Path, default=Path(LIMITS_FILE))
    parser.add_argument("--foreground", action="store_true", help="do not detach")
    parser.add_argument("--crash-at", choices=[step.value for step in Step], help="for tests: SIGKILL there")
    return parser


def _daemonise(options: argparse.Namespace) -> int:
    """Fork; the parent passes on whether the child got ready, and ends."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _detached(options, writer)
    os.close(writer)
    with os.fdopen(reader) as report:
        code, _, line = report.read().partition(" ")
    if code != "0":
        print(line or "the guardian ended before it was ready", file=sys.stderr)
    return int(code) if code.isdigit() else 1


def _detached(options: argparse.Namespace, writer: int) -> NoReturn:
    def report(text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(writer, text.encode())
        with contextlib.suppress(OSError):
            os.close(writer)

    code = 1
    try:
        os.setsid()
        _redirect_standard_streams()
        syslog.openlog("fwtop-guardian", syslog.LOG_PID, syslog.LOG_DAEMON)
        code = _serve(options, lambda: report("0 "))
    except FwtopError as error:
        code = error.code
        report(f"{error.code} {error}")
        syslog.syslog(syslog.LOG_ERR, str(error))
    except BaseException as error:
        line = safe_text(f"guardian: {type(error).__name__}: {error}")
        report(f"1 {line}")
        syslog.syslog(syslog.LOG_CRIT, line)
    finally:
        os._exit(code)


def _redirect_standard_streams() -> None:
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)


def _serve(options: argparse.Namespace, ready: Callable[[], None]) -> int:
    """Run until nothing is left to guard."""
    number = os.stat("/proc/self/ns/net").st_ino
    directory: Path = options.run_directory
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        directory.chmod(0o755)
        lock_path = directory / f"{number}.lock"
        lock = _lock(lock_path)
    except OSError as error:
        raise FwtopError(f"cannot use {directory}: {error.strerror}; nothing was started", 1) from None
    remove_stale(directory)
    path = directory / f"{number}.sock"
    try:
        journal, unable = _open_journal(options.journal)
        server = _server(options, number, journal, unable)
        listener = _listen(path)
        ready()
        server.run(listener)
        journal.close()
    finally:
        path.unlink(missing_ok=True)
        lock_path.unlink(missing_ok=True)
        os.close(lock)
    return 0


def _open_journal(path: Path) -> tuple[Journal, str]:
    """Open the journal; where it can't be kept nothing may be installed, but watching goes on."""
    try:
        return Journal(path, netns.cookie()), ""
    except FwtopError as error:
        syslog.syslog(syslog.LOG_ERR, str(error))
        return Journal(None, netns.cookie()), str(error)


def _server(options: argparse.Namespace, number: int, journal: Journal, unable: str) -> Server:
    choice = variants.choose()
    steps = Steps(options.crash_at)
    fast = FastPath(steps, number)
    tables = NftTables(steps, lambda: links.incoming(fast.interfaces))
    kernel = Kernel(Chains(choice.variant), journal, steps, fast, tables)
    operators: dict[Prefix, float] = {}
    name = netns.name_of(number)
    service = Service(
        journal,
        kernel,
        lambda: allowlist.gather(operators, name, options.allow_file),
        steps,
        warnings=choice.warnings,
        unable=unable,
        limits=lambda: read_limits(options.limits_file),
        tell_watchdog=Watchdog(*_same(options)).tell,
    )
    try:
        fast.find()
    except FwtopError as error:
        syslog.syslog(syslog.LOG_ERR, f"what is left of XDP rules could not be looked at: {error}")
    for line in service.reconcile():
        syslog.syslog(syslog.LOG_NOTICE, line)
    steps.armed = True
    identity = Identity(os.getpid(), options.build, number, choice.variant.name)
    return Server(service, identity, operators, fast)


def _same(options: argparse.Namespace) -> list[str]:
    """Return the arguments for a guardian like this one."""
    names = ("build", "run_directory", "journal", "allow_file", "limits_file")
    return [f"--{name.replace('_', '-')}={getattr(options, name)}" for name in names]


def _lock(path: Path) -> int:
    """Take the lock that makes this the namespace's only guardian, waiting for one that hands over."""
    descriptor = _open_lock(path)
    end = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and path.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
            os.close(descriptor)  # its last holder removed it when it ended
            descriptor = _open_lock(path)
        except BlockingIOError:
            if time.monotonic() > end:
                os.close(descriptor)
                raise FwtopError("another guardian holds this namespace; nothing was started") from None
            time.sleep(0.02)  # flock(2) has no time limit of its own


def remove_stale(directory: Path) -> None:
    """Remove sockets and locks of guardians that were killed: nobody holds their lock any more."""
    for path in directory.glob("*.lock"):
        if not path.stem.isdigit():
            continue
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.with_suffix(".sock").unlink(missing_ok=True)
                path.unlink()
            finally:
                os.close(descriptor)


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    path.unlink(missing_ok=True)  # ours alone: the lock is held
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(16)
    return listener


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.exit(main())
