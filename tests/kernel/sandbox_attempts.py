"""A stand-in for a compromised console, reader or dissector: tries to escape and reports each outcome.

`python -m tests.kernel.sandbox_attempts PROFILE`, on a terminal of its own, as root: it gives root away as
that process does, makes some attempts, enters the sandbox, and makes all of them. It prints one line of JSON,
`{"before": {attempt: errno}, "after": {…}, "works": {…}, "sibling": pid}`, errno 0 meaning success. The
sibling runs as the console's user; the caller ends it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import importlib
import json
import os
import socket
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from pathlib import Path

import seccomp

from fwtop.dissect.supervisor import dissector_user
from fwtop.kernel.sockets import LISTEN_STATE, tcp_dump
from fwtop.model.paths import STATE_DIRECTORY
from fwtop.sandbox.confine import Profile, confine, drop_privileges, unprivileged_user
from fwtop.sandbox.crash_log import CRASHES

TERMINAL = 3
_LIBC = ctypes.CDLL(None, use_errno=True)
_NATIVE = seccomp.Arch(seccomp.Arch.NATIVE)
_PTRACE_ATTACH = 16
_BPF_ATTRIBUTES = struct.pack("<5I", 2, 4, 4, 1, 0)  # an array of one element

Attempt = Callable[[], object]


def call(name: str, *arguments: object) -> int:
    """Make a system call by its name; raises OSError."""
    converted = [ctypes.c_long(item) if isinstance(item, int) else item for item in arguments]
    result = int(_LIBC.syscall(seccomp.resolve_syscall(_NATIVE, name), *converted))
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result


def type_into_terminal(command: int) -> Attempt:
    return lambda: call("ioctl", TERMINAL, command, ctypes.c_char_p(b"x"))


def steal_descriptor(victim: int) -> None:
    handle = call("pidfd_open", victim, 0)
    call("pidfd_getfd", handle, 0, 0)


def read_memory(victim: int) -> None:
    buffer = ctypes.create_string_buffer(1)
    part = struct.pack("<QQ", ctypes.addressof(buffer), 1)
    call("process_vm_readv", victim, part, 1, part, 1, 0)


def signal_by_descriptor(victim: int) -> None:
    mine, other = socket.socketpair()
    with mine, other:
        fcntl.fcntl(mine, fcntl.F_SETOWN, victim)


def overwrite() -> None:
    memory = os.memfd_create("appended")
    try:
        fcntl.fcntl(memory, fcntl.F_SETFL, 0)
    finally:
        os.close(memory)


def fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def datagram_pair() -> None:
    for sock in socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM):
        sock.close()


def send_to_a_path() -> None:
    mine, other = socket.socketpair()
    with mine, other:
        mine.sendto(b"<11>sshd[1]: forged", "/dev/log")


def listen() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.listen()


def connect_guardian() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect("/run/fwtop/1.sock")


def attempts(victim: int) -> dict[str, Attempt]:
    """Name everything that must fail, given another process of the same user."""
    opened = {
        "read a password file": ("/etc/shadow", os.O_RDONLY),
        "read another's file": ("/etc/passwd", os.O_RDONLY),
        "read the guardian's files": ("/var/lib/fwtop-guardian/last-rule", os.O_RDONLY),
        "write the program": (str(Path(__file__)), os.O_WRONLY),
        "write its own memory": ("/proc/self/mem", os.O_RDWR),
        "read another's memory": (f"/proc/{victim}/mem", os.O_RDONLY),
        "open the terminal anew": ("/dev/tty", os.O_RDWR),
        "make a file elsewhere": ("/tmp/fwtop-sandbox-test", os.O_WRONLY | os.O_CREAT),  # noqa: S108
    }
    calls: dict[str, tuple[object, ...]] = {
        "ptrace": (_PTRACE_ATTACH, victim, 0, 0),
        "mount": (b"none", b"/mnt", b"tmpfs", 0, 0),
        "unshare": (0x10000000,),
        "setns": (0, 0),
        "keyctl": (0, -3, 0),
        "add_key": (b"user", b"x", b"x", 1, -3),
        "perf_event_open": (0, 0, -1, -1, 0),
        "io_uring_setup": (8, ctypes.create_string_buffer(256)),
        "userfaultfd": (0,),
        "setsid": (),
        "chmod": (os.fsencode(STATE_DIRECTORY), 0o777),
        "symlink": (b"/etc/shadow", os.fsencode(STATE_DIRECTORY / "sessions/planted.db")),
        "link": (b"/etc/hostname", os.fsencode(STATE_DIRECTORY / "planted.db")),
        "execve": (b"/bin/true", 0, 0),
        "vfork": (),
    }
    found: dict[str, Attempt] = {
        "TIOCSTI": type_into_terminal(termios.TIOCSTI),
        "TIOCSTI with upper half": type_into_terminal(termios.TIOCSTI | 1 << 32),
        "TIOCLINUX": type_into_terminal(termios.TIOCLINUX),
        "TIOCSCTTY": type_into_terminal(termios.TIOCSCTTY),
        "pidfd_getfd": lambda: steal_descriptor(victim),
        "process_vm_readv": lambda: read_memory(victim),
        "fork": fork,
        "signal another by a descriptor": lambda: signal_by_descriptor(victim),
        "write before the end of a file": overwrite,
        "kill another": lambda: os.kill(victim, 0),
        "be dumpable again": lambda: call("prctl", 4, 1, 0, 0, 0),
        "bpf map": lambda: call("bpf", 0, ctypes.c_char_p(_BPF_ATTRIBUTES), len(_BPF_ATTRIBUTES)),
        "bpf load": lambda: call("bpf", 5, ctypes.c_char_p(bytes(72)), 72),
        "bpf freeze": lambda: call("bpf", 22, ctypes.c_char_p(bytes(72)), 72),
        "bpf object by name": lambda: call("bpf", 7, ctypes.c_char_p(bytes(72)), 72),
        "bpf map by id": lambda: call("bpf", 14, ctypes.c_char_p(bytes(72)), 72),
        "internet": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM).close(),
        "packets": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close(),
        "netfilter": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12).close(),
        "guardian": connect_guardian,
        "listen": listen,
        "listen with what it has": lambda: call("listen", 0, 1),
        "bind": lambda: call("bind", 0, b"\0" * 16, 16),
        "datagram sockets": datagram_pair,
        "send to an address": send_to_a_path,
    }
    found |= {
        name: lambda path=path, flags=flags: os.close(os.open(path, flags))
        for name, (path, flags) in opened.items()
    }
    found |= {name: lambda name=name, given=given: call(name, *given) for name, given in calls.items()}
    return found


def needed() -> dict[str, Attempt]:
    """Name what the console can't do without."""

    def write_session() -> None:
        path = STATE_DIRECTORY / "sandbox-test"
        path.write_text("x")
        path.unlink()

    def write_crash_log() -> None:
        try:
            call("no such call")
        except Exception as error:
            path = CRASHES.path_of(error)
        if not path.startswith(str(STATE_DIRECTORY)) or "sandbox_attempts" not in Path(path).read_text():
            raise OSError(errno.EACCES, "no crash log")
        Path(path).unlink()

    def start_thread() -> None:
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join(10)

    def wake_itself() -> None:
        mine, other = socket.socketpair()
        with mine, other:
            mine.send(b"x")
            other.recv(1)

    return {
        "wake-up": wake_itself,
        "window size": lambda: fcntl.ioctl(TERMINAL, termios.TIOCGWINSZ, bytes(8)),
        "terminal modes": lambda: termios.tcsetattr(TERMINAL, termios.TCSANOW, termios.tcgetattr(TERMINAL)),
        "thread": start_thread,
        "session": write_session,
        "crash log": write_crash_log,
        "counters": lambda: Path("/proc/net/dev").read_text(),
        "links": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close(),
        "connections": lambda: next(tcp_dump(socket.AF_INET, LISTEN_STATE, 1.0), None),
        "bpf lookup": lambda: call("bpf", 1, ctypes.c_char_p(bytes(72)), 72),
        "hash loaded late": lambda: importlib.import_module("_hashlib"),
    }


