"""The BTF reader, on a synthetic blob and on the running kernel's if readable."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from fwtop.kernel.btf import VMLINUX, Btf
from fwtop.model.errors import FwtopError

INT, PTR, STRUCT, UNION, ENUM, CONST, TYPEDEF, FUNC_PROTO = 1, 2, 4, 5, 6, 10, 8, 13


class Blob:
    """Builds a BTF blob type by type."""

    def __init__(self) -> None:
        self.strings = b"\0"
        self.types = b""
        self.count = 0

    def name(self, text: str) -> int:
        if not text:
            return 0
        at = len(self.strings)
        self.strings += text.encode() + b"\0"
        return at

    def add(self, kind: int, name: str = "", value: int = 0, members: tuple[int, bytes] = (0, b"")) -> int:
        self.types += struct.pack("<III", self.name(name), kind << 24 | members[0], value) + members[1]
        self.count += 1
        return self.count

    def compound(self, kind: int, name: str, members: list[tuple[str, int, int]], flag: int = 0) -> int:
        packed = [struct.pack("<III", self.name(member), of, at) for member, of, at in members]
        return self.add(flag << 7 | kind, name, 0, (len(members), b"".join(packed)))

    def bytes(self) -> bytes:
        header = struct.pack(
            "<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(self.types), len(self.types), len(self.strings)
        )
        return header + self.types + self.strings


@pytest.fixture
def types() -> Btf:
    blob = Blob()
    u32 = blob.add(INT, "unsigned int", 4, (0, struct.pack("<I", 32)))
    common = blob.compound(STRUCT, "ns_common", [("ops", u32, 0), ("inum", u32, 96)])
    blob.compound(STRUCT, "net", [("passive", u32, 0), ("ns", common, 256)])
    inner = blob.compound(STRUCT, "", [("next", u32, 0), ("dev", u32, 128)])
    union = blob.compound(UNION, "", [("rb", u32, 0), ("", inner, 0)])
    # With the kind flag, the top byte of an offset is the size of a bitfield
    blob.compound(
        STRUCT, "sk_buff", [("", union, 64), ("bit", u32, 3 << 24 | 320), ("len", u32, 384)], flag=1
    )
    alias = blob.add(TYPEDEF, "net_alias", blob.add(CONST, "", 3))
    blob.compound(STRUCT, "holder", [("net", alias, 512)])
    reasons = [("SKB_DROP_REASON_NOT_SPECIFIED", 2), ("SKB_DROP_REASON_NO_SOCKET", 3)]
    extra = b"".join(struct.pack("<II", blob.name(name), number) for name, number in reasons)
    blob.add(ENUM, "skb_drop_reason", 4, (2, extra))
    prototype = blob.add(FUNC_PROTO, "", 0, (5, struct.pack("<II", 0, u32) * 5))
    blob.add(TYPEDEF, "btf_trace_kfree_skb", blob.add(PTR, "", prototype))
    return Btf(blob.bytes())


@pytest.mark.parametrize(
    ("path", "offset"),
    [
        ("ns_common.inum", 12),
        ("net.ns.inum", 32 + 12),
        ("sk_buff.dev", 8 + 16),
        ("sk_buff.bit", 40),
        ("sk_buff.len", 48),
        ("holder.net.ns.inum", 64 + 44),
    ],
)
def test_offsets_through_anonymous_members_and_typedefs(types: Btf, path: str, offset: int) -> None:
    assert types.offset(path) == offset


def test_a_missing_member_is_none_or_an_error(types: Btf) -> None:
    assert types.find_offset("sk_buff.nothing") is None
    assert types.find_offset("nothing.len") is None
    assert types.find_offset("sk_buff.len.deeper") is None
    with pytest.raises(FwtopError, match=r"sk_buff\.nothing") as raised:
        types.offset("sk_buff.nothing")
    assert raised.value.code == 3


def test_enums_and_tracepoints(types: Btf) -> None:
    assert types.enum("skb_drop_reason") == {
        2: "SKB_DROP_REASON_NOT_SPECIFIED",
        3: "SKB_DROP_REASON_NO_SOCKET",
    }
    assert types.enum("nothing") == {}
    assert types.arguments("kfree_skb") == 4
    assert types.arguments("nothing") == 0
    assert types.typedef("btf_trace_kfree_skb") is not None


@pytest.mark.parametrize("blob", [b"", b"\x9f\xeb", b"not BTF at all, but long enough"])
def test_other_bytes_are_refused(blob: bytes) -> None:
    with pytest.raises(FwtopError, match="BTF"):
        Btf(blob)


def test_an_unknown_kind_is_refused() -> None:
    blob = Blob()
    blob.add(30, "later")
    with pytest.raises(FwtopError, match="can't read"):
        Btf(blob.bytes())


def test_a_missing_file_names_the_option() -> None:
    with pytest.raises(FwtopError, match="CONFIG_DEBUG_INFO_BTF"):
        Btf.read("/nonexistent/vmlinux")


@pytest.mark.skipif(not Path(VMLINUX).exists(), reason="this kernel has no BTF")
def test_the_running_kernel_is_read() -> None:
    kernel = Btf.read()
    assert kernel.offset("sk_buff.data") == kernel.offset("sk_buff.head") + 8
    assert 0 < kernel.offset("net.ns.inum") < 4096
    assert kernel.arguments("kfree_skb") >= 2
