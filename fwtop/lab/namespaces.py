"""The lab's network namespaces: creation, cabling, removal with all their processes, cleanup after a crash.

A lab is identified by its process: namespaces fwtop-lab-<pid>-victim and -attacker, and a lock file that the
process holds. A lab whose lock is free is stale, even if its pid has been reused.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Self, cast

import numpy as np

from fwtop.kernel import programs
from fwtop.kernel.descriptors import closing, is_held
from fwtop.kernel.namespaces import NETNS
from fwtop.kernel.programs import CommandError
from fwtop.lab import network as net
from fwtop.lab.network import Wire
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

PREFIX = "fwtop-lab-"
ROLES = ("victim", "attacker")
RESOLVERS = Path("/etc/netns")  # ip-netns(8)
LOCKS = Path("/run/fwtop-lab")
PACED_PPS = 500_000  # above this, a victim with a single receiving CPU is overloaded
_NAME = re.compile(rf"{PREFIX}(\d+)-({'|'.join(ROLES)})")
_SYSCTLS = (
    "net.ipv4.conf.all.rp_filter=0",
    "net.ipv6.conf.all.accept_ra=0",
    "net.ipv6.conf.default.accept_ra=0",
    "net.ipv6.conf.default.router_solicitations=0",
    "net.ipv6.conf.default.dad_transmits=0",
)


def name(role: str, pid: int) -> str:
    """Return the name of a lab's namespace."""
    return f"{PREFIX}{pid}-{role}"


def run(*argv: str, text: str | None = None, seconds: float = 30.0) -> str:
    """Run a system tool and return its output; raises FwtopError with its message on failure."""
    try:
        return programs.run([*argv], text=text, timeout=seconds)
    except CommandError as error:
        tool = argv[4:] if argv[:3] == ("ip", "netns", "exec") else argv
        raise FwtopError(f"{' '.join(tool[:4])}: {error}; the lab is taken down again") from None


def set_resolver(victim: str, address: str) -> None:
    """Write the resolv.conf that `ip netns exec` uses (ip-netns(8)); `remove` deletes it."""
    directory = RESOLVERS / victim
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    (directory / "resolv.conf").write_text(f"nameserver {address}\n", encoding="ascii")


