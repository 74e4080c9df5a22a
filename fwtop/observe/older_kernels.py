"""What observers need on kernels where no descriptor holds them, and what that leaves behind.

Before Linux 6.6 these are filters under clsact. Before 6.4 an nftables table passes one accepted packet in N
to NFLOG. It has an owner (`flags owner`, Linux 5.12): the kernel removes it when the last process that holds
the netlink socket of its creation ends. An older kernel gets a plain table, which `detach` removes by name.
Sources: libnftables(3), nft(8).
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from pathlib import Path

from fwtop.kernel import clsact, netlink
from fwtop.model.errors import FwtopError
from fwtop.netfilter import nf_tables
from fwtop.observe.messages import DATA_BYTES

FIRST_GROUP = 0xF700  # NFLOG group of slot 0
_LIBRARY = "libnftables.so.1"
_PRIORITY = (1 << 31) - 2  # after all rules, before conntrack confirms
_SLOTS = 16
_CONFIG = 0x0401  # NFNL_SUBSYS_ULOG << 8 | NFULNL_MSG_CONFIG
_CFG_CMD, _CFG_MODE, _CFG_BUFFER, _CFG_TIMEOUT, _CFG_THRESHOLD, _CFG_FLAGS = 1, 2, 3, 4, 5, 6
_BIND, _COPY_PACKET, _WITH_SEQUENCE = 1, 2, 1
_KERNEL_BATCH = 64  # messages in a datagram
_FLUSH_CENTISECONDS = 10
_SOCKET_BUFFER_BYTES = 1 << 22
DATAGRAM_BYTES = 1 << 16


def bind(group: int) -> int:
    """Return a socket that receives a group's packets; needs CAP_NET_ADMIN. Raises OSError."""
    channel = netlink.open_socket(netlink.NETLINK_NETFILTER)
    try:
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER_BYTES)
        for attributes in (
            netlink.attribute(_CFG_CMD, bytes([_BIND])),
            netlink.attribute(_CFG_MODE, struct.pack("!IBB", DATA_BYTES, _COPY_PACKET, 0)),
            netlink.attribute(_CFG_BUFFER, struct.pack("!I", DATAGRAM_BYTES))
            + netlink.attribute(_CFG_TIMEOUT, struct.pack("!I", _FLUSH_CENTISECONDS))
            + netlink.attribute(_CFG_THRESHOLD, struct.pack("!I", _KERNEL_BATCH))
            + netlink.attribute(_CFG_FLAGS, struct.pack("!H", _WITH_SEQUENCE)),
        ):
            netlink.send(channel, _CONFIG, netlink.netfilter_header(resource=group) + attributes)
        channel.setblocking(False)
        return channel.detach()
    except BaseException:
        channel.close()
        raise


def table_name(slot: int) -> str:
    """Return the name of a slot's table in family inet."""
    return f"fwtop_{slot}" if slot else "fwtop"


def add_table(indexes: list[int], *, slot: int, one_in: int, bytes_each: int) -> int | None:
    """Create the table; returns the socket that owns it, or None before Linux 5.12.

    Raises FwtopError (code 3) without libnftables or nftables in the kernel.
    """
    nft = _Nft()
    error = nft.run(_ruleset(indexes, slot, one_in, bytes_each, "flags owner;"))
    if not error:
        return nft.socket()
    detach(slot)
    error = nft.run(_ruleset(indexes, slot, one_in, bytes_each, ""))
    if error:
        raise FwtopError(f"nftables refused fwtop's own table: {error}; nothing was left attached", 3)
    return None


def _ruleset(indexes: list[int], slot: int, one_in: int, bytes_each: int, flags: str) -> str:
    watched = ", ".join(str(index) for index in indexes)
    log = f"log group {FIRST_GROUP + slot} snaplen {bytes_each}"
    chains = "".join(
        f"chain {hook} {{ type filter hook {hook} priority {_PRIORITY}; policy accept; "
        f"iif {{ {watched} }} numgen inc mod {one_in} 0 {log}; }}; "
        for hook in ("input", "forward")
    )
    return f"table inet {table_name(slot)} {{ {flags} {chains} }}"


def left(slot: int | None) -> list[str]:
    """Return the names of one slot's table (None: of all slots') that are there, or can't be asked for."""
    names = map(table_name, range(_SLOTS) if slot is None else (slot,))
    return [name for name in names if not nf_tables.is_missing(f"inet {name}")]


def detach(slot: int | None) -> None:
    """Delete one slot's table (None: all of them) that was left without an owner.

    None that isn't there: each attempt would take an RCU grace period, 15 ms.
    """
    if names := left(slot):
        nft = _Nft()
        for name in names:
            nft.run(f"delete table inet {name}")


class _Nft:
    """A context of libnftables, whose netlink socket owns the tables it creates."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(_LIBRARY)
        except OSError:
            raise FwtopError(
                f"{_LIBRARY} is missing: apt install nftables; nothing was attached", 3
            ) from None
        for name, arguments, result in (
            ("nft_ctx_new", [ctypes.c_uint32], ctypes.c_void_p),
            ("nft_ctx_buffer_error", [ctypes.c_void_p], ctypes.c_int),
            ("nft_ctx_get_error_buffer", [ctypes.c_void_p], ctypes.c_char_p),
            ("nft_run_cmd_from_buffer", [ctypes.c_void_p, ctypes.c_char_p], ctypes.c_int),
        ):
            function = getattr(self._library, name)
            function.argtypes, function.restype = arguments, result
        before = _sockets()
        self._context = self._library.nft_ctx_new(0)
        if not self._context:
            raise FwtopError("this kernel lacks nftables; nothing was attached", 3)
        self._library.nft_ctx_buffer_error(self._context)
        self._sockets = [number for number, name in _sockets().items() if name not in before.values()]

    def run(self, command: str) -> str:
        """Run a command; returns the first line of its error, or an empty text."""
        if self._library.nft_run_cmd_from_buffer(self._context, command.encode()) == 0:
            return ""
        text: bytes = self._library.nft_ctx_get_error_buffer(self._context)
        return text.decode("utf-8", "replace").strip().partition("\n")[0] or "no reason was given"

    def socket(self) -> int:
        """Return a duplicate of the library's socket."""
        return os.dup(self._sockets[0])


def _sockets() -> dict[int, str]:
    """Return this process's sockets by descriptor."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:  # the descriptor of this listing
            continue
        if target.startswith("socket:"):
            found[int(entry.name)] = target
    return found


def are_left() -> bool:
    """Whether there is anything to remove; also if the kernel can't be asked."""
    try:
        return clsact.is_left() or bool(left(None))
    except OSError:
        return True


def remove_left(slot: int | None) -> None:
    """Remove what the observers of one slot (None: of all) left; raises OSError, FwtopError."""
    clsact.detach(slot)
    detach(slot)
