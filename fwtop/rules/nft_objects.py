"""Rules for nftables: fwtop's own tables, a rule's sets and lines in them, and its conditions in nft's words.

A later fragment has no transport header: nft's transport expressions don't match it
(net/netfilter/nft_payload.c), so ports and payload are never read from its data. Source: nft(8).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from fwtop.model.addresses.address import Prefix, of_pairs, of_ports
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Match, PayloadMatch
from fwtop.model.traffic.protocols import ICMP, ICMPV6, TCP, UDP
from fwtop.rules.fields import FRAGMENT, IP, PORTED, PORTS, SEGMENT, TCP_FLAGS

if TYPE_CHECKING:  # numpy, which a guardian without lists needn't carry
    from fwtop.model.addresses.keyed_rows import KeyedRows


INTERVALS = "flags interval"
HASHED = ""  # a set without flags: a lookup costs a fifth of that in a tree of intervals
TYPES = {4: "ipv4_addr", 6: "ipv6_addr"}
_OWN_ROLES = ("src", "dst")


class Layout(Struct, frozen=True):
    """One of fwtop's tables: its chains, and the type of its enable sets."""

    table: str  # family and name
    enable_type: str
    enable_elements: dict[int, str]
    enable_match: str  # the expression that enable sets are matched against
    chains: dict[str, str]  # name → its hook; "" for one that others jump to
    per_interface: str = ""  # a base chain for each interface, with this hook, leads to the chains

    def only(self, family: int) -> str:
        """Return the condition that a packet is of a family."""
        return f"{self.enable_match} {self.enable_elements[family]}"


NETDEV = Layout(
    "netdev fwtop", "ether_type", {4: "0x0800", 6: "0x86dd"}, "meta protocol", {"rules4": "", "rules6": ""},
    'type filter hook ingress device "{}" priority -500; policy accept;',
)  # fmt: skip
PROXY = Layout(
    "inet fwtop-synproxy", "nf_proto", {4: "ipv4", 6: "ipv6"}, "meta nfproto",
    {
        # After table raw, whose drops come first, and before conntrack (linux/netfilter_ipv4.h).
        "raw": "type filter hook prerouting priority -290; policy accept;",
        "in": "type filter hook input priority -1; policy accept;",
        "forward": "type filter hook forward priority -1; policy accept;",
    },
)  # fmt: skip
CONNECTIONS = Layout(
    "inet fwtop-connections", "nf_proto", {4: "ipv4", 6: "ipv6"}, "meta nfproto",
    # Behind connection tracking (-200), which counts, and before NAT (linux/netfilter_ipv4.h).
    {"new": "type filter hook prerouting priority -150; policy accept;"},
)  # fmt: skip
LAYOUTS = (NETDEV, PROXY, CONNECTIONS)


class NftSet(Struct, frozen=True):
    """A set of a rule: its role in the name, nft's type and flags, and its elements as text."""

    role: str
    kind: str
    flags: str
    elements: tuple[str, ...]
    counted: bool = False
    shared: str = ""  # the name of a named list's set, which stays when the rule ends and others use it

    def name(self, rule_id: str) -> str:
        """Return the set's name as one of this rule."""
        return self.shared or set_of(rule_id, self.role)


class NftLine(Struct, frozen=True):
    """A line of a rule; the match on the enable set goes before the statement."""

    chain: str
    family: int
    conditions: str
    statement: str
    counted: str = ""  # a condition whose set counts by element: asked behind the allow-list


class NftRule(Struct, frozen=True):
    """A rule's sets and lines."""

    layout: Layout
    sets: tuple[NftSet, ...]
    lines: tuple[NftLine, ...]

    @property
    def families(self) -> tuple[int, ...]:
        """The families that its lines are about."""
        return tuple(sorted({line.family for line in self.lines}))


def address_set(
    role: str, family: int, prefixes: Sequence[Prefix], *, counted: bool = False, shared: str = ""
) -> NftSet:
    """Return a set of prefixes without those inside others, which nft refuses.

    One that is never refilled, a rule's own, is a hash if it holds single addresses only.
    """
    kept = outermost(prefixes)
    is_hashed = role in _OWN_ROLES and not shared and all(item.length == item.bits for item in kept)
    flags = HASHED if is_hashed else INTERVALS
    return NftSet(f"{role}{family}", TYPES[family], flags, tuple(map(str, kept)), counted, shared)


_PORTED, _PAIRED = "{ip} saddr . meta l4proto . th dport", "{ip} saddr . {ip} daddr"


def list_set(family: int, entries: KeyedRows[Any], shared: str) -> tuple[str, NftSet]:
    """Return what a packet's fields are called that are looked up, and a named list's set of them."""
    address = TYPES[family]
    fields, kind = (
        (_PORTED, f"{address} . inet_proto . inet_service")
        if of_ports(entries)
        else (_PAIRED, f"{address} . {address}")
    )
    found = NftSet(f"src{family}", kind, INTERVALS, tuple(elements_of(entries)), True, shared)
    return fields.format(ip="ip" if family == 4 else "ip6"), found


