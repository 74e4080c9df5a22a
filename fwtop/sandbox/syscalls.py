"""Seccomp filters: the system calls each kind of process may make; all others fail with EPERM.

These are allow-lists, installed by libseccomp. Commands of ioctl(2) and bpf(2) are listed individually, so
that TIOCSTI and TIOCLINUX, which inject terminal input, are denied whatever the argument's upper half.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import termios
from collections.abc import Callable, Iterable
from enum import Enum

# Imported here because by the time the filter is built, root is gone and a clone below /root is unreadable.
try:
    import seccomp
except ImportError:
    seccomp = None

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


class Profile(Enum):
    """The role of a confined process."""

    CONSOLE = "console"  # live traffic: bpf(2), rtnetlink, sock_diag, a terminal
    SERVER = "server"  # a console that answers on the listening socket it was given
    READER = "reader"  # captures and stored sessions, with or without a terminal
    DISSECTOR = "dissector"  # one socket, nothing else


def build_filter(profile: Profile) -> Callable[[], None]:
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
    if profile is Profile.SERVER:
        allow(("accept4",))
    if profile in (Profile.CONSOLE, Profile.SERVER):
        allow_each("bpf", 0, _BPF_COMMANDS)
        allow(("sendmsg",))  # lists go to the guardian as descriptors; addresses mean nothing to its socket
        # Without root both only tell: links, and what /proc/net/tcp says with struct tcp_info besides.
        for protocol in (_NETLINK_ROUTE, _NETLINK_SOCK_DIAG):
            allow(("socket",), Arg(0, EQ, socket.AF_NETLINK), Arg(2, EQ, protocol))
    return filters.load  # type: ignore[no-any-return]
