"""The nf_tables rule set through netlink: counters of 100,000 rules in about a second, without a program.

Its texts come from programs (nf_tables.py); what these don't tell is described by its expressions here.
Source: include/uapi/linux/netfilter/nf_tables.h.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

from msgspec import Struct

from fwtop.kernel import netlink
from fwtop.kernel.netlink import NETFILTER_HEADER_BYTES, NETLINK_NETFILTER, attributes, c_string
from fwtop.netfilter.nf_tables import FAMILIES, INTERVAL_END, counters_of

_SUBSYSTEM = 10 << 8  # NFNL_SUBSYS_NFTABLES
_GETRULE, _GETSET, _GETSETELEM, _GETOBJ = (_SUBSYSTEM | number for number in (7, 10, 13, 19))
_HEAD = struct.Struct("=HH")
_NUMBER = struct.Struct(">Q")
_TYPE = 0x3FFF
_ANONYMOUS = 0x1  # NFT_SET_ANONYMOUS
_COUNTER_OBJECT = 1  # NFT_OBJECT_COUNTER
_VERDICTS = {0: "drop", 1: "accept", 3: "queue", -1: "continue", -2: "break", -5: "return"}
_JUMPS = {-3: "jump", -4: "goto"}
_KEY_TYPES = {
    7: "ipv4_addr",
    8: "ipv6_addr",
    9: "ether_addr",
    12: "inet_proto",
    13: "inet_service",
    19: "mark",
    20: "iface_index",
    41: "ifname",
}
_TYPE_BITS = 6  # of each part of a concatenation
_CHECK_EVERY = 1024  # rules, between two looks at the clock


class DumpedRule(Struct):
    """A rule as dumped; `packets` is None where it counts nothing."""

    family: str
    table: str
    chain: str
    handle: int
    packets: int | None
    size: int | None  # bytes
    body: bytes  # for `expressions`


class DumpedSet(Struct, frozen=True):
    """A named set or map."""

    family: str
    table: str
    name: str
    type: str
    entries: int | None
    size: int | None


class DumpedCounter(Struct, frozen=True):
    """A named counter, to which rules refer."""

    family: str
    table: str
    name: str
    packets: int
    bytes: int


def dumped_rules(end: float) -> Iterator[DumpedRule]:
    """Yield all rules in order until `end` (CLOCK_MONOTONIC); raises TimeoutError then, and OSError."""
    for number, body in enumerate(netlink.dump(NETLINK_NETFILTER, _GETRULE, netlink.netfilter_header())):
        if number % _CHECK_EVERY == 0 and time.monotonic() > end:
            raise TimeoutError
        yield _rule(body)


def _rule(body: bytes) -> DumpedRule:
    """Decode what changes and what identifies; `attributes` would take five times as long."""
    names: dict[int, bytes] = {}
    packets = size = None
    at, stop = NETFILTER_HEADER_BYTES, len(body)
    while at + 4 <= stop:
        length, kind = _HEAD.unpack_from(body, at)
        kind &= _TYPE
        if length < 4 or at + length > stop:
            break
        if kind < 4:  # NFTA_RULE_TABLE, _CHAIN, _HANDLE
            names[kind] = body[at + 4 : at + length]
        elif kind == 4:  # NFTA_RULE_EXPRESSIONS
            packets, size = _counter(body, at + 4, at + length)
            break  # what follows is not needed
        at += (length + 3) & ~3
    handle = _NUMBER.unpack(names[3])[0] if len(names.get(3, b"")) == 8 else 0
    family = FAMILIES.get(body[0], "")
    return DumpedRule(
        family, c_string(names.get(1, b"")), c_string(names.get(2, b"")), handle, packets, size, body
    )


def _counter(body: bytes, at: int, stop: int) -> tuple[int | None, int | None]:
    """Return packets and bytes of the first counter among a rule's expressions."""
    while at + 16 <= stop:
        length, _ = _HEAD.unpack_from(body, at)
        if length < 4 or at + length > stop:
            break
        if body[at + 8 : at + 16] == b"counter\0":
            found = dict(attributes(body[at + 4 : at + length]))
            return counters_of(found.get(2, b""))
        at += (length + 3) & ~3
    return None, None


