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
from collections.abc import Iterator

from msgspec import Struct

from fwtop.kernel import netlink
from fwtop.kernel.netlink import NETFILTER_HEADER_BYTES, NETLINK_NETFILTER, attributes, c_string
from fwtop.model.errors import FwtopError

_FAMILIES = {4: 2, 6: 10}  # NFPROTO_IPV4, NFPROTO_IPV6
_FAMILIES_BY_NAME = {"inet": 1, "ip": 2, "netdev": 5, "ip6": 10}  # NFPROTO_*
_SUBSYSTEM = 10 << 8  # NFNL_SUBSYS_NFTABLES
_GETTABLE, _GETCHAIN, _GETRULE, _GETGEN = (_SUBSYSTEM | number for number in (1, 4, 7, 16))  # NFT_MSG_*
_GETSET, _GETSETELEM = _SUBSYSTEM | 10, _SUBSYSTEM | 13
_INTERVAL_END = 1  # NFT_SET_ELEM_INTERVAL_END
_TABLE = 1  # NFTA_TABLE_NAME, NFTA_CHAIN_TABLE, NFTA_RULE_TABLE
_TABLE_FLAGS, _DORMANT = 2, 1  # NFTA_TABLE_FLAGS, NFT_TABLE_F_DORMANT
_RULE_CHAIN, _USERDATA = 2, 7  # NFTA_RULE_CHAIN, NFTA_RULE_USERDATA
_ANONYMOUS = re.compile(rb"__(?:set|map)\d+")
_JUMP = struct.pack(">i", -3)  # NFT_JUMP
_RETURN = struct.pack(">i", -5)  # NFT_RETURN
_Data = bytes


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


def chain_rules(family: int, table: str, chain: str) -> Iterator[KernelRule]:
    """Yield the rules of a chain in order, as they are read; raises FwtopError.

    The kernel finds the chain: others may be long. One that isn't there has no rules.
    """
    for found in _dump(_GETRULE, family, table, netlink.attribute(_RULE_CHAIN, chain.encode() + b"\0")):
        rule = _rule(found)
        if rule.chain == chain:
            yield rule


class TableRule(Struct, frozen=True):
    """A rule of any table: its chain, comment, and expressions without counters."""

    chain: str
    comment: str
    content: bytes


def table_rules(table: str) -> list[TableRule]:
    """Return the rules of a table like "netdev fwtop", in order; none if it is missing. Raises FwtopError.

    For the name of an anonymous set stand its elements: the kernel numbers such sets.
    """
    family, _, name = table.partition(" ")
    anonymous: dict[str, bytes] = {}

    def named(expression: bytes) -> bytes:
        found = _ANONYMOUS.search(expression)
        if found is None:
            return expression
        own = found[0].decode()
        if own not in anonymous:
            anonymous[own] = b"".join(sorted(key + bytes((end,)) for key, end in set_elements(table, own)))
        return expression[: found.start()] + anonymous[own] + expression[found.end() :]

    rules: list[TableRule] = []
    for found in _dump_of(_GETRULE, _FAMILIES_BY_NAME[family], name):
        expressions = [value for _, value in attributes(found.get(4, b""))]
        kept = [
            named(item) for item in expressions if c_string(dict(attributes(item)).get(1, b"")) != "counter"
        ]
        rules.append(
            TableRule(c_string(found.get(2, b"")), _comment(found.get(_USERDATA, b"")), b"".join(kept))
        )
    return rules


def _comment(userdata: bytes) -> str:
    """Return the comment in a rule's user data (libnftnl, udata.c): type, length, value."""
    at = 0
    while at + 2 <= len(userdata):
        kind, size = userdata[at], userdata[at + 1]
        if kind == 0:  # NFTNL_UDATA_RULE_COMMENT
            return c_string(userdata[at + 2 : at + 2 + size])
        at += 2 + size
    return ""


