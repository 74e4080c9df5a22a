"""The nf_tables rule set as the kernel has it: chains, rules and its generation number.

`iptables-nft-save` refuses a whole table because of a single native rule, and nft(8) does not print the
sets that iptables rules match; the kernel reports both, and no process has to be started. Sources:
include/uapi/linux/netfilter/{nf_tables,nf_tables_compat,xt_set}.h.
"""

from __future__ import annotations

import errno
import re
import struct
import sys
from collections.abc import Callable, Iterator

from msgspec import Struct

from fwtop.kernel import netlink
from fwtop.kernel.netlink import NETFILTER_HEADER_BYTES, NETLINK_NETFILTER, attributes, c_string
from fwtop.model.errors import FwtopError

FAMILIES = {1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}  # NFPROTO_*
_NUMBERS = {name: number for number, name in FAMILIES.items()}
_SUBSYSTEM = 10 << 8  # NFNL_SUBSYS_NFTABLES
_GETTABLE, _GETCHAIN, _GETRULE, _GETGEN = (_SUBSYSTEM | number for number in (1, 4, 7, 16))  # NFT_MSG_*
_GETSET, _GETSETELEM, _GETOBJ, _GETFLOWTABLE = (_SUBSYSTEM | number for number in (10, 13, 19, 23))
_ANONYMOUS_SET, _MAP = 1 << 0, 1 << 3  # NFT_SET_*
INTERVAL_END = 1  # NFT_SET_ELEM_INTERVAL_END
_TABLE = 1  # NFTA_TABLE_NAME, NFTA_CHAIN_TABLE, NFTA_RULE_TABLE
_TABLE_FLAGS, _DORMANT = 2, 1  # NFTA_TABLE_FLAGS, NFT_TABLE_F_DORMANT
_NAMED, _USERDATA = 2, 7  # NFTA_RULE_CHAIN, NFTA_SET_NAME, NFTA_SET_ELEM_LIST_SET; NFTA_RULE_USERDATA
_ANONYMOUS = re.compile(rb"__(?:set|map)\d+")
_JUMP = struct.pack(">i", -3)  # NFT_JUMP
_RETURN = struct.pack(">i", -5)  # NFT_RETURN
_DROP = struct.pack(">i", 0)  # NF_DROP
_Data = bytes
_HOOKS = ("prerouting", "input", "forward", "output", "postrouting", "ingress")
_DEVICE_HOOKS = ("ingress", "egress")
_STAGES = {"ingress": "tc", "prerouting": "raw", "input": "filter", "forward": "filter"}

# All functions take a table by family and name: "ip raw", "netdev fwtop".


class KernelRule(Struct, frozen=True):
    """A rule as nf_tables stores it."""

    chain: str
    handle: int
    sets: tuple[int, ...] = ()  # the ipsets that it matches, by index, as iptables-nft writes them
    jump: str = ""  # target chain of a jump or goto
    plain: bool = False  # it jumps (not: goes) whatever the packet
    packets: int = 0
    bytes: int = 0
    passing: bool = False  # it returns, or fills a set
    content: _Data = b""  # its expressions without counters
    comment: str = ""
    drops: bool = False


def rules(table: str, chain: str = "") -> Iterator[KernelRule]:
    """Yield the rules of a table, or of one of its chains, in order, as they are read; raises FwtopError.

    The kernel finds the chain: others may be long. One that isn't there has no rules.
    """
    for found in _dump(_GETRULE, table, chain):
        rule = _rule(found)
        if rule.chain == chain or not chain:
            yield rule


def table_rules(table: str) -> list[KernelRule]:
    """Return the rules of a table, in order; none if it is missing. Raises FwtopError.

    In their content, for the name of an anonymous set stand its elements: the kernel numbers such sets.
    """
    anonymous: dict[str, bytes] = {}

    def named(expression: bytes) -> bytes:
        found = _ANONYMOUS.search(expression)
        if found is None:
            return expression
        own = found[0].decode()
        if own not in anonymous:
            anonymous[own] = b"".join(sorted(key + bytes((end,)) for key, end in set_elements(table, own)))
        return expression[: found.start()] + anonymous[own] + expression[found.end() :]

    return [_rule(found, named) for found in _dump(_GETRULE, table)]


def _comment(userdata: bytes) -> str:
    """Return the comment in a rule's user data (libnftnl, udata.c): type, length, value."""
    at = 0
    while at + 2 <= len(userdata):
        kind, size = userdata[at], userdata[at + 1]
        if kind == 0:  # NFTNL_UDATA_RULE_COMMENT
            return c_string(userdata[at + 2 : at + 2 + size])
        at += 2 + size
    return ""