@contextlib.contextmanager
def _deciding() -> Iterator[None]:
    """Hold the directory: to look whether a lock is free is to take it, which must meet none being taken."""
    LOCKS.mkdir(mode=0o700, exist_ok=True)
    with closing(os.open(LOCKS, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as directory:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield


def hold_lock(pid: int) -> int:
    """Take this process's lock and return its descriptor; the lab counts as alive while it is open."""
    with _deciding():
        lock = os.open(LOCKS / str(pid), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise FwtopError("this process has a lab already; end it before starting another") from None
    return lock


def release_lock(pid: int, lock: int) -> None:
    """Release the lock and remove its file."""
    (LOCKS / str(pid)).unlink(missing_ok=True)
    os.close(lock)


class Namespaces:
    """Two namespaces of this process for the duration of the `with` block; `_set_up` makes and fills them.

    `victim` and `attacker` are their names. Leaving the block removes everything; the remains of a killed lab
    are removed when the next one starts.
    """

    def __init__(self) -> None:
        self.victim, self.attacker = (name(role, os.getpid()) for role in ROLES)
        self._lock = -1

    def __enter__(self) -> Self:
        """Set everything up; on failure, take it all down again."""
        if os.geteuid() != 0:
            raise FwtopError("the lab needs root to make namespaces; nothing was started; use sudo", 3)
        remove_stale()
        self._lock = hold_lock(os.getpid())
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Take everything down."""
        self.close()

    def _set_up(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Remove the namespaces with all that runs in them; idempotent."""
        if self._lock >= 0:
            remove([self.victim, self.attacker])
            release_lock(os.getpid(), self._lock)
            self._lock = -1


def remove_stale() -> list[str]:
    """Remove the namespaces of labs whose process is gone; return their names."""
    found = [entry.name for entry in NETNS.iterdir()] if NETNS.is_dir() else []
    with _deciding():
        stale = [
            name
            for name in found
            if (match := _NAME.fullmatch(name)) and not is_held(LOCKS / str(int(match[1])))
        ]
    remove(stale)
    with _deciding():
        for lock in LOCKS.iterdir():
            if lock.name.isdigit() and not is_held(lock):
                lock.unlink(missing_ok=True)
    return stale


def processes_in(names: list[str]) -> list[int]:
    """Return the pids of processes in any of the named network namespaces."""
    inodes = set()
    for entry in names:
        with contextlib.suppress(OSError):
            inodes.add((NETNS / entry).stat().st_ino)
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit() and os.stat(f"/proc/{entry}/ns/net").st_ino in inodes:
                found.append(int(entry))
    return found


def remove(names: list[str], grace_seconds: float = 2.0) -> None:
    """End the processes in a lab's namespaces (SIGTERM, then SIGKILL) and remove the namespaces."""
    if not names:
        return
    end = time.monotonic() + grace_seconds
    asked: set[int] = set()
    while (left := set(processes_in(names)) - {os.getpid()}) and time.monotonic() < end:
        for pid in left - asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        asked |= left
        time.sleep(0.02)
    for pid in set(processes_in(names)) - {os.getpid()}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for entry in names:
        with contextlib.suppress(OSError):
            _netns().remove(entry)
        with contextlib.suppress(OSError):
            (RESOLVERS / entry / "resolv.conf").unlink()
            (RESOLVERS / entry).rmdir()


def _netns() -> ModuleType:
    """Import late: pyroute2 loads more slowly than everything else that a lab needs."""
    from pyroute2 import netns

    return cast(ModuleType, netns)


def add(own: str) -> None:
    """Create a namespace."""
    try:
        _netns().create(own)
    except OSError as error:
        raise FwtopError(
            f"network namespace {own}: {error.strerror or safe_text(error)}; the lab is taken down again"
        ) from None


def create(victim: str, attacker: str) -> None:
    """Create both namespaces."""
    for own in (victim, attacker):
        add(own)
    for own in (victim, attacker):
        run("ip", "netns", "exec", own, "sysctl", "-q", "-w", *_SYSCTLS)


def connect_both(victim: str, attacker: str, clients: list[str], vlans: list[int]) -> tuple[Wire, set[int]]:
    """Connect the namespaces; from now on packets go over the wire.

    Returns the MAC addresses and the pids of the kernel threads that receive for the victim.
    """
    wire = connect(victim, attacker, clients, vlans)
    for own, interface in ((victim, net.VICTIM_INTERFACE), (attacker, net.ATTACKER_INTERFACE)):
        # As on a real wire: every packet carries its checksum, and none is a GSO packet.
        offloads = ("gro", "on", "tx", "off", "tso", "off", "gso", "off")
        run("ip", "netns", "exec", own, "ethtool", "-K", interface, *offloads)
    _thread_napi(attacker, net.ATTACKER_INTERFACE)
    return wire, _thread_napi(victim, net.VICTIM_INTERFACE)


def _thread_napi(own: str, interface: str) -> set[int]:
    """Switch an interface to threaded NAPI; return the pids of its threads."""
    before = _napi_threads(interface)
    run("ip", "netns", "exec", own, "sh", "-c", f"echo 1 > /sys/class/net/{interface}/threaded")
    return _napi_threads(interface) - before


def _napi_threads(interface: str) -> set[int]:
    found = set()
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit() and Path(f"/proc/{entry}/comm").read_text().startswith(f"napi/{interface}-"):
                found.add(int(entry))
    return found


def schedule_receiving(threads: set[int], *, paced: bool) -> None:
    """Set CPU affinity and priority of the kernel threads that receive for the victim.

    Paced: on the sender's CPU with a higher priority, so that every batch is received before the next is
    made. No frame is lost as long as that CPU keeps up, pages stay in one CPU's cache, and the other CPUs are
    left to the victim's programs. Otherwise: on the other CPUs at normal priority, like ksoftirqd under
    overload.
    """
    processors = sorted(os.sched_getaffinity(0))
    policy, priority = (os.SCHED_FIFO, 2) if paced else (os.SCHED_OTHER, 0)
    for thread in threads:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(thread, policy, os.sched_param(priority))
            os.sched_setaffinity(thread, processors[-1:] if paced else processors[:-1] or processors)


def cable(victim: str, attacker: str, more: Iterable[str] = (), queues: str = "") -> None:
    """Join the namespaces by a pair of interfaces that are up; `more`: commands of ip(8) for the attacker."""
    near, far = f"name {net.VICTIM_INTERFACE} {queues}", f"name {net.ATTACKER_INTERFACE} {queues}"
    batch(
        attacker,
        f"link add {far} type veth peer {near} netns {victim}",
        f"address add {net.GATEWAY_4}/{net.LENGTH_4} dev {net.ATTACKER_INTERFACE}",
        f"link set {net.ATTACKER_INTERFACE} up",
        "link set lo up",
        *more,
    )
    batch(
        victim,
        f"address add {net.VICTIM_4}/{net.LENGTH_4} dev {net.VICTIM_INTERFACE}",
        f"link set {net.VICTIM_INTERFACE} up",
        "link set lo up",
        f"route add default via {net.GATEWAY_4}",
    )


def batch(own: str, *commands: str) -> None:
    """Run commands of ip(8) in a namespace."""
    run("ip", "-n", own, "-batch", "-", text="\n".join(commands))


def connect(victim: str, attacker: str, clients: list[str], vlans: list[int]) -> Wire:
    """Connect both namespaces and configure both ends; return the MAC addresses.

    Neighbours are permanent: nobody answers ARP or discovery under a flood.
    """
    near, far = net.VICTIM_INTERFACE, net.ATTACKER_INTERFACE
    cable(victim, attacker, queues="numrxqueues 1 numtxqueues 1")
    wire = Wire(_hardware(victim, near), _hardware(attacker, far))
    known = "lladdr {} dev {} nud permanent"
    to_attacker, to_victim = (
        known.format(wire.attacker.hex(":"), near),
        known.format(wire.victim.hex(":"), far),
    )
    batch(
        victim,
        f"link set {near} alias {victim}",
        f"address add {net.VICTIM_6}/{net.LENGTH_6} dev {near} nodad",
        f"address add {net.WIDE_4} dev lo",
        f"neigh replace {net.GATEWAY_4} {to_attacker}",
        f"neigh replace {net.GATEWAY_6} {to_attacker}",
        f"route add ::/0 via {net.GATEWAY_6}",
        f"route add local {net.WIDE_6} dev lo table local",
    )
    for vlan in vlans:  # a kernel without 802.1Q drops the tagged packets
        with contextlib.suppress(FwtopError):
            batch(
                victim,
                f"link add link {near} name {near}.{vlan} type vlan id {vlan}",
                f"link set {near}.{vlan} up",
            )
    first, second = net.PARKED_INTERFACES
    batch(
        attacker,
        f"link set {far} alias {attacker}",
        f"address add {net.GATEWAY_6}/{net.LENGTH_6} dev {far} nodad",
        f"link add {first} type veth peer name {second}",
        f"neigh replace {net.VICTIM_4} {to_victim}",
        f"neigh replace {net.VICTIM_6} {to_victim}",
        f"route add {net.WIDE_4} via {net.VICTIM_4}",
        f"route add {net.WIDE_6} via {net.VICTIM_6}",
        *(f"address add {client} dev lo" for client in clients),
    )
    return wire


def _hardware(own: str, interface: str) -> bytes:
    [link] = json.loads(run("ip", "-n", own, "-j", "link", "show", interface))
    return bytes.fromhex(link["address"].replace(":", ""))


_SIOCETHTOOL = 0x8946
_GSTRINGS, _GSTATS, _GSSET_INFO = 0x1B, 0x1D, 0x37
_SS_STATS = 1
_NAME_BYTES = 32
_QUEUED = b"tx_queue_0_xdp_xmit"  # frames sent by XDP that the peer's queue took,
_LOST = _QUEUED + b"_errors"  # and those that it did not


class Link:
    """An interface's statistics by ethtool, in the namespace that it was opened in."""

    def __init__(self, interface: str) -> None:
        self._name = interface.encode()[:15]
        self._control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._names = self._statistics_names()
        self._stats = np.zeros(1 + len(self._names), np.uint64)
        self._stats[:1].view(np.uint32)[:] = (_GSTATS, len(self._names))
        self._request = struct.pack("16sQ", self._name, self._stats.ctypes.data)

    def lost(self) -> int:
        """Return frames sent by XDP that the peer's full queue dropped, since the link was created."""
        return self._count(_LOST)

    def queued(self) -> int:
        """Return frames sent by XDP that the peer's queue took; it may not have received them yet."""
        return self._count(_QUEUED)

    def _count(self, name: bytes) -> int:
        if name not in self._names:
            return 0
        fcntl.ioctl(self._control, _SIOCETHTOOL, self._request)
        return int(self._stats[1 + self._names.index(name)])

    def close(self) -> None:
        """Close the control socket."""
        self._control.close()

    def _statistics_names(self) -> list[bytes]:
        count = struct.unpack_from(
            "I", self._ask(struct.pack("IIQI", _GSSET_INFO, 0, 1 << _SS_STATS, 0)), 16
        )[0]
        head = struct.pack("III", _GSTRINGS, _SS_STATS, count)
        text = self._ask(head.ljust(len(head) + _NAME_BYTES * count, b"\0"))[len(head) :]
        rows = (text[start : start + _NAME_BYTES] for start in range(0, len(text), _NAME_BYTES))
        return [row.partition(b"\0")[0] for row in rows]

    def _ask(self, command: bytes) -> bytes:
        buffer = np.frombuffer(command, np.uint8).copy()
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._control, _SIOCETHTOOL, struct.pack("16sQ", self._name, buffer.ctypes.data))
        return buffer.tobytes()