def expressions(body: bytes) -> str:
    """Describe a rule by its expressions, as well as that goes without nft(8); not sanitised."""
    words: list[str] = []
    found = dict(attributes(body, NETFILTER_HEADER_BYTES))
    for _, expression in attributes(found.get(4, b"")):
        parts = dict(attributes(expression))
        words.append(_expression(c_string(parts.get(1, b"")), dict(attributes(parts.get(2, b"")))))
    return " ".join(word for word in words if word)


def _expression(name: str, data: dict[int, bytes]) -> str:
    if name == "immediate":
        verdict = dict(attributes(dict(attributes(data.get(2, b""))).get(2, b"")))
        if 1 not in verdict:  # it loads a value
            return ""
        code = int.from_bytes(verdict[1], "big", signed=True)
        return (
            f"{_JUMPS[code]} {c_string(verdict.get(2, b''))}" if code in _JUMPS else _VERDICTS.get(code, "")
        )
    if name == "lookup":
        return f"@{c_string(data.get(1, b''))}"
    if name in ("match", "target"):  # of xtables
        return f"{name} {c_string(data.get(1, b''))}"
    return name


def counters() -> list[DumpedCounter]:
    """List the named counters; raises OSError."""
    found: list[DumpedCounter] = []
    for body in netlink.dump(NETLINK_NETFILTER, _GETOBJ, netlink.netfilter_header()):
        item = dict(attributes(body, NETFILTER_HEADER_BYTES))
        packets, size = counters_of(item.get(4, b""))
        if int.from_bytes(item.get(3, b""), "big") == _COUNTER_OBJECT and packets is not None:
            names = c_string(item.get(1, b"")), c_string(item.get(2, b""))
            found.append(DumpedCounter(FAMILIES.get(body[0], ""), *names, packets, size or 0))
    return found


def sets(end: float) -> list[DumpedSet]:
    """List the named sets and maps; raises OSError."""
    found: list[DumpedSet] = []
    for body in netlink.dump(NETLINK_NETFILTER, _GETSET, netlink.netfilter_header()):
        item = dict(attributes(body, NETFILTER_HEADER_BYTES))
        flags = int.from_bytes(item.get(3, b""), "big")
        if flags & _ANONYMOUS:
            continue
        table, name = c_string(item.get(1, b"")), c_string(item.get(2, b""))
        size = int.from_bytes(dict(attributes(item.get(9, b""))).get(1, b""), "big")
        if 20 in item:  # NFTA_SET_COUNT, since Linux 6.16
            entries: int | None = int.from_bytes(item[20], "big")
        else:
            entries = _count_elements(body[0], item[1], item[2], end)
        kind = key_type(int.from_bytes(item.get(4, b""), "big"))
        found.append(DumpedSet(FAMILIES.get(body[0], ""), table, name, kind, entries, size or None))
    return found


def _count_elements(family: int, table: bytes, name: bytes, end: float) -> int | None:
    """Count a set's elements by dumping them; None if that takes too long or fails."""
    request = netlink.netfilter_header(family) + netlink.attribute(1, table) + netlink.attribute(2, name)
    count = 0
    try:
        for body in netlink.dump(NETLINK_NETFILTER, _GETSETELEM, request):
            if time.monotonic() > end:
                return None
            count += elements_in(dict(attributes(body, NETFILTER_HEADER_BYTES)).get(3, b""))
    except OSError:
        return None
    return count


def elements_in(listed: bytes) -> int:
    """Count the elements of NFTA_SET_ELEM_LIST_ELEMENTS; an interval is one, its end is none."""
    parts = (dict(attributes(element)) for _, element in attributes(listed))
    return sum(not int.from_bytes(part.get(3, b""), "big") & INTERVAL_END for part in parts)


def key_type(number: int) -> str:
    """Name the type of a set's keys (nft's datatypes, which the kernel only stores)."""
    parts: list[str] = []
    while number:
        parts.append(_KEY_TYPES.get(number & ((1 << _TYPE_BITS) - 1), "other"))
        number >>= _TYPE_BITS
    return " . ".join(reversed(parts)) or "other"
