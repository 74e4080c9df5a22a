"""Give root away, irrevocably, and confine what is left: seccomp, Landlock, limits, no core dumps, no ptrace.

Seccomp filters are allow-lists, installed by libseccomp: all other system calls fail with EPERM. Commands of
ioctl(2) and bpf(2) are listed individually, so that TIOCSTI and TIOCLINUX, which inject terminal input, are
denied whatever the argument's upper half. Landlock restricts the files that this thread and all threads it
starts may open. Sources: capabilities(7), prctl(2), Documentation/userspace-api/landlock.rst,
include/uapi/linux/landlock.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import pwd
import resource
import signal
import socket
import stat
import struct
import sys
import termios
from collections.abc import Callable, Collection, Iterable
from enum import Enum
from pathlib import Path

from fwtop.kernel.descriptors import closing
from fwtop.model.errors import FwtopError
from fwtop.model.paths import CONSOLE_USER, COSTS_FILE, ROOT, SSH_KEYGEN, STATE_DIRECTORY

# Imported here because by the time the filter is built, root is gone and a clone below /root is unreadable.
try:
    import seccomp
except ImportError:
    seccomp = None

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 24, 47, 4
_libc = ctypes.CDLL(None, use_errno=True)
# All of /proc, because Landlock rules refer to inodes, and procfs recreates those of single files.
_READABLE = (
    ROOT, COSTS_FILE, *map(Path, (sys.prefix, sys.base_prefix, "/usr", "/lib", "/lib64", "/etc/fwtop",
    "/etc/localtime", "/etc/timezone", "/etc/terminfo", "/proc", "/sys/class/net", "/sys/devices",
    "/var/lib/GeoIP", "/dev/urandom")),
)  # fmt: skip


# What ssh-keygen(1) is linked with, looks up (its user) and runs as
_OF_PROGRAMS = ("/etc/passwd", "/etc/nsswitch.conf", "/etc/ld.so.cache", "/etc/ssl", "/proc")
_RUN = ("/usr/lib", "/lib", "/lib64")


class Profile(Enum):
    """The role of a confined process."""

    CONSOLE = "console"  # live traffic: bpf(2), rtnetlink, sock_diag, a terminal
    SERVER = "server"  # a console that answers on the listening socket it was given
    READER = "reader"  # captures and stored sessions, with or without a terminal
    DISSECTOR = "dissector"  # one socket, nothing else
    VERIFIER = "verifier"  # runs ssh-keygen on memory files


def hide_memory() -> None:
    """Deny ptrace and pidfd_getfd to other processes of the same user, and disable core dumps."""
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def confine(
    profile: Profile,
    *,
    read: Iterable[Path | str | None] = (),
    write: Iterable[Path] = (),
    remove: Iterable[Path] = (),
) -> None:
    """Enter the sandbox irrevocably; call this before parsing any untrusted input.

    Besides the program's own files, the process may read below `read`, read and write below `write`, and
    remove empty directories below `remove`. Raises FwtopError (3) if the system lacks seccomp.
    """
    hide_memory()
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    allowed: list[tuple[Path, int]] = []
    if profile is Profile.VERIFIER:
        allowed += [(Path(path), _READ) for path in _OF_PROGRAMS]
        allowed += [(Path(path), _READ | _EXECUTE) for path in (SSH_KEYGEN, *_RUN)]
        allowed.append((Path("/dev/null"), _READ_WRITE))
    elif profile is not Profile.DISSECTOR:
        allowed += [(path, _READ) for path in _READABLE]
        allowed += [(Path(path).absolute(), _READ) for path in read if path is not None]
        allowed += [(path, _READ_WRITE) for path in (STATE_DIRECTORY, *write)]
        allowed += [(path, _REMOVE) for path in remove]
        allowed.append((Path("/dev/null"), _READ_WRITE))
    try:
        install = _filter_of(profile)
        _restrict(allowed)
        install()
    except ImportError:
        raise FwtopError("python3-seccomp is missing, so nothing was started; run 'make setup'", 3) from None
    except (OSError, RuntimeError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        # Code 3 means that this machine can't; a machine short of memory can, later: a service tries again.
        code = 1 if isinstance(error, OSError) and error.errno == errno.ENOMEM else 3
        raise FwtopError(f"the sandbox could not be entered ({reason}); nothing was started", code) from None


def limit(memory_bytes: int, *, cpu_seconds: int | None = None, descriptors: int | None = None) -> None:
    """Let this process write no file, start no other, and have no more of memory, time and descriptors.

    Call it after `confine`, which needs a descriptor.
    """
    limits = {
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_CPU: cpu_seconds,
        resource.RLIMIT_NOFILE: descriptors,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_CORE: 0,
    }
    for what, value in limits.items():
        if value is not None:
            resource.setrlimit(what, (value, value))


def unprivileged_user(user: str = CONSOLE_USER) -> pwd.struct_passwd:
    """Return an account of fwtop's, by default the console's, else `nobody`."""
    for name in (user, "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    line = f"there is neither a user {user!r} nor 'nobody'; nothing was started; run 'make setup'"
    raise FwtopError(line, 3)


def drop_privileges(account: pwd.struct_passwd | None = None, *, no_new_privileges: bool = True) -> None:
    """Switch to an unprivileged user (default: the console's), without capabilities and without a way back.

    If not root, only set no_new_privs. Either way other processes of that user can no longer inspect this
    one. Without `no_new_privileges`, set-group-ID programs still work, as sendmail(8) must. Raises OSError
    if the kernel refuses.
    """
    if os.geteuid() == 0:
        account = account or unprivileged_user()
        _drop_bounding_set()
        os.setgroups([])
        os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
        os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
        _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    if no_new_privileges and _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
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


def end_with(parent: int, how: signal.Signals = signal.SIGTERM) -> None:
    """Have the kernel end this process by a signal when its parent ends; call it after `drop_privileges`.

    A change of user would take it back. Raises ProcessLookupError if the parent has ended already.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, int(how), 0, 0, 0)
    if os.getppid() != parent:
        raise ProcessLookupError("the process that started this one has ended")


