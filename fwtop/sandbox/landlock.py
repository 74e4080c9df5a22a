"""Landlock: restrict the files that this thread and all threads it starts may open.

Source: Documentation/userspace-api/landlock.rst and include/uapi/linux/landlock.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

from fwtop.kernel.descriptors import closing

# The numbers are the same on every architecture (asm-generic/unistd.h).
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1 << 0  # LANDLOCK_CREATE_RULESET_VERSION
_PATH_BENEATH = 1

_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_OF_FILES = 1 << 0 | _WRITE_FILE | _READ_FILE | _TRUNCATE | 1 << 15
READ = _READ_FILE | _READ_DIR
READ_WRITE = READ | _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER | _TRUNCATE
REMOVE = _REMOVE_DIR  # empty directories, which leaves nothing to lose
# Access rights to handle, by the first ABI version that knows them.
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_NET_RIGHTS = 3  # TCP bind and connect, since version 4
_SCOPES = 3  # abstract Unix sockets and signals to other domains, since version 6

_libc = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    """Return the kernel's Landlock ABI version, 0 without Landlock."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)))


def restrict(allowed: Iterable[tuple[Path, int]]) -> bool:
    """Deny access to all files except below these paths; return False if the kernel has no Landlock.

    Each path comes with its access rights; missing paths are skipped. no_new_privs must be set. Raises
    OSError.
    """
    known = version()
    if known == 0:
        return False
    handled = max(rights for since, rights in _FILE_RIGHTS.items() if since <= known)
    attributes = struct.pack("=QQQ", handled, _NET_RIGHTS if known >= 4 else 0, _SCOPES if known >= 6 else 0)
    size = 24 if known >= 6 else 16 if known >= 4 else 8
    with closing(_call(_CREATE_RULESET, ctypes.c_char_p(attributes), ctypes.c_size_t(size), 0)) as ruleset:
        for path, rights in allowed:
            with contextlib.suppress(FileNotFoundError, PermissionError, NotADirectoryError):
                _allow(ruleset, path, rights & handled)
        _call(_RESTRICT_SELF, ruleset, 0)
    return True


def _allow(ruleset: int, path: Path, rights: int) -> None:
    with closing(os.open(path, os.O_PATH | os.O_CLOEXEC)) as beneath:
        if not stat.S_ISDIR(os.fstat(beneath).st_mode):
            rights &= _OF_FILES
        rule = struct.pack("=Qi", rights, beneath)
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.c_char_p(rule), 0)


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock: {os.strerror(code)}")
    return result