class Chain(Struct, frozen=True):
    """A chain; only base chains have a hook, a type, a policy, and that counters."""

    family: str
    table: str
    name: str
    rules: int  # in it, and jumps to it
    hook: str = ""
    type: str = ""
    drops: bool = False
    packets: int | None = None
    bytes: int | None = None


def chains() -> Iterator[Chain]:
    """Yield the chains of all tables; raises OSError."""
    for body in netlink.dump(NETLINK_NETFILTER, _GETCHAIN, netlink.netfilter_header()):
        found = dict(attributes(body, NETFILTER_HEADER_BYTES))
        family, hook = FAMILIES.get(body[0], ""), ""
        if 4 in found:  # NFTA_CHAIN_HOOK
            names = _DEVICE_HOOKS if family == "netdev" else _HOOKS
            number = int.from_bytes(dict(attributes(found[4])).get(1, b""), "big")
            hook = names[number] if number < len(names) else "ingress"
        drops = bool(hook) and int.from_bytes(found.get(5, b"\1"), "big") == 0
        table, name, kind = (c_string(found.get(key, b"")) for key in (_TABLE, 3, 7))
        rules, counted = int.from_bytes(found.get(6, b""), "big"), counters_of(found.get(8, b""))
        yield Chain(family, table, name, rules, hook, kind, drops, *counted)


def table_chains(table: str) -> dict[str, int] | None:
    """Return the chains of a table, and how many rules are in each and lead to it.

    None if there is no such table. Raises FwtopError.
    """
    found = {
        c_string(chain[3]): int.from_bytes(chain.get(6, b""), "big")
        for chain in _dump(_GETCHAIN, table)
        if 3 in chain
    }
    return found if found or _attributes_of(table) else None


def unhooked_chains(table: str) -> set[str]:
    """Return the chains of a table that are no base chains; raises FwtopError."""
    return {c_string(found[3]) for found in _dump(_GETCHAIN, table) if 3 in found and 4 not in found}


class FilterChain(Struct, frozen=True):
    """A base chain that may drop incoming packets: it has rules, or its policy drops."""

    stage: str  # "tc" (ingress), "raw" (before routing), "filter" (input and forward)
    family: str
    table: str
    name: str
    drops: bool  # by its policy


def filter_chains() -> list[FilterChain]:
    """List the base chains of all tables but those whose name begins with fwtop; raises FwtopError.

    A chain whose only rule leads to the chain FWTOP has no rules of its own.
    """
    try:
        listed = list(chains())
    except OSError as error:
        raise _unreadable(error) from None
    with_ours = {(chain.family, chain.table) for chain in listed if chain.name == "FWTOP"}
    found: list[FilterChain] = []
    for chain in listed:
        stage = _STAGES.get(chain.hook, "")
        if not stage or chain.type != "filter" or chain.table.startswith("fwtop"):
            continue
        jumps = (chain.family, chain.table) in with_ours and stage == "raw"
        if chain.drops or chain.rules > jumps:
            found.append(FilterChain(stage, chain.family, chain.table, chain.name, chain.drops))
    return found


def is_missing(table: str) -> bool:
    """Say whether there is no such table for sure."""
    return _attributes_of(table) == {}


def is_dormant(table: str) -> bool:
    """Say whether a table is switched off: packets pass none of its chains then."""
    flags = (_attributes_of(table) or {}).get(_TABLE_FLAGS, b"")
    return bool(int.from_bytes(flags, "big") & _DORMANT)


def has_set(table: str, name: str) -> bool:
    """Say whether a table has a set of this name."""
    try:
        netlink.get(NETLINK_NETFILTER, _GETSET, _request(table, name))
    except OSError:
        return False
    return True


def set_names(table: str) -> dict[str, bool]:
    """Return the names of a table's sets, each with whether it is a map; raises FwtopError."""
    found = ((c_string(one[_NAMED]), int.from_bytes(one.get(3, b""), "big")) for one in _dump(_GETSET, table))
    return {name: bool(flags & _MAP) for name, flags in found if not flags & _ANONYMOUS_SET}


def has_objects(table: str) -> bool:
    """Say whether a table has counters, flowtables or the like, by name; raises FwtopError."""
    return any(True for kind in (_GETOBJ, _GETFLOWTABLE) for _ in _dump(kind, table))


