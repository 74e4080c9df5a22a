"""A reader of BTF, the kernel's type information, which makes kernel headers unnecessary.

bcc doesn't relocate member accesses, and the offset of `skb->dev` differs between kernels. The reader scans
the type section once, as 32-bit words, and decodes only the types that are looked up.
Source: https://docs.kernel.org/bpf/btf.html and include/uapi/linux/btf.h.
"""

from __future__ import annotations

import struct
from pathlib import Path

from fwtop.model.errors import FwtopError

VMLINUX = "/sys/kernel/btf/vmlinux"
_MAGIC = 0xEB9F
_STRUCT, _UNION, _ENUM, _TYPEDEF, _FUNC_PROTO, _ENUM64 = 4, 5, 6, 8, 13, 19
_MODIFIERS = frozenset({8, 9, 10, 11, 18})  # typedef, volatile, const, restrict, type tag
# 32-bit words that follow the three of every type: per type, and per member (vlen)
_FIXED = {1: 1, 3: 3, 14: 1, 17: 1}
_PER_MEMBER = {_STRUCT: 3, _UNION: 3, _ENUM: 2, _FUNC_PROTO: 2, 15: 3, _ENUM64: 3}
_KINDS = 20


class Btf:
    """The types of one BTF blob; raises FwtopError (code 3) if it isn't valid."""

    def __init__(self, blob: bytes) -> None:
        if len(blob) < 24 or struct.unpack_from("<H", blob)[0] != _MAGIC:
            raise FwtopError("the kernel's type information (BTF) can't be read: not a BTF file", 3)
        header, type_off, type_len, str_off, str_len = struct.unpack_from("<IIIII", blob, 4)
        start = header + type_off
        self._words = memoryview(blob)[start : start + type_len].cast("I")
        self._strings = blob[header + str_off : header + str_off + str_len]
        self._position = self._walk()
        self._by_name: dict[tuple[int, int], int] = {}

    @staticmethod
    def read(path: str = VMLINUX) -> Btf:
        """Read the running kernel's BTF; raises FwtopError (code 3)."""
        try:
            return Btf(Path(path).read_bytes())
        except OSError as error:
            raise FwtopError(
                f"no BTF type information at {path} ({error.strerror}): fwtop needs a kernel built with "
                "CONFIG_DEBUG_INFO_BTF=y (Debian 11 and newer have it)",
                3,
            ) from None

    def _walk(self) -> list[int]:
        """Return the index of each type's first word; type 0 is void."""
        words, extra = self._words, [_PER_MEMBER.get(kind, 0) for kind in range(_KINDS)]
        fixed = [3 + _FIXED.get(kind, 0) for kind in range(_KINDS)]
        position, at, end = [0], 0, len(words)
        append = position.append
        try:
            while at < end:
                append(at)
                info = words[at + 1]
                kind = info >> 24 & 0x1F
                at += fixed[kind] + extra[kind] * (info & 0xFFFF)
        except IndexError:
            raise FwtopError(
                "the kernel's type information (BTF) has a kind that fwtop can't read", 3
            ) from None
        return position

    def _name(self, offset: int) -> str:
        return self._strings[offset : self._strings.index(b"\0", offset)].decode("ascii", "replace")

    def find(self, kind: int, name: str) -> int | None:
        """Return the id of the first type of that kind and name, None if there is none."""
        offset = self._strings.find(b"\0" + name.encode() + b"\0") + 1
        if not offset:
            return None
        if not self._by_name:
            words = self._words
            for type_id in range(len(self._position) - 1, 0, -1):
                at = self._position[type_id]
                self._by_name[words[at], words[at + 1] >> 24 & 0x1F] = type_id
        return self._by_name.get((offset, kind))

    def typedef(self, name: str) -> int | None:
        """Return the id of a typedef; raw tracepoints attach to `btf_trace_NAME`."""
        return self.find(_TYPEDEF, name)

    def arguments(self, tracepoint: str) -> int:
        """Return the number of a tracepoint's arguments, 0 if there is no such tracepoint."""
        type_id = self.typedef(f"btf_trace_{tracepoint}")
        if type_id is None:
            return 0
        words = self._words
        pointer = words[self._position[type_id] + 2]
        prototype = words[self._position[pointer] + 2]
        return (words[self._position[prototype] + 1] & 0xFFFF) - 1  # the first is the probe's private data

    def offset(self, path: str) -> int:
        """Return the byte offset of a member, such as `sk_buff.dev` or `net.ns.inum`.

        Members of anonymous structs are found too. Raises FwtopError (code 3) if there is no such member.
        """
        found = self.find_offset(path)
        if found is None:
            raise FwtopError(f"this kernel's {path} can't be found in its type information (BTF)", 3)
        return found

    def find_offset(self, path: str) -> int | None:
        """Do the same, but return None if there is no such member."""
        first, *members = path.split(".")
        type_id = self.find(_STRUCT, first)
        total = 0
        for member in members:
            found = self._member(type_id, member) if type_id is not None else None
            if found is None:
                return None
            total += found[0]
            type_id = found[1]
        return total // 8

    def _member(self, type_id: int, name: str) -> tuple[int, int] | None:
        """Return the bit offset and type of a member, or of a member of an anonymous one."""
        words = self._words
        at = self._position[self._bare(type_id)]
        info = words[at + 1]
        if info >> 24 & 0x1F not in (_STRUCT, _UNION):
            return None
        mask = 0xFFFFFF if info >> 31 else 0xFFFFFFFF  # with the kind flag, the top byte is a bitfield size
        for entry in range(at + 3, at + 3 + 3 * (info & 0xFFFF), 3):
            name_offset, member_type, offset = words[entry : entry + 3]
            if name_offset == 0:
                inner = self._member(member_type, name)
                if inner is not None:
                    return (offset & mask) + inner[0], inner[1]
            elif self._name(name_offset) == name:
                return offset & mask, member_type
        return None

    def _bare(self, type_id: int) -> int:
        """Return the type behind typedefs and qualifiers."""
        while True:
            at = self._position[type_id]
            if self._words[at + 1] >> 24 & 0x1F not in _MODIFIERS:
                return type_id
            type_id = self._words[at + 2]

    def enum(self, name: str) -> dict[int, str]:
        """Return the names of an enum by number, {} if there is no such enum."""
        type_id = self.find(_ENUM, name)
        if type_id is None:
            return {}
        at = self._position[type_id]
        entries = range(at + 3, at + 3 + 2 * (self._words[at + 1] & 0xFFFF), 2)
        return {self._words[entry + 1]: self._name(self._words[entry]) for entry in entries}
