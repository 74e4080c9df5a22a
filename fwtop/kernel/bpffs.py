"""bpffs, where pinned maps and links outlive every process.

If it is not mounted, fwtop mounts it, and unmounts it once it is empty again; a file in /run/fwtop records
that. Pins are made in the mount namespace of process 1: `ip netns exec` creates another one, whose pins
would disappear with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fwtop.kernel.descriptors import closing
from fwtop.kernel.namespaces import cookie
from fwtop.model.errors import FwtopError
from fwtop.model.paths import PIN_DIRECTORY, RUN_DIRECTORY

_ROOT = PIN_DIRECTORY.parent
_CLONE_NEWNS = 0x00020000  # linux/sched.h
_PRELOADED = frozenset({"maps.debug", "progs.debug"})  # made by the kernel (kernel/bpf/preload)
_OWNER = "owner"  # a symbolic link in a pin directory: bpffs holds no files of text
_MOUNTED_BY_US = RUN_DIRECTORY / "bpffs-mounted"
_LOCK = RUN_DIRECTORY / "bpffs.lock"
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def locked() -> Iterator[None]:
    """Exclude the loaders of other namespaces from mounting and unmounting."""
    _LOCK.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with closing(os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def enter_init_mounts() -> None:
    """Join the mount namespace of process 1, if allowed."""
    try:
        if os.stat("/proc/1/ns/mnt").st_ino == os.stat("/proc/self/ns/mnt").st_ino:
            return
        descriptor = os.open("/proc/1/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    _libc.setns(descriptor, _CLONE_NEWNS)
    os.close(descriptor)


def directory_of(netns: int) -> Path:
    """Return the directory for the pins of a network namespace."""
    return PIN_DIRECTORY / str(netns)


def directories() -> list[Path]:
    """Return the pin directories of all network namespaces."""
    found = PIN_DIRECTORY.iterdir() if PIN_DIRECTORY.is_dir() else ()
    return [path for path in found if path.name.isdigit()]


def make_directory(netns: int) -> Path:
    """Create this namespace's pin directory if necessary; raises FwtopError (code 3) without bpffs."""
    if not _is_mounted():
        if _libc.mount(b"bpf", os.fsencode(_ROOT), b"bpf", 0, b"mode=0700") != 0:
            reason = os.strerror(ctypes.get_errno())
            line = f"XDP rules need a BPF file system at {_ROOT}: {reason}; nothing was installed"
            raise FwtopError(f"{line}: mount -t bpf bpf {_ROOT}", 3)
        _MOUNTED_BY_US.touch(mode=0o600)
    directory = directory_of(netns)
    for path in (PIN_DIRECTORY, directory):
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
    with contextlib.suppress(FileExistsError):
        (directory / _OWNER).symlink_to(str(cookie()))
    return directory


def remove_former(netns: int) -> None:
    """Remove the pins of a deleted namespace whose inode the kernel has given to this one."""
    with contextlib.suppress(FileNotFoundError):
        if os.readlink(directory_of(netns) / _OWNER) != str(cookie()):
            remove_directory(netns)


def remove_directory(netns: int) -> None:
    """Remove the pins of a namespace, and unmount bpffs if fwtop mounted it and it is empty."""
    directory = directory_of(netns)
    if directory.is_dir():
        for path in list(directory.iterdir()):
            path.unlink()
        directory.rmdir()
    with contextlib.suppress(OSError):  # not empty: another namespace's rules
        PIN_DIRECTORY.rmdir()
    if _MOUNTED_BY_US.exists() and _is_mounted() and all(path.name in _PRELOADED for path in _ROOT.iterdir()):
        _libc.umount2(os.fsencode(_ROOT), 0)
    if not _is_mounted():
        _MOUNTED_BY_US.unlink(missing_ok=True)


def _is_mounted() -> bool:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words = line.split()
        if words[4] == str(_ROOT) and words[words.index("-") + 1] == "bpf":
            return True
    return False