def _attributes_of(table: str) -> dict[int, bytes] | None:
    """Return the attributes of a table (NFTA_TABLE_*), none if there is no such table; None if unknown."""
    try:
        body = netlink.get(NETLINK_NETFILTER, _GETTABLE, _request(table))
    except OSError as error:
        # EINVAL: nobody answers for this subsystem (nfnetlink.c)
        return {} if error.errno in (errno.ENOENT, errno.EINVAL, errno.EOPNOTSUPP) else None
    return dict(attributes(body, NETFILTER_HEADER_BYTES))


def set_elements(table: str, name: str) -> Iterator[tuple[bytes, bool]]:
    """Yield the keys of a set in a table, each with whether an interval ends before it; raises FwtopError."""
    try:
        for body in netlink.dump(NETLINK_NETFILTER, _GETSETELEM, _request(table, name)):
            for _, element in attributes(dict(attributes(body, NETFILTER_HEADER_BYTES)).get(3, b"")):
                parts = dict(attributes(element))
                flags = int.from_bytes(parts.get(3, b""), "big")
                yield dict(attributes(parts.get(1, b""))).get(1, b""), bool(flags & INTERVAL_END)
    except OSError as error:
        raise FwtopError(f"set {name} of table {table} can't be read: {error.strerror or error}") from None


def generation() -> int:
    """Return the number of this namespace's rule set, which every change increments; 0 without nf_tables."""
    try:
        body = netlink.get(NETLINK_NETFILTER, _GETGEN, netlink.netfilter_header())
    except OSError:
        return 0
    found = dict(attributes(body, NETFILTER_HEADER_BYTES))
    return int(struct.unpack(">I", found[1])[0]) if 1 in found else 0


def _request(table: str, name: str = "") -> bytes:
    """Return a request about a table, or about the chain or set of that name in it."""
    family, _, own_name = table.partition(" ")
    request = netlink.netfilter_header(_NUMBERS[family])
    request += netlink.attribute(_TABLE, own_name.encode() + b"\0")
    return request + (netlink.attribute(_NAMED, name.encode() + b"\0") if name else b"")


def _dump(kind: int, table: str, name: str = "") -> Iterator[dict[int, bytes]]:
    """Yield the attributes of each chain or rule of a table; raises FwtopError."""
    try:
        for body in netlink.dump(NETLINK_NETFILTER, kind, _request(table, name)):
            found = dict(attributes(body, NETFILTER_HEADER_BYTES))
            if c_string(found.get(_TABLE, b"")) == table.partition(" ")[2]:
                yield found
    except OSError as error:
        raise _unreadable(error) from None


def _unreadable(error: OSError) -> FwtopError:
    return FwtopError(f"nf_tables can't be read: {error.strerror or error}")


def counters_of(nested: bytes) -> tuple[int | None, int | None]:
    """Return packets and bytes of NFTA_COUNTER_*."""
    counted = dict(attributes(nested))
    if len(counted.get(1, b"")) != 8 or len(counted.get(2, b"")) != 8:
        return None, None
    return int.from_bytes(counted[2], "big"), int.from_bytes(counted[1], "big")


def _rule(found: dict[int, bytes], named: Callable[[bytes], bytes] = bytes) -> KernelRule:
    """Decode NFTA_RULE_*; `named` returns an expression as it is to be compared."""
    jump, packets, size, plain, passing, drops = "", 0, 0, True, False, False
    sets: list[int] = []
    content: list[bytes] = []
    for _, expression in attributes(found.get(4, b"")):
        parts = dict(attributes(expression))
        name, data = c_string(parts.get(1, b"")), dict(attributes(parts.get(2, b"")))
        plain = plain and name in ("counter", "immediate")
        if name != "counter":
            content.append(named(expression))
        if name == "match" and c_string(data.get(1, b"")) == "set":
            # struct xt_set_info comes first in every revision, and the index in it
            sets.append(int.from_bytes(data.get(3, b"")[:2], sys.byteorder))
        elif name == "counter":
            packets, size = (count or 0 for count in counters_of(parts.get(2, b"")))
        elif name == "immediate":
            verdict = dict(attributes(dict(attributes(data.get(2, b""))).get(2, b"")))
            jump = c_string(verdict.get(2, b""))
            plain = plain and verdict.get(1) == _JUMP
            passing, drops = verdict.get(1) == _RETURN, verdict.get(1) == _DROP
        elif name == "target":
            passing = c_string(data.get(1, b"")) == "SET"
    handle = struct.unpack(">Q", found[3])[0]
    said = (packets, size, passing, b"".join(content), _comment(found.get(_USERDATA, b"")), drops)
    return KernelRule(c_string(found.get(2, b"")), handle, tuple(sets), jump, plain, *said)
