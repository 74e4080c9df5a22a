"""Our own nftables table for kernels before 6.4: it hands one accepted packet in N to NFLOG.

The table has an owner (`flags owner`, Linux 5.12): it lives as long as the netlink socket that made it, so
it goes with the last process that holds that socket, however that ends. An older kernel gets a plain table,
which `detach` takes away by its name. Sources: libnftables(3), nft(8).
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from fwtop.model.errors import FwtopError

FIRST_GROUP = 0xF700  # NFLOG groups: this and the slot
_LIBRARY = "libnftables.so.1"
_PRIORITY = (1 << 31) - 2  # behind every rule, before conntrack's confirmation
_SLOTS = 16


def table_name(slot: int) -> str:
    """Return the name of a slot's table in family inet."""
    return f"fwtop_{slot}" if slot else "fwtop"


def add_table(indexes: list[int], *, slot: int, one_in: int, bytes_each: int) -> int | None:
    """Make the table and return the descriptor that keeps it; None where the kernel knows no owners.

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


def detach(slot: int | None) -> None:
    """Delete our tables of one slot (None: of all) that a dead process without ownership left."""
    nft = _Nft()
    for number in range(_SLOTS) if slot is None else (slot,):
        nft.run(f"delete table inet {table_name(number)}")  # most often there is none


class _Nft:
    """libnftables: it keeps one netlink socket, to which what it makes may belong."""

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
            raise FwtopError("nftables can't be used: this kernel lacks it; nothing was attached", 3)
        self._library.nft_ctx_buffer_error(self._context)
        self._sockets = [number for number, name in _sockets().items() if name not in before.values()]

    def run(self, command: str) -> str:
        """Run a command and return what was wrong with it, in one line."""
        if self._library.nft_run_cmd_from_buffer(self._context, command.encode()) == 0:
            return ""
        text: bytes = self._library.nft_ctx_get_error_buffer(self._context)
        return text.decode("utf-8", "replace").strip().partition("\n")[0] or "no reason was given"

    def socket(self) -> int:
        """Return a descriptor of the library's socket, for another process to hold."""
        return os.dup(self._sockets[0])


def _sockets() -> dict[int, str]:
    """Return this process's sockets by descriptor."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:  # the descriptor that lists the folder
            continue
        if target.startswith("socket:"):
            found[int(entry.name)] = target
    return found
