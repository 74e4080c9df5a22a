"""Network namespaces: name one, enter one, tell them apart by inode."""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from pathlib import Path

from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

CLONE_NEWNET = 0x40000000  # linux/sched.h
_SO_NETNS_COOKIE = 71  # asm-generic/socket.h
NAMED = "/run/netns"


def open_netns(name: str | None) -> int:
    """Return a descriptor of the named namespace (`ip netns`), or of the present one for None.

    Raises FwtopError where there is no such namespace.
    """
    if name is None:
        return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    if not name or "/" in name or name in (".", ".."):
        raise FwtopError(f"{safe_text(name, limit=60)!r} is not a network namespace's name", 2)
    try:
        return os.open(f"{NAMED}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        known = ", ".join(safe_text(item) for item in _names()[:20]) or "none"
        line = f"no network namespace {safe_text(name, limit=60)!r}; there are: {known} (ip netns list)"
        raise FwtopError(line, 2) from None
    except OSError as error:
        raise FwtopError(f"cannot open network namespace {safe_text(name)!r}: {error.strerror}", 3) from None


def inode(descriptor: int) -> int:
    """Return the number that identifies the namespace as long as it lives."""
    return os.fstat(descriptor).st_ino


def cookie() -> int:
    """Return the number of the present namespace that no other gets in this boot (inodes are used again).

    SO_NETNS_COOKIE is Linux 5.14; older kernels give the inode.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            return int.from_bytes(
                any_socket.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8), sys.byteorder
            )
        except OSError:
            return os.stat("/proc/self/ns/net").st_ino


def enter(descriptor: int) -> None:
    """Move this process (all of its single thread) into the namespace; needs CAP_SYS_ADMIN."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, CLONE_NEWNET) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise FwtopError(f"cannot enter the network namespace: {reason}; nothing was changed", 3)


def _names() -> list[str]:
    directory = Path(NAMED)
    return sorted(entry.name for entry in directory.iterdir()) if directory.is_dir() else []


def name_of(number: int) -> str | None:
    """Return the name under which `ip netns` knows a namespace, if it has one."""
    for name in _names():
        try:
            if os.stat(f"{NAMED}/{name}").st_ino == number:
                return name
        except OSError:
            continue
    return None
