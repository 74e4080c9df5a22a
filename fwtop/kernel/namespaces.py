"""Network namespaces: open by name, enter, and identify."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from fwtop.kernel.descriptors import closing
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

NETNS = Path("/run/netns")  # where `ip netns` mounts named ones
_CLONE_NEWNET = 0x40000000  # linux/sched.h
_SO_NETNS_COOKIE = 71  # asm-generic/socket.h
_MAX_LISTED = 20  # names in an error message
_OCTAL = re.compile(r"\\([0-7]{3})")  # how mountinfo writes blanks
_libc = ctypes.CDLL(None, use_errno=True)


def open_netns(name: str | None) -> int:
    """Return a descriptor of the named namespace (`ip netns`), or of the current one for None.

    Raises FwtopError if there is no such namespace.
    """
    if name is None:
        return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    if not name or "/" in name or name in (".", ".."):
        raise FwtopError(f"{safe_text(name, limit=60)!r} is not a network namespace's name", 2)
    try:
        return os.open(NETNS / name, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        known = ", ".join(safe_text(item) for item in _names()[:_MAX_LISTED]) or "none"
        line = f"no network namespace {safe_text(name, limit=60)!r}; there are: {known} (ip netns list)"
        raise FwtopError(line, 2) from None
    except OSError as error:
        raise FwtopError(f"cannot open network namespace {safe_text(name)!r}: {error.strerror}", 3) from None


def inode(descriptor: int) -> int:
    """Return the inode, which identifies a namespace while it exists."""
    return os.fstat(descriptor).st_ino


def own() -> int:
    """Return the inode of the namespace that this process is in."""
    return os.stat("/proc/self/ns/net").st_ino


def own_name() -> str | None:
    """Return the `ip netns` name of the namespace that this process is in, None if it has none."""
    return name_of(own())


def lasting_name() -> str | None:
    """Return by what this process's namespace is known again: None for the machine's own, that of process 1.

    A named one is known by its `ip netns` name. What was learned in any other is nobody else's, nor of use
    after it: the name has the boot and a number of it. Where process 1 can't be asked, it is the machine's.
    """
    try:
        machine = os.stat("/proc/1/ns/net").st_ino
    except OSError:  # without root, or in a container whose first process may do more
        return own_name()
    if own() == machine:
        return None
    return own_name() or f"unnamed-{boot_id()[:8]}-{cookie()}"


def boot_id() -> str:
    """Return the kernel's identifier of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def cookie() -> int:
    """Return a number of the current namespace that is never reused within a boot, unlike inodes.

    SO_NETNS_COOKIE is Linux 5.14; on older kernels this is the inode.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            return int.from_bytes(
                any_socket.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8), sys.byteorder
            )
        except OSError:
            return own()


def enter(descriptor: int) -> None:
    """Move this single-threaded process into the namespace; needs CAP_SYS_ADMIN. Raises FwtopError."""
    if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise FwtopError(f"cannot enter the network namespace: {reason}; nothing was changed", 3)


def enter_named(name: str | None) -> None:
    """Move this single-threaded process into a named namespace (None: stay); raises FwtopError."""
    if name is not None:
        with closing(open_netns(name)) as descriptor:
            enter(descriptor)


@contextlib.contextmanager
def _returning() -> Iterator[None]:
    """Bring the calling thread back to its namespace, whichever the block entered; raises OSError."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        _libc.setns(home, _CLONE_NEWNET)
        os.close(home)


@contextlib.contextmanager
def inside(name: str) -> Iterator[None]:
    """Run the calling thread in a named namespace within the block; raises OSError."""
    with _returning():
        with closing(os.open(NETNS / name, os.O_RDONLY | os.O_CLOEXEC)) as target:
            if _libc.setns(target, _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"can't enter {name}")
        yield


@contextlib.contextmanager
def temporary() -> Iterator[None]:
    """Run the calling thread in a new, empty namespace, which goes with the block; raises OSError."""
    with _returning():
        if _libc.unshare(_CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "no new network namespace")
        yield


def name_of(number: int) -> str | None:
    """Return the `ip netns` name of the namespace with that inode, None if it has none."""
    for name in _names():
        try:
            if os.stat(NETNS / name).st_ino == number:
                return name
        except OSError:
            continue
    return None


def everywhere(*, held: bool = False) -> dict[int, str]:
    """Return every network namespace by its inode, with a path to open it by.

    A process is in it, or it is mounted somewhere, or, looked for with `held`, a process holds it open.
    """
    found: dict[int, str] = {}
    looked: set[str] = set()
    for process in (f"/proc/{name}" for name in os.listdir("/proc") if name.isdigit()):
        with contextlib.suppress(OSError):
            path = f"{process}/ns/net"
            _add(os.readlink(path), path, found)
            mounts = os.readlink(f"{process}/ns/mnt")
            if mounts not in looked:
                looked.add(mounts)
                _add_mounted(process, found)
        if held:
            _add_held(process, found)
    return found


def _add(link: str, path: str, found: dict[int, str]) -> None:
    """Add what nsfs names `net:[inode]`, unless it is something else or found already."""
    kind, _, number = link.partition(":")
    if kind == "net" and number.strip("[]").isdigit():
        found.setdefault(int(number.strip("[]")), path)


def _add_held(process: str, found: dict[int, str]) -> None:
    """Add the namespaces that a process has an open descriptor of."""
    with contextlib.suppress(OSError):
        for path in Path(process, "fd").iterdir():
            with contextlib.suppress(OSError):
                _add(os.readlink(path), str(path), found)


def _add_mounted(process: str, found: dict[int, str]) -> None:
    """Add the namespaces that are mounted where a process sees them (proc_pid_mountinfo(5))."""
    mounts = Path(process, "mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    for line in mounts.splitlines():
        if " net:[" in line:
            words = line.split(maxsplit=5)
            place = _OCTAL.sub(lambda escaped: chr(int(escaped[1], 8)), words[4])
            _add(words[3], f"{process}/root{place}", found)


def _names() -> list[str]:
    return sorted(entry.name for entry in NETNS.iterdir()) if NETNS.is_dir() else []
