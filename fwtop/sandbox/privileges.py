"""Give root away, irrevocably, before parsing anything an attacker sent.

Sources: capabilities(7), prctl(2) PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS and PR_SET_PDEATHSIG.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import signal
from collections.abc import Collection

from fwtop.model.errors import FwtopError
from fwtop.model.paths import CONSOLE_USER
from fwtop.sandbox.confine import hide_memory

_PR_SET_PDEATHSIG = 1
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4


def unprivileged_user() -> pwd.struct_passwd:
    """Return the account that the console runs as: `fwtop`, else `nobody`."""
    for name in (CONSOLE_USER, "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise FwtopError("there is neither a user 'fwtop' nor 'nobody'; nothing was started; run 'make setup'", 3)


def drop_privileges(account: pwd.struct_passwd | None = None, *, no_new_privileges: bool = True) -> None:
    """Switch to an unprivileged user (default: the console's), without capabilities and without a way back.

    If not root, only set no_new_privs. Either way other processes of that user can no longer inspect this
    one. Without `no_new_privileges`, set-group-ID programs still work, as sendmail(8) must. Raises OSError
    if the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() == 0:
        account = account or unprivileged_user()
        _drop_bounding_set(libc)
        os.setgroups([])
        os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
        os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
        libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    if no_new_privileges and libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS) failed")
    hide_memory()


def close_inherited(keep: Collection[int] = ()) -> None:
    """Close what the caller's shell left open for its programs, except standard streams and `keep`.

    It may be a file of root's. What Python opens is closed on exec (PEP 446); what came through one isn't.
    """
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # that of the listing
            if descriptor > 2 and descriptor not in keep and os.get_inheritable(descriptor):
                os.close(descriptor)


def close_others(keep: Collection[int]) -> None:
    """Close all descriptors but standard streams and `keep`: one may be a connection to the guardian."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor not in keep:
            with contextlib.suppress(OSError):  # that of the listing
                os.close(descriptor)


def end_with(parent: int) -> None:
    """Have the kernel end this process by SIGTERM when its parent ends; call it after `drop_privileges`.

    A change of user would take it back. Raises ProcessLookupError if the parent has ended already.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        raise ProcessLookupError("the process that started this one has ended")


def _drop_bounding_set(libc: ctypes.CDLL) -> None:
    # EINVAL: a capability this kernel does not know; EPERM: the set can't be changed any more.
    for capability in range(64):
        if libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break