def elements_of(entries: KeyedRows[Any]) -> list[str]:
    """Return elements without those inside others, which nft refuses; raises FwtopError (code 2)."""
    kept = entries.outermost()
    if (why := why_crossing(kept)) is not None:
        raise FwtopError(f"{why}; nothing was changed", 2)
    if of_ports(kept):
        names = {6: "tcp", 17: "udp"}
        return [f"{one.prefix} . {names[one.protocol]} . {one.low}" for one in kept.entries()]
    return [" . ".join(str(one).split(",")) for one in kept.entries()]


def why_crossing(sources: Sequence[Prefix]) -> str | None:
    """Return why nft can't hold pairs, as some overlap without one holding the other; None if it can."""
    found = sources.outermost().crossing() if of_pairs(sources) else None
    if found is None:
        return None
    return f"nftables can't hold pairs that overlap as {found[0]} and {found[1]} do: use ipset"


def listed_as(element: str) -> str:
    """Return an element of a set as named lists write it."""
    source, *rest = element.split(" . ")
    if len(rest) == 2:
        shown = f"[{source}]" if ":" in source else source
        return f"{shown}:{rest[1]}/{rest[0]}"
    return ",".join((source, *rest))


def outermost(prefixes: Sequence[Prefix]) -> list[Prefix]:
    """Return the prefixes of one family that lie within no other, sorted."""
    kept: list[Prefix] = []
    for prefix in sorted(set(prefixes)):
        if not kept or not kept[-1].contains(prefix):
            kept.append(prefix)
    return kept


def set_of(rule_id: str, role: str) -> str:
    """Return the name of a rule's set."""
    return f"r{rule_id}-{role}"


def list_set_of(name: str, family: int) -> str:
    """Return the name of a named list's set."""
    return f"list-{name}-{family}"


def set_lines(table: str, rule_id: str, item: NftSet) -> list[str]:
    """Return the commands that create and fill a rule's set."""
    name = f"{table} {item.name(rule_id)}"
    lines = [set_line(name, item)]
    return [*lines, f"add element {name} {{ {', '.join(item.elements)} }}"] if item.elements else lines


def set_line(name: str, item: NftSet) -> str:
    """Return the command that creates a set."""
    flags, counter = f" {item.flags};" if item.flags else "", " counter;" if item.counted else ""
    return f"add set {name} {{ type {item.kind};{flags}{counter} }}"


_ORDER = (*PORTS, TCP_FLAGS, *SEGMENT, *IP, FRAGMENT)
_WORD = 16  # bytes that a register of nf_tables holds
_FURTHEST = 255  # nft_payload keeps offsets in a byte
_SHORT_HEADER = 8  # UDP, and ICMP's common part


def field_words(match: Match, family: int) -> list[str] | None:
    """Return header fields and payload in nft's words, None where no packet of this family can match."""
    words: list[str] = []
    protocol = match.protocol
    if match.icmp_type is not None:
        mine = ICMP if family == 4 else ICMPV6
        if protocol not in (None, mine):
            return None
        words.append(f"meta l4proto {mine} {'icmp' if family == 4 else 'icmpv6'} type {match.icmp_type}")
    elif protocol is not None:
        words.append(f"meta l4proto {protocol}")
    if protocol is None and (match.sport, match.dport) != (None, None):
        words.append(f"meta l4proto {{ {', '.join(map(str, sorted(PORTED)))} }}")
    if match.reads_tcp and protocol != TCP:
        raise FwtopError("fields of TCP need --proto tcp; nothing was installed", 2)
    for field in _ORDER:
        condition = field.of(match)
        if condition is None:
            continue
        said = field.nft(condition, family) if family in field.families else None
        if said is None:
            return None
        words.append(said)
    for item in match.payload:
        words += payload_words(item, protocol)
    return words


def payload_words(item: PayloadMatch, protocol: int | None) -> list[str]:
    """Return raw expressions for bytes at an offset of the transport payload; raises FwtopError (code 2)."""
    if item.offset is None:
        raise FwtopError(
            "netdev ingress finds bytes at an offset only: use fwtop match, or --via xdp; nothing was "
            "installed", 2,
        )  # fmt: skip
    if protocol in (None, TCP, UDP):  # @ih follows the TCP header's length (Linux 5.16)
        base, start = "ih", item.offset
        words = ["meta l4proto { 6, 17 }"] if protocol is None else []
    else:
        base, start, words = "th", item.offset + _SHORT_HEADER, []
    for at in range(0, len(item.data), _WORD):
        part, care = item.data[at : at + _WORD], item.compared_bits[at : at + _WORD]
        if start + at > _FURTHEST:
            raise FwtopError(
                f"nftables reads up to byte {_FURTHEST} of the payload; nothing was installed", 2
            )
        place = f"@{base},{8 * (start + at)},{8 * len(part)}"
        want = bytes(byte & bits for byte, bits in zip(part, care, strict=True))
        mask = f" & 0x{care.hex()}" if care != b"\xff" * len(care) else ""
        words.append(f"{place}{mask} == 0x{want.hex()}")
    return words