def table_chains(family: int, table: str) -> dict[str, int] | None:
    """Return the chains of an ip or ip6 table, and how many rules are in each and lead to it.

    None if there is no such table. Raises FwtopError.
    """
    chains = {
        c_string(found[3]): int(struct.unpack(">I", found[6])[0]) if 6 in found else 0
        for found in _dump(_GETCHAIN, family, table)
        if 3 in found
    }
    return chains if chains or _has_table(family, table) else None


class FilterChain(Struct, frozen=True):
    """A base chain that may drop incoming packets: it has rules, or its policy drops."""

    stage: str  # "tc" (ingress), "raw" (before routing), "filter" (input and forward)
    family: str
    table: str
    name: str
    drops: bool  # by its policy


_STAGES = {0: "raw", 1: "filter", 2: "filter", 5: "tc"}  # NF_INET_PRE_ROUTING, LOCAL_IN, FORWARD, INGRESS
_FAMILY_NAMES = {1: "inet", 2: "ip", 5: "netdev", 10: "ip6"}
_NETDEV, _DROP = 5, 0  # NFPROTO_NETDEV, NF_DROP


def filter_chains(own: str = "fwtop") -> list[FilterChain]:
    """List the base chains of all tables but those whose name begins with `own`; raises FwtopError.

    A chain whose only rule leads to the chain `own` in capitals has no rules of its own.
    """
    try:
        bodies = list(netlink.dump(NETLINK_NETFILTER, _GETCHAIN, netlink.netfilter_header()))
    except OSError as error:
        raise FwtopError(f"nf_tables can't be read: {error.strerror or error}") from None
    found: list[tuple[FilterChain, int]] = []
    with_ours: set[tuple[str, str]] = set()
    for body in bodies:
        chain = dict(attributes(body, NETFILTER_HEADER_BYTES))
        family, table = _FAMILY_NAMES.get(body[0], ""), c_string(chain.get(_TABLE, b""))
        hook, name = dict(attributes(chain.get(4, b""))), c_string(chain.get(3, b""))
        if name == own.upper():
            with_ours.add((family, table))
        number = int.from_bytes(hook.get(1, b"\xff"), "big")
        stage = "tc" if body[0] == _NETDEV and number == 0 else _STAGES.get(number, "")
        if family and stage and not table.startswith(own) and c_string(chain.get(7, b"")) == "filter":
            drops = int.from_bytes(chain.get(5, b"\1"), "big") == _DROP
            found.append(
                (FilterChain(stage, family, table, name, drops), int.from_bytes(chain.get(6, b""), "big"))
            )
    return [
        chain
        for chain, rules in found
        if chain.drops or rules > ((chain.family, chain.table) in with_ours and chain.stage == "raw")
    ]


def unhooked_chains(family: int, table: str) -> set[str]:
    """Return the chains of an ip or ip6 table that are no base chains; raises FwtopError."""
    return {c_string(found[3]) for found in _dump(_GETCHAIN, family, table) if 3 in found and 4 not in found}


def is_missing(table: str) -> bool:
    """Say whether there is no table of a name like "netdev fwtop" for sure."""
    family, _, name = table.partition(" ")
    try:
        _table(_FAMILIES_BY_NAME[family], name)
    except OSError as error:
        return error.errno == errno.ENOENT
    return False


def is_dormant(table: str) -> bool:
    """Say whether a table like "netdev fwtop" is switched off: packets pass none of its chains then."""
    family, _, name = table.partition(" ")
    try:
        flags = _table(_FAMILIES_BY_NAME[family], name).get(_TABLE_FLAGS, b"")
    except OSError:
        return False
    return bool(int.from_bytes(flags, "big") & _DORMANT)


def has_set(table: str, name: str) -> bool:
    """Say whether a table like "netdev fwtop" has a set of this name."""
    family, _, table_name = table.partition(" ")
    request = netlink.netfilter_header(_FAMILIES_BY_NAME[family])
    request += netlink.attribute(_TABLE, table_name.encode() + b"\0")
    request += netlink.attribute(2, name.encode() + b"\0")  # NFTA_SET_NAME
    try:
        netlink.get(NETLINK_NETFILTER, _GETSET, request)
    except OSError:
        return False
    return True


