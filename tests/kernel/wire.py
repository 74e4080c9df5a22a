"""Sending packets between namespaces from the test process itself."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import json
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from fwtop.kernel import bpf, netlink
from fwtop.sandbox.confine import end_with
from tests.kernel.conftest import Host, NetnsPair, ip

HOPS = 4  # at most, at each of which a packet is queued again: there and back over a machine between
PAUSE_SECONDS = 2.0  # of what sends all again: the kernel forgets a source after ten
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000  # linux/if_tun.h


@contextmanager
def inside(netns: str) -> Iterator[None]:
    """Switch this thread to a network namespace for the duration of the block."""
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{netns}", os.O_RDONLY)
    try:
        assert libc.setns(there, 0) == 0
        yield
    finally:
        assert libc.setns(home, 0) == 0
        os.close(home)
        os.close(there)


_sentry = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
_sentry.bind(("127.0.0.1", 0))
_sentry_lock = threading.Lock()


def let_arrive() -> None:
    """Return when whatever was sent before has left all queues in which it waits to be received.

    On a busy machine it may wait for ksoftirqd's turn. A processor receives in the order of sending
    (process_backlog, net_rx_action), so a datagram of its own that has come was the last.
    """
    home = os.sched_getaffinity(0)
    with _sentry_lock:
        try:
            for _ in range(HOPS):
                for processor in home:
                    os.sched_setaffinity(0, {processor})
                    _sentry.sendto(b"last", _sentry.getsockname())
                    _sentry.recv(4)
        finally:
            os.sched_setaffinity(0, home)


def received(receiver: socket.socket, wait_s: float, size: int = 2048) -> tuple[bytes, object] | None:
    """Return what arrives within `wait_s`, or is queued that long, and from where; None if nothing."""
    for wait in (wait_s, 0.0):
        receiver.settimeout(wait)
        with contextlib.suppress(TimeoutError, BlockingIOError):
            return receiver.recvfrom(size)
        let_arrive()
    return None


def connects(client: socket.socket, address: tuple[str, int], wait_s: float) -> bool:
    """Say whether a connection comes about within `wait_s`, or is queued that long."""
    client.settimeout(wait_s)
    try:
        client.connect(address)
    except TimeoutError:
        let_arrive()
        done = bool(select.select([], [client], [], 0)[1])
        return done and client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    return True


def arrives(receiver: socket.socket, message: bytes, wait_s: float) -> bool:
    """Say whether a datagram that was sent just now arrives within `wait_s`, or is queued that long."""
    while (found := received(receiver, wait_s)) is not None:
        if found[0] == message:
            return True
    return False


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def datagram_socket(host: Host, address: str) -> socket.socket:
    """Open a UDP socket in a host's namespace, of an address's family."""
    with inside(host.netns):
        return socket.socket(family_of(address), socket.SOCK_DGRAM)


def send_datagrams(host: Host, address: str, port: int, count: int, payload: str) -> None:
    with datagram_socket(host, address) as sender:
        for _ in range(count):
            with contextlib.suppress(OSError):  # an output rule may refuse it
                sender.sendto(payload.encode(), (address, port))
    let_arrive()


@contextmanager
def forged_arrivals(host: Host, port: int, sources: int) -> Iterator[None]:
    """Have UDP datagrams from so many addresses of 10/8 arrive at a host, each once before the block begins.

    They go on arriving. They come from a TUN device, where write(2) is what receives them: none is lost to a
    full queue. Their process goes before all others, as the kernel forgets a source after some seconds; a
    thread would wait for those of this process.
    """
    with inside(host.netns):
        device = os.open("/dev/net/tun", os.O_RDWR)
    name = b"forged"
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name, IFF_TUN | IFF_NO_PI))
    ip("-n", host.netns, "link", "set", name.decode(), "up")
    head, target = struct.pack("!BBHHHBB", 0x45, 0, 28, 0, 0, 64, 17), socket.inet_aton(host.ipv4)
    fixed, end = sum(struct.unpack("!7H", head + target)), target + struct.pack("!HHHH", 4000, port, 8, 0)
    packets = [
        head
        + struct.pack("!HI", 0xFFFF - (fixed + (source >> 16) + (source & 0xFFFF)) % 0xFFFF, source)
        + end
        for source in range(10 << 24, (10 << 24) + sources)
    ]
    reader, writer = os.pipe()
    this = os.getpid()
    sender = os.fork()
    if sender == 0:
        _send_for_good(device, packets, writer, this)
    os.close(writer)
    try:
        with os.fdopen(reader, "rb") as once:
            assert once.read(1), "the sender ended"
        yield
    finally:
        os.kill(sender, signal.SIGKILL)
        os.waitpid(sender, 0)
        os.close(device)


def _send_for_good(device: int, packets: list[bytes], once: int, parent: int) -> NoReturn:
    """Write all packets again every few seconds, and tell when each was written once."""
    try:
        end_with(parent, signal.SIGKILL)
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        for told in itertools.count():
            for packet in packets:
                os.write(device, packet)
            if not told:
                os.write(once, b"1")
            time.sleep(PAUSE_SECONDS)  # who reads the table needs a core too
    finally:
        os._exit(1)


def send_frames(host: Host, *frames: bytes, times: int = 1) -> None:
    """Send raw Ethernet frames."""
    with inside(host.netns):
        sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    with sender:
        sender.bind((host.interface, 0))
        for _ in range(times):
            for frame in frames:
                sender.send(frame)
    let_arrive()


def meet(pair: NetnsPair, *addresses: str) -> None:
    """Complete ARP and neighbour discovery, so that they don't disturb counting.

    For both families, or for the given addresses of the victim.
    """
    for address in addresses or (pair.victim.ipv4, pair.victim.ipv6):
        with datagram_socket(pair.victim, address) as there, datagram_socket(pair.attacker, address) as here:
            there.bind((address, 7))
            there.settimeout(4)  # the kernel asks for a neighbour three times, once a second
            for _ in range(8):
                here.sendto(b"hello", (address, 7))
                with contextlib.suppress(TimeoutError):
                    there.recv(10)
                    break
            else:
                raise AssertionError(f"{pair.victim.netns} receives nothing from {pair.attacker.netns}")


def mac(host: Host) -> bytes:
    shown = host.run("ip", "-j", "link", "show", host.interface).stdout
    return bytes.fromhex(json.loads(shown)[0]["address"].replace(":", ""))


def checksummed(header: bytes, at: int) -> bytes:
    """Fill the internet checksum in (RFC 1071)."""
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return header[:at] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + header[at + 2 :]


def attach_foreign_xdp(host: Host, verdict: int) -> int:
    """Attach a foreign XDP program that returns `verdict` for every packet; return its id."""
    code = struct.pack("<BBhi", 0xB7, 0, 0, verdict) + struct.pack("<BBhi", 0x95, 0, 0, 0)
    program = bpf.load_program(bpf.XDP, "somebody_else", code)
    try:
        inner = netlink.attribute(1, struct.pack("<i", program))
        inner += netlink.attribute(3, struct.pack("<I", 5))  # in the driver, and only if there is none
        with inside(host.netns):
            index = socket.if_nametoindex(host.interface)
            body = struct.pack("<BBHiII", 0, 0, 0, index, 0, 0) + netlink.nested(43, inner)
            netlink.request(socket.NETLINK_ROUTE, 19, body)
        return int.from_bytes(bpf._info(program)[4:8], "little")  # struct bpf_prog_info.id
    finally:
        os.close(program)


def put_behind_a_bridge(host: Host) -> None:
    """Enslave the host's interface to a bridge (which has no native XDP) that has the default route."""
    host.run("ip", "link", "add", "br0", "type", "bridge")
    host.run("ip", "address", "flush", "dev", host.interface)
    host.run("ip", "link", "set", host.interface, "master", "br0")
    host.run("ip", "link", "set", "br0", "up")
    host.run("ip", "address", "add", f"{host.ipv4}/24", "dev", "br0")
    host.run("ip", "route", "add", "default", "dev", "br0")
