"""The file system in which maps and links keep a name, and with it live on without any process.

Where it is not mounted it is mounted, and unmounted again when nothing is left in it; that it was us is noted
in /run/fwtop. Names are made in the mount namespace of process 1: inside `ip netns exec` there is another,
which would take everything pinned in it along when it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fwtop.model.errors import FwtopError
from fwtop.model.paths import PIN_DIRECTORY
from fwtop.model.protocol import SOCKET_DIRECTORY

_ROOT = PIN_DIRECTORY.parent
_CLONE_NEWNS = 0x00020000  # linux/sched.h
_KERNELS = ("maps.debug", "progs.debug")  # in every one (kernel/bpf/preload)
_NOTE = Path(SOCKET_DIRECTORY) / "bpffs-mounted"
_LOCK = Path(SOCKET_DIRECTORY) / "bpffs.lock"
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def locked() -> Iterator[None]:
    """Keep the loaders of other namespaces from mounting or unmounting meanwhile."""
    _LOCK.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    descriptor = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def enter_first_mounts() -> None:
    """Go where process 1 sees its files, where that is elsewhere and allowed."""
    try:
        if os.stat("/proc/1/ns/mnt").st_ino == os.stat("/proc/self/ns/mnt").st_ino:
            return
        descriptor = os.open("/proc/1/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    _libc.setns(descriptor, _CLONE_NEWNS)
    os.close(descriptor)


def directory_of(netns: int) -> Path:
    """Return where the pins of a network namespace are."""
    return PIN_DIRECTORY / str(netns)


def directories() -> list[Path]:
    """Return the pins' directories of all network namespaces."""
    found = PIN_DIRECTORY.iterdir() if PIN_DIRECTORY.is_dir() else ()
    return [path for path in found if path.name.isdigit()]


def namespaces() -> set[int]:
    """Return the network namespaces that a process is in or that are mounted where process 1 sees it."""
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        with contextlib.suppress(OSError):
            found.add(path.stat().st_ino)
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        kind, _, number = line.split()[3].partition(":")
        if kind == "net":
            found.add(int(number.strip("[]")))
    return found


def make_directory(netns: int) -> Path:
    """Return the pins' directory, made where it is missing; raises FwtopError (code 3) without bpffs."""
    if not _is_mounted():
        if _libc.mount(b"bpf", os.fsencode(_ROOT), b"bpf", 0, b"mode=0700") != 0:
            reason = os.strerror(ctypes.get_errno())
            line = f"XDP rules need a BPF file system at {_ROOT}: {reason}; nothing was installed"
            raise FwtopError(f"{line}: mount -t bpf bpf {_ROOT}", 3)
        _NOTE.touch(mode=0o600)
    directory = directory_of(netns)
    for path in (PIN_DIRECTORY, directory):
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
    return directory


def remove_directory(netns: int) -> None:
    """Take the pins of a namespace away, and the mount if it was ours and is empty now."""
    directory = directory_of(netns)
    if directory.is_dir():
        for path in list(directory.iterdir()):
            path.unlink()
        directory.rmdir()
    with contextlib.suppress(OSError):  # not empty: another namespace's rules
        PIN_DIRECTORY.rmdir()
    if _NOTE.exists() and _is_mounted() and all(path.name in _KERNELS for path in _ROOT.iterdir()):
        _libc.umount2(os.fsencode(_ROOT), 0)
    if not _is_mounted():
        _NOTE.unlink(missing_ok=True)


def _is_mounted() -> bool:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words = line.split()
        if words[4] == str(_ROOT) and words[words.index("-") + 1] == "bpf":
            return True
    return False
