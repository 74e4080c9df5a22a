"""Fork a module of fwtop into a network namespace for each request, as `ip netns exec` and Python start it.

The modules are imported once, which is most of what their processes cost: scapy, numpy and asyncio. A request
is JSON with the module, its arguments and environment; with it come its standard streams and its namespace.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

MOST_BYTES = 1 << 16
CLONE_NEWNET, CLONE_NEWNS = 0x40000000, 0x00020000  # linux/sched.h
MS_BIND, MS_REC, MS_SLAVE = 1 << 12, 1 << 14, 1 << 19  # linux/mount.h
MNT_DETACH = 2
libc = ctypes.CDLL(None, use_errno=True)


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


def become(asked: dict[str, Any], descriptors: Sequence[int]) -> NoReturn:
    status = 1
    try:
        *streams, namespace = descriptors
        for standard, stream in enumerate(streams):
            os.dup2(stream, standard)
        os.setsid()
        enter(asked["netns"], namespace)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.update(asked["environment"])
        sys.argv = [asked["module"], *asked["arguments"]]
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(at, "w" if at else "r") for at in range(3))
        status = import_module(asked["module"]).main() or 0
        sys.stdout.flush()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


def serve(requests: socket.socket) -> None:
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, MOST_BYTES, 4)
        if not message:
            return
        asked = json.loads(message)
        import_module(asked["module"])  # for all of its kind
        pid = os.fork()
        if pid == 0:
            requests.detach()
            become(asked, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        requests.send(b"%d" % pid)


if __name__ == "__main__":
    sys.path[0] = sys.argv[1]
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # nobody's threads are there after a fork
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    serve(socket.socket(fileno=0))