def _has_table(family: int, table: str) -> bool:
    try:
        return bool(_table(_FAMILIES[family], table))
    except OSError:
        return False


def _table(family: int, name: str) -> dict[int, bytes]:
    """Return the attributes of a table (NFTA_TABLE_*); raises OSError."""
    request = netlink.netfilter_header(family) + netlink.attribute(_TABLE, name.encode() + b"\0")
    body = netlink.get(NETLINK_NETFILTER, _GETTABLE, request)
    return dict(attributes(body, NETFILTER_HEADER_BYTES))


def set_elements(table: str, name: str) -> Iterator[tuple[bytes, bool]]:
    """Yield the keys of a set in a table like "netdev fwtop", each with whether an interval ends before it.

    Raises FwtopError.
    """
    family, _, table_name = table.partition(" ")
    request = netlink.netfilter_header(_FAMILIES_BY_NAME[family])
    request += netlink.attribute(_TABLE, table_name.encode() + b"\0")
    request += netlink.attribute(2, name.encode() + b"\0")  # NFTA_SET_ELEM_LIST_SET
    try:
        for body in netlink.dump(NETLINK_NETFILTER, _GETSETELEM, request):
            listed = dict(attributes(body, NETFILTER_HEADER_BYTES)).get(3, b"")
            for _, element in attributes(listed):
                parts = dict(attributes(element))
                flags = int.from_bytes(parts.get(3, b""), "big")
                yield dict(attributes(parts.get(1, b""))).get(1, b""), bool(flags & _INTERVAL_END)
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


def _dump(kind: int, family: int, table: str, more: bytes = b"") -> Iterator[dict[int, bytes]]:
    """Yield the attributes of each chain or rule of an ip or ip6 table; raises FwtopError."""
    yield from _dump_of(kind, _FAMILIES[family], table, more)


def _dump_of(kind: int, family: int, table: str, more: bytes = b"") -> Iterator[dict[int, bytes]]:
    request = netlink.netfilter_header(family)
    request += netlink.attribute(_TABLE, table.encode() + b"\0") + more
    try:
        for body in netlink.dump(NETLINK_NETFILTER, kind, request):
            found = dict(attributes(body, NETFILTER_HEADER_BYTES))
            if c_string(found.get(_TABLE, b"")) == table:
                yield found
    except OSError as error:
        raise FwtopError(f"nf_tables can't be read: {error.strerror or error}") from None


def _rule(found: dict[int, bytes]) -> KernelRule:
    """Decode NFTA_RULE_*: what identifies one of our rules, and its counter."""
    jump, packets, size, plain, passing = "", 0, 0, True, False
    sets: list[int] = []
    content: list[bytes] = []
    for _, expression in attributes(found.get(4, b"")):
        parts = dict(attributes(expression))
        name, data = c_string(parts.get(1, b"")), dict(attributes(parts.get(2, b"")))
        plain = plain and name in ("counter", "immediate")
        if name != "counter":
            content.append(expression)
        if name == "match" and c_string(data.get(1, b"")) == "set":
            # struct xt_set_info comes first in every revision, and the index in it
            sets.append(int.from_bytes(data.get(3, b"")[:2], sys.byteorder))
        elif name == "counter" and {1, 2} <= data.keys():
            size, packets = struct.unpack(">Q", data[1])[0], struct.unpack(">Q", data[2])[0]
        elif name == "immediate":
            verdict = dict(attributes(dict(attributes(data.get(2, b""))).get(2, b"")))
            jump = c_string(verdict.get(2, b""))
            plain = plain and verdict.get(1) == _JUMP
            passing = verdict.get(1) == _RETURN
        elif name == "target":
            passing = c_string(data.get(1, b"")) == "SET"
    handle = struct.unpack(">Q", found[3])[0]
    counted = (packets, size, passing, b"".join(content))
    return KernelRule(c_string(found.get(2, b"")), handle, tuple(sets), jump, plain, *counted)
