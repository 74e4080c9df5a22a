"""The server of the stream: one process for a network namespace, beside the guardian and outliving it.

So a guardian that ends, is killed or replaced costs no program its connection, nor a change that it would
have been told. While it serves, the guardian goes on, too: this process is one of its clients.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from fwtop.api.serving import Budget, Means, Session
from fwtop.api.watcher import EventLog, Machine, Watcher
from fwtop.guardian.limits import read_limits
from fwtop.guardian.main import Options
from fwtop.guardian.serving.connections import MAX_OF_PROGRAMS, MAX_OF_USER
from fwtop.guardian.serving.peer import identity_of
from fwtop.guardian.serving.programs import listen
from fwtop.kernel import namespaces
from fwtop.kernel.children import LastClosers
from fwtop.kernel.descriptors import is_served, locked, raise_limit
from fwtop.model.errors import FwtopError

_EVERY_SECONDS = 2.0  # between two comparisons, while somebody follows
_LOOK_SECONDS = 2.0  # between two looks at the operator's file, and at the namespace's name
_FOLLOWED_SECONDS = 60.0  # after the last who follows: one that comes back misses nothing
_MOST_MEMORY = 1 << 30  # bytes: what programs send is worth no more of the machine
_LOCK_SECONDS = 5.0  # how long a predecessor may take to end
_FIRST_FD = 3  # sd_listen_fds(3)


class StreamServer:
    """Accepts programs; each gets a thread."""

    def __init__(self, options: Options, listener: socket.socket, path: Path | None) -> None:
        """Take the listening socket, and its path if that is ours, not systemd's."""
        self._options = options
        self._listener = listener
        self._path = path
        self._sessions: set[Session] = set()
        self._followed = 0.0
        log = EventLog()
        machine = Machine(options.run_directory, tuple(options.same_state()[2:]))
        watcher = Watcher(log, machine, _EVERY_SECONDS, self._is_followed)
        self._means = Means(machine, log, watcher, Budget())
        self._closers = LastClosers()

    def serve(self) -> None:
        """Serve until a signal, or until the namespace has lost its name."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _end)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._means.watcher.start()
        self._listener.settimeout(_LOOK_SECONDS)
        inode = namespaces.own()
        named = namespaces.name_of(inode) is not None
        while namespaces.name_of(inode) is not None or not named:
            self._open_to_groups()
            with contextlib.suppress(TimeoutError):
                self._take(self._listener.accept()[0])

    def _open_to_groups(self) -> None:
        """Let others than root connect where the operator's file gives anybody a scope."""
        if self._path is not None:
            granted = read_limits(self._options.limits_file)[0].access.granted
            self._path.chmod(0o666 if granted else 0o600)

    def _take(self, sock: socket.socket) -> None:
        try:
            _, uid, groups = identity_of(sock)
        except OSError:
            sock.close()
            return
        session = Session(sock, uid, tuple(groups), self._means)
        self._sessions = {item for item in self._sessions if item.is_open}
        if uid and sum(item.uid == uid for item in self._sessions) >= MAX_OF_USER:
            session.refuse(
                f"a user's programs have at most {MAX_OF_USER} connections: close some", self._closers
            )
        elif len(self._sessions) >= MAX_OF_PROGRAMS:
            session.refuse("there are too many connections of programs: try again later", self._closers)
        else:
            self._sessions.add(session)
            threading.Thread(target=session.run, name=f"program-{uid}", daemon=True).start()

    def _is_followed(self) -> bool:
        if any(item.follows and item.is_open for item in list(self._sessions)):
            self._followed = time.monotonic()
        return bool(self._followed) and time.monotonic() - self._followed < _FOLLOWED_SECONDS


def socket_path(run_directory: Path) -> Path:
    """Return where this process's namespace has its stream: a path that stays, by the namespace's name."""
    name = namespaces.own_name()
    return run_directory / ("api.sock" if name is None else f"api-{name}.sock")


def serve(options: Options) -> None:
    """Serve this namespace until a signal; raises FwtopError, also where somebody serves it already."""
    raise_limit()
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, _MOST_MEMORY))
    path = socket_path(options.run_directory)
    try:
        options.run_directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        given = _of_systemd()
        if given is None and is_served(path, socket.SOCK_STREAM):
            raise BlockingIOError
        with locked(path.with_suffix(".lock"), _LOCK_SECONDS if given else _LOOK_SECONDS) as lock:
            os.truncate(lock, 0)
            os.write(lock, b"%d\n" % os.getpid())  # for who ends all of fwtop
            listener = given or listen(path, kind=socket.SOCK_STREAM)
            try:
                StreamServer(options, listener, None if given else path).serve()
            finally:
                listener.close()
                if given is None:
                    path.unlink(missing_ok=True)
    except BlockingIOError:
        raise FwtopError(f"{path} is served already; nothing was started", reason="exists") from None
    except OSError as error:
        raise FwtopError(f"{path}: {error.strerror}; nothing was started") from None


def _end(*_: object) -> None:
    raise SystemExit(0)


def _of_systemd() -> socket.socket | None:
    """Return the socket that systemd listens on for this process, None if there is none."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or os.environ.get("LISTEN_FDS") != "1":
        return None
    os.set_inheritable(_FIRST_FD, False)
    return socket.socket(fileno=_FIRST_FD)


def main() -> int:
    """Serve for the guardian that starts this process, with its options."""
    os.setsid()
    os.setpriority(os.PRIO_PROCESS, 0, 0)  # a guardian goes before others; what serves programs needn't
    try:
        serve(Options.parse(sys.argv[1:]))
    except FwtopError:
        return 1  # somebody serves it already, as a rule
    return 0


if __name__ == "__main__":
    sys.exit(main())
