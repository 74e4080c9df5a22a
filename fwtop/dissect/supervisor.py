"""Start the dissector, from root, before root is given away: under a user of its own, on demand.

The supervisor is a fork that gives root away first and then waits on the socket. It executes the dissector
when a packet arrives, so that an unused dissector costs no memory, and again after the dissector has died.
"""

from __future__ import annotations

import os
import pwd
import select
import signal
import socket
import time

from fwtop.kernel.programs import module_argv
from fwtop.model.paths import CONSOLE_USER, DISSECTOR_USER
from fwtop.sandbox.confine import drop_privileges

_MAX_STARTS = 20  # a dissector that dies before reading its packet must not be started for ever
_PAUSE_SECONDS = 0.2
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"}


def start_dissector() -> socket.socket | None:
    """Return the socket of a new dissector, or None if there is no user apart from the console's to run it.

    The dissector ends when the socket's last copy is closed. Not being root, it runs as the caller, confined.
    """
    account = None
    if os.geteuid() == 0 and (account := dissector_user()) is None:
        return None
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        try:
            _supervise(theirs.fileno(), account)
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    theirs.close()
    return mine


def dissector_user() -> pwd.struct_passwd | None:
    """Return the dissector's user, or `nobody` where `make setup` has made only the console's."""
    for name, required in ((DISSECTOR_USER, DISSECTOR_USER), ("nobody", CONSOLE_USER)):
        try:
            pwd.getpwnam(required)
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None


def _supervise(descriptor: int, account: pwd.struct_passwd | None) -> None:
    os.setsid()  # no controlling terminal to type into, none of its signals
    if os.fork():
        os._exit(0)  # adopted by init: the launcher waits for the console only
    os.dup2(descriptor, 0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.closerange(3, 4096)
    os.chdir("/")
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    if account is not None:
        drop_privileges(account)
    poller = select.poll()
    poller.register(0, select.POLLIN | select.POLLRDHUP)
    for _ in range(_MAX_STARTS):
        if any(event & (select.POLLHUP | select.POLLRDHUP) for _, event in poller.poll()):
            return
        child = os.fork()
        if child == 0:
            argv = module_argv("fwtop.dissect")
            os.execve(argv[0], argv, _ENVIRONMENT)  # noqa: S606 - no shell, fixed environment
        if os.waitpid(child, 0)[1] == 0:
            return
        time.sleep(_PAUSE_SECONDS)