def _drop_bounding_set() -> None:
    # EINVAL: a capability this kernel does not know; EPERM: the set can't be changed any more.
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break


# Seccomp

_INTERPRETER = (
    "read readv pread64 preadv write writev pwrite64 pwritev close close_range lseek "
    "fstat newfstatat fstatat64 stat lstat statx dup dup2 dup3 "
    "mmap munmap mremap mprotect madvise brk membarrier "
    "futex futex_waitv set_robust_list get_robust_list rseq set_tid_address arch_prctl "
    "rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend sigaltstack "
    "nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time times getitimer setitimer alarm "
    "getpid gettid getppid getuid geteuid getgid getegid getresuid getresgid getgroups "
    "getpgrp getpgid getsid getrusage getrlimit uname sysinfo getrandom sched_yield sched_getaffinity getcpu "
    "poll ppoll select pselect6 pause restart_syscall exit exit_group"
)
_FILES = (
    "open openat access faccessat faccessat2 readlink readlinkat getcwd getdents getdents64 statfs fstatfs "
    "rename renameat renameat2 unlink unlinkat rmdir mkdir mkdirat ftruncate fallocate fadvise64 fsync "
    "fdatasync msync flock fchmod umask utimensat sendfile copy_file_range memfd_create"
)
_SERVING = (
    "epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd2 pipe pipe2 "
    "timerfd_create timerfd_settime timerfd_gettime sched_setaffinity "
    "recvmsg recvfrom getsockopt setsockopt getsockname getpeername shutdown"
)
_SOCKET_FLAGS = socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
_CLONE_THREAD = 0x00010000
_PR_SET_NAME, _PR_GET_NAME = 15, 16
# asm-generic/ioctls.h: the C library also uses these newer commands.
_TCGETS2, _TCSETS2 = 0x802C542A, (0x402C542B, 0x402C542C, 0x402C542D)
_FIONREAD, _FIONBIO, _FIOCLEX, _FIONCLEX = 0x541B, 0x5421, 0x5451, 0x5450
_ON_FILES = (_FIONREAD, _FIONBIO, _FIOCLEX, _FIONCLEX)
# Neither F_SETOWN and F_SETSIG, by which the kernel signals other processes of the same user, nor F_SETFL,
# which takes O_APPEND from a file.
_ON_DESCRIPTORS = (
    fcntl.F_DUPFD, fcntl.F_DUPFD_CLOEXEC, fcntl.F_GETFD, fcntl.F_SETFD, fcntl.F_GETFL, fcntl.F_GETLK,
    fcntl.F_SETLK, fcntl.F_SETLKW, fcntl.F_OFD_GETLK, fcntl.F_OFD_SETLK, fcntl.F_OFD_SETLKW,
    fcntl.F_ADD_SEALS, fcntl.F_GET_SEALS,
)  # fmt: skip
_ON_TERMINALS = (
    termios.TCGETS, termios.TCSETS, termios.TCSETSW, termios.TCSETSF, _TCGETS2, *_TCSETS2,
    termios.TIOCGWINSZ, termios.TIOCGPGRP, termios.TCFLSH,
)  # fmt: skip
# enum bpf_cmd: read and update elements; attach the programs that the guardian passed.
_LOOKUP, _UPDATE, _NEXT_KEY, _RAW_TRACEPOINT_OPEN, _LOOKUP_BATCH, _LINK_CREATE = 1, 2, 4, 17, 24, 28
_BPF_COMMANDS = (_LOOKUP, _UPDATE, _NEXT_KEY, _RAW_TRACEPOINT_OPEN, _LOOKUP_BATCH, _LINK_CREATE)
_NETLINK_ROUTE, _NETLINK_SOCK_DIAG = 0, 4


