"""What works on packets before any rule: receive queues as their drivers count them, and packet sockets.

The names of queue counters are the driver's choice: those of virtio, veth, Intel, Mellanox, Broadcom, Amazon
and Xen are understood. A packet socket for all protocols has each packet copied, or at least run through its
filter, before tc and netfilter. Sources: linux/ethtool.h, packet(7), net/core/filter.c (sk_get_filter).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import socket
import struct
from collections.abc import Iterator, Mapping

from fwtop.kernel.links import ethtool
from fwtop.kernel.procfs import read_text
from fwtop.kernel.sockets import HolderSearch, command_name
from fwtop.model.text import safe_text
from fwtop.model.traffic.snapshot import PacketSocket

_GSTRINGS, _GSTATS, _GSSET_INFO, _STATS_SET = 0x1B, 0x1D, 0x37, 1  # linux/ethtool.h: ETHTOOL_…, ETH_SS_STATS
_NAME_BYTES = 32  # ETH_GSTRING_LEN
_MOST_COUNTERS = 8_192
_NAMES = (
    re.compile(
        r"rx[-_]?(?:queue[-_]|ring[-_])?(\d+)[-_.](\w+)"
    ),  # rx_queue_0_packets, rx0_packets, rx-0.packets
    re.compile(r"queue_(\d+)_rx_(\w+)"),  # ena
    re.compile(r"\[(\d+)\]: rx_(\w+)"),  # bnxt
)
_PACKETS = frozenset({"packets", "cnt", "ucast_packets", "mcast_packets", "bcast_packets"})
_DROPS = re.compile(r"drop|discard|miss|no_?buf|alloc_?(fail|err)|buff_alloc")
_EVERY = frozenset({0x0003, 0x0800, 0x86DD})  # ETH_P_ALL, ETH_P_IP, ETH_P_IPV6
_SO_GET_FILTER, _PIDFD_GETFD, _MAX_INSTRUCTIONS = 26, 438, 4_096
_SCAN_SECONDS = 0.03  # for processes, in a reading
_MOST = 64


def queue_counters(interface: str) -> dict[int, tuple[int | None, int]]:
    """Return packets (None: the driver doesn't count them by queue) and drops of each receive queue."""
    asked = ethtool(interface, struct.pack("=IIQI", _GSSET_INFO, 0, 1 << _STATS_SET, 0))
    count = struct.unpack_from("=I", asked, 16)[0] if asked else 0
    if not 0 < count <= _MOST_COUNTERS:
        return {}
    names = ethtool(interface, struct.pack("=III", _GSTRINGS, _STATS_SET, count) + bytes(count * _NAME_BYTES))
    values = ethtool(interface, struct.pack("=II", _GSTATS, count) + bytes(8 * count))
    if names is None or values is None:
        return {}
    texts = (names[12 + at : 12 + at + _NAME_BYTES] for at in range(0, count * _NAME_BYTES, _NAME_BYTES))
    numbers = struct.unpack_from(f"={count}Q", values, 8)
    pairs = zip((text.split(b"\0")[0].decode("latin-1") for text in texts), numbers, strict=True)
    return by_queue(dict(pairs))


def by_queue(counters: Mapping[str, int]) -> dict[int, tuple[int | None, int]]:
    """Sum packets and drops by receive queue; veth counts all its packets as those of XDP."""
    packets: dict[int, int] = {}
    of_xdp: dict[int, int] = {}
    drops: dict[int, int] = {}
    for name, value in counters.items():
        found = next((match for pattern in _NAMES if (match := pattern.fullmatch(name.strip()))), None)
        if found is None:
            continue
        queue, what = int(found[1]), found[2]
        if what in _PACKETS:
            packets[queue] = packets.get(queue, 0) + value
        elif what == "xdp_packets" and value:
            of_xdp[queue] = value
        elif _DROPS.search(what) and not what.startswith("xdp"):
            drops[queue] = drops.get(queue, 0) + value
    queues = sorted(packets.keys() | of_xdp.keys() | drops.keys())[:_MOST]
    return {queue: (packets.get(queue, of_xdp.get(queue)), drops.get(queue, 0)) for queue in queues}


class PacketSockets:
    """Who holds them, by inode; fwtop's own are left out. A reading spends a bounded time on the search."""

    def __init__(self) -> None:
        self._holders: dict[int, tuple[str, int, bool] | None] = {}  # None: fwtop, or nobody in sight
        self._search = HolderSearch()

    def read(self) -> list[PacketSocket]:
        """Return the sockets of this network namespace."""
        found = dict(_every_packet(read_text("/proc/net/packet")))
        self._holders = {inode: holder for inode, holder in self._holders.items() if inode in found}
        for inode, pid in self._search.holders(found.keys() - self._holders.keys(), _SCAN_SECONDS).items():
            if pid is None or _is_fwtop(pid):
                self._holders[inode] = None
            else:
                self._holders[inode] = safe_text(command_name(pid), limit=15), pid, False
        for inode, holder in self._holders.items():
            if holder is not None and not holder[2]:  # programs open a socket first, and filter then
                self._holders[inode] = (*holder[:2], has_filter(holder[1], inode))
        held = ((inode, self._holders.get(inode)) for inode in sorted(found))
        return [
            PacketSocket(holder[0], holder[1], _interface(found[inode]), holder[2])
            for inode, holder in held
            if holder is not None
        ][:_MOST]


def _every_packet(table: str) -> Iterator[tuple[int, int]]:
    """Yield inode and interface of the packet sockets that are not for one small protocol."""
    for line in table.splitlines()[1:]:
        words = line.split()
        if len(words) == 9 and int(words[3], 16) in _EVERY:
            yield int(words[8]), int(words[4])


def _interface(index: int) -> str:
    with contextlib.suppress(OSError):
        return safe_text(socket.if_indextoname(index)) if index else ""
    return str(index)


def _is_fwtop(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            program, *words = file.read(4_096).split(b"\0")
    except OSError:
        return pid == os.getpid()
    python = program.rpartition(b"/")[2].startswith(b"python")
    return pid == os.getpid() or (python and any(re.fullmatch(rb"(.*/)?fwtop(\.\w+)*", one) for one in words))


def has_filter(pid: int, inode: int) -> bool:
    """Return whether a process's packet socket has a filter; False if that can't be found out."""
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            if os.readlink(f"/proc/{pid}/fd/{name}") == f"socket:[{inode}]":
                process = os.pidfd_open(pid)
                try:
                    return _instructions(process, int(name)) > 1  # a single one takes all or nothing
                finally:
                    os.close(process)
    return False


def _instructions(process: int, number: int) -> int:
    """Return the length of the filter of a process's socket; raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    copied = library.syscall(_PIDFD_GETFD, process, number, 0)
    if copied < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    try:
        code = ctypes.create_string_buffer(8 * _MAX_INSTRUCTIONS)
        length = ctypes.c_uint32(_MAX_INSTRUCTIONS)  # here in instructions, of 8 bytes
        done = library.getsockopt(copied, socket.SOL_SOCKET, _SO_GET_FILTER, code, ctypes.byref(length))
        return length.value if done == 0 else 0
    finally:
        os.close(copied)