def outcome(attempt: Attempt) -> int:
    """Return the error number that an attempt gave, 0 for none."""
    try:
        attempt()
    except OSError as error:
        return error.errno or -1
    except termios.error as error:
        return int(error.args[0])
    except (RuntimeError, ImportError):  # no new thread, no library
        return errno.EPERM
    return 0


def main() -> None:
    """Try, enter the sandbox, try again."""
    profile = Profile(sys.argv[1])
    console = unprivileged_user()
    account = dissector_user() if profile is Profile.DISSECTOR else console
    # Not on the pipe: who reads that to its end would wait for it where SIGHUP is ignored (nohup)
    sibling = subprocess.Popen(
        ["sleep", "60"], stdout=subprocess.DEVNULL, user=console.pw_uid, group=console.pw_gid, extra_groups=[]
    )
    os.chdir("/")
    drop_privileges(account)
    tries = attempts(sibling.pid)
    if profile is Profile.VERIFIER:  # it starts ssh-keygen, and is the only one that may
        for name in ("fork", "vfork"):
            del tries[name]
    before = {
        name: outcome(tries[name])
        for name in ("TIOCSTI", "pidfd_getfd", "read another's file", "fork")
        if name in tries
    }
    confine(profile)
    after = {name: outcome(attempt) for name, attempt in tries.items()}
    works = {name: outcome(attempt) for name, attempt in needed().items()}
    print(json.dumps({"before": before, "after": after, "works": works, "sibling": sibling.pid}), flush=True)


if __name__ == "__main__":
    main()