def _filter_of(profile: Profile) -> Callable[[], None]:
    """Return a function that installs the filter in all threads irrevocably and sets no_new_privs.

    Raises ImportError without the distribution's python3-seccomp; the function raises OSError or
    RuntimeError.
    """
    if seccomp is None:
        raise ImportError("seccomp")
    from seccomp import ALLOW, EQ, ERRNO, MASKED_EQ, Arg, Attr, SyscallFilter

    filters = SyscallFilter(defaction=ERRNO(errno.EPERM))
    filters.set_attr(Attr.CTL_TSYNC, 1)

    def allow(names: Iterable[str], *arguments: object) -> None:
        for name in names:
            filters.add_rule(ALLOW, name, *arguments)

    def allow_each(name: str, position: int, values: Iterable[int]) -> None:
        for value in values:
            allow((name,), Arg(position, EQ, value))

    own = os.getpid()
    allow(_INTERPRETER.split())
    allow(("tgkill", "kill"), Arg(0, EQ, own))
    allow(("prlimit64",), Arg(0, EQ, 0))
    allow_each("fcntl", 1, _ON_DESCRIPTORS)
    allow_each("ioctl", 1, _ON_FILES)
    # ENOSYS makes the C library fall back to clone(2), whose flags a filter can inspect.
    filters.add_rule(ERRNO(errno.ENOSYS), "clone3")
    if profile is not Profile.DISSECTOR:
        allow(_FILES.split())
        allow(_SERVING.split())
        allow(("clone",), Arg(0, MASKED_EQ, _CLONE_THREAD, _CLONE_THREAD))
        allow_each("prctl", 0, (_PR_SET_NAME, _PR_GET_NAME))
        allow_each("ioctl", 1, _ON_TERMINALS)
        # A datagram socket could write to any socket in the file system, for instance /dev/log: Landlock does
        # not cover that. The event loop wakes itself through a pair of stream sockets.
        stream = Arg(1, MASKED_EQ, ~_SOCKET_FLAGS & 0xFFFF_FFFF, socket.SOCK_STREAM)
        allow(("socketpair",), Arg(0, EQ, socket.AF_UNIX), stream)
        allow(("sendto",), Arg(4, EQ, 0))  # send(2): without an address
    if profile is Profile.VERIFIER:
        allow(("clone", "fork", "vfork", "execve", "wait4", "waitid"))
    if profile is Profile.SERVER:
        allow(("accept4",))
    if profile in (Profile.CONSOLE, Profile.SERVER):
        allow_each("bpf", 0, _BPF_COMMANDS)
        allow(("sendmsg",))  # lists go to the guardian as descriptors; addresses mean nothing to its socket
        # Without root both only tell: links, and what /proc/net/tcp says with struct tcp_info besides.
        for protocol in (_NETLINK_ROUTE, _NETLINK_SOCK_DIAG):
            allow(("socket",), Arg(0, EQ, socket.AF_NETLINK), Arg(2, EQ, protocol))
    return filters.load  # type: ignore[no-any-return]


# Landlock

# The numbers are the same on every architecture (asm-generic/unistd.h).
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1 << 0  # LANDLOCK_CREATE_RULESET_VERSION
_PATH_BENEATH = 1

_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_EXECUTE = 1 << 0
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | 1 << 15
_READ = _READ_FILE | _READ_DIR
_READ_WRITE = _READ | _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER | _TRUNCATE
_REMOVE = _REMOVE_DIR  # empty directories, which leaves nothing to lose
# Access rights to handle, by the first ABI version that knows them.
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_NET_RIGHTS = 3  # TCP bind and connect, since version 4
_SCOPES = 3  # abstract Unix sockets and signals to other domains, since version 6


def _restrict(allowed: Iterable[tuple[Path, int]]) -> None:
    """Deny access to all files except below these paths, if the kernel has Landlock.

    Each path comes with its access rights; missing paths are skipped. no_new_privs must be set. Raises
    OSError.
    """
    known = int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION))
    if known <= 0:
        return
    handled = max(rights for since, rights in _FILE_RIGHTS.items() if since <= known)
    attributes = struct.pack("=QQQ", handled, _NET_RIGHTS if known >= 4 else 0, _SCOPES if known >= 6 else 0)
    size = 24 if known >= 6 else 16 if known >= 4 else 8
    with closing(_call(_CREATE_RULESET, ctypes.c_char_p(attributes), ctypes.c_size_t(size), 0)) as ruleset:
        for path, rights in allowed:
            with contextlib.suppress(FileNotFoundError, PermissionError, NotADirectoryError):
                _allow(ruleset, path, rights & handled)
        _call(_RESTRICT_SELF, ruleset, 0)


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
