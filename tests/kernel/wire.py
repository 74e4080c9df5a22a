"""Packets from one namespace to another, sent by this process: no start of another for each."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from fwtop.collect import bpf, bpf_objects, netlink
from tests.kernel.conftest import Host, NetnsPair


@contextmanager
def inside(netns: str) -> Iterator[None]:
    """Have this thread make its sockets in a namespace."""
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


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def datagram_socket(host: Host, address: str) -> socket.socket:
    """A UDP socket of a host, for the family of an address."""
    with inside(host.netns):
        return socket.socket(family_of(address), socket.SOCK_DGRAM)


def send_datagrams(host: Host, address: str, port: int, count: int, payload: str) -> None:
    with datagram_socket(host, address) as sender:
        for _ in range(count):
            with contextlib.suppress(OSError):  # a rule for what goes out may refuse it
                sender.sendto(payload.encode(), (address, port))


def send_frames(host: Host, *frames: bytes, times: int = 1) -> None:
    """Send Ethernet frames as they are."""
    with inside(host.netns):
        sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    with sender:
        sender.bind((host.interface, 0))
        for _ in range(times):
            for frame in frames:
                sender.send(frame)


def meet(pair: NetnsPair, *addresses: str) -> None:
    """Let the neighbours find each other, so that ARP and discovery are over before counting.

    Over both families, or for the given addresses of the victim.
    """
    for address in addresses or (pair.victim.ipv4, pair.victim.ipv6):
        with datagram_socket(pair.victim, address) as there, datagram_socket(pair.attacker, address) as here:
            there.bind((address, 7))
            there.settimeout(4)  # the kernel asks for a neighbour three times, once a second
            for _ in range(3):
                here.sendto(b"hello", (address, 7))
                with contextlib.suppress(TimeoutError):
                    there.recv(10)
                    break
            else:
                raise AssertionError(f"{pair.victim.netns} gets nothing from {pair.attacker.netns}")


def mac(host: Host) -> bytes:
    shown = host.run("ip", "-j", "link", "show", host.interface).stdout
    return bytes.fromhex(json.loads(shown)[0]["address"].replace(":", ""))


def checksummed(header: bytes, at: int) -> bytes:
    """Fill the internet checksum in (RFC 1071)."""
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return header[:at] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + header[at + 2 :]


def attach_foreign_xdp(host: Host, verdict: int) -> int:
    """Attach somebody else's program, which returns `verdict` for every packet; returns its id."""
    code = struct.pack("<BBhi", 0xB7, 0, 0, verdict) + struct.pack("<BBhi", 0x95, 0, 0, 0)
    program = bpf.load_program(bpf.XDP, "somebody_else", code)
    try:
        inner = netlink.attribute(1, struct.pack("<i", program))
        inner += netlink.attribute(3, struct.pack("<I", 5))  # in the driver, and only if there is none
        with inside(host.netns):
            index = socket.if_nametoindex(host.interface)
            body = struct.pack("<BBHiII", 0, 0, 0, index, 0, 0) + netlink.nested(43, inner)
            netlink.request(socket.NETLINK_ROUTE, 19, body)
        return int(struct.unpack_from("<I", bpf_objects._info(program), 4)[0])
    finally:
        os.close(program)


def put_behind_a_bridge(host: Host) -> None:
    """Have the host's interface carry a bridge, which has no XDP of its own, and the way outside."""
    host.run("ip", "link", "add", "br0", "type", "bridge")
    host.run("ip", "address", "flush", "dev", host.interface)
    host.run("ip", "link", "set", host.interface, "master", "br0")
    host.run("ip", "link", "set", "br0", "up")
    host.run("ip", "address", "add", f"{host.ipv4}/24", "dev", "br0")
    host.run("ip", "route", "add", "default", "dev", "br0")
