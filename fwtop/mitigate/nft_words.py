"""What a rule is in nftables tables of our own, in nft's words.

A rule is some sets named `rID-…` and some lines with the comment `fwtop-ID`. Each line first asks the rule's
switch, a set whose elements have a kernel timeout: that is its dead man's switch. Every chain that decides
begins with the allow-list. Source: nft(8).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fwtop.mitigate.allowlist import AllowList
from fwtop.model.address import Prefix

_INTERVALS = "flags interval"
_TYPES = {4: "ipv4_addr", 6: "ipv6_addr"}
_SHOWN_ELEMENTS = 5
# Neighbour discovery, as in chain.py: hop limit 255 proves that it comes from the link (RFC 4861).
_NEIGHBOURS = "icmpv6 type { 134, 135, 136 } ip6 hoplimit 255 return"


@dataclass(frozen=True, slots=True)
class Layout:
    """A table of ours: its chains, and how a switch looks in it."""

    table: str  # family and name
    switch_type: str
    switch_elements: dict[int, str]
    switch_ask: str  # what a line's set is asked with
    chains: dict[str, str]  # name → its hook; "" for one that others jump to
    per_interface: str = ""  # a base chain for each interface, with this hook, jumps to the first chain


NETDEV = Layout(
    "netdev fwtop", "ether_type", {4: "0x0800", 6: "0x86dd"}, "meta protocol", {"rules": ""},
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
LAYOUTS = (NETDEV, PROXY)


@dataclass(frozen=True, slots=True)
class NftSet:
    """A set of a rule: its role in the name, nft's type and flags, and its elements as text."""

    role: str
    kind: str
    flags: str
    elements: tuple[str, ...]
    counted: bool = False


@dataclass(frozen=True, slots=True)
class NftRule:
    """What a rule is in a table of ours; a line is its chain, its family, its text after the switch."""

    layout: Layout
    sets: tuple[NftSet, ...]
    lines: tuple[tuple[str, int, str], ...]

    @property
    def families(self) -> tuple[int, ...]:
        """The families that its lines are about."""
        return tuple(sorted({family for _, family, _ in self.lines}))


def address_set(role: str, family: int, prefixes: Sequence[Prefix], *, counted: bool = False) -> NftSet:
    """Return a set of prefixes; those that lie within others are left out, as nft refuses them."""
    kept: list[Prefix] = []
    for prefix in sorted(set(prefixes)):
        if not kept or not kept[-1].contains(prefix):
            kept.append(prefix)
    return NftSet(f"{role}{family}", _TYPES[family], _INTERVALS, tuple(map(str, kept)), counted)


def set_of(rule_id: str, role: str) -> str:
    """Return the name of a rule's set."""
    return f"r{rule_id}-{role}"


def head(layout: Layout) -> list[str]:
    """Return the rules that every chain that decides begins with."""
    lines = ['iif "lo" return'] if not layout.per_interface else []
    return [*lines, "ip saddr @allow4 return", "ip6 saddr @allow6 return", _NEIGHBOURS]


def allow_lines(layout: Layout, allow: AllowList) -> list[str]:
    """Return what makes and fills the allow-list's sets anew."""
    lines = []
    for family in (4, 6):
        name = f"{layout.table} allow{family}"
        made = address_set("allow", family, allow.of_family(family))
        lines += [f"add set {name} {{ type {made.kind}; {made.flags}; }}", f"flush set {name}"]
        if made.elements:
            lines.append(f"add element {name} {{ {', '.join(made.elements)} }}")
    return lines


def set_lines(layout: Layout, rule_id: str, item: NftSet) -> list[str]:
    """Return what makes and fills a rule's set."""
    name = f"{layout.table} {set_of(rule_id, item.role)}"
    counter = " counter;" if item.counted else ""
    lines = [f"add set {name} {{ type {item.kind}; {item.flags};{counter} }}"]
    return [*lines, f"add element {name} {{ {', '.join(item.elements)} }}"] if item.elements else lines


def switch_lines(rule_id: str, rule: NftRule, seconds: int) -> list[str]:
    """Return what sets a rule's switch to a time.

    Flush first: nft can't change the timeout of an element that is there (before Linux 6.12).
    """
    name = f"{rule.layout.table} {set_of(rule_id, 'on')}"
    on = ", ".join(f"{rule.layout.switch_elements[family]} timeout {seconds}s" for family in rule.families)
    return [
        f"add set {name} {{ type {rule.layout.switch_type}; flags timeout; }}",
        f"flush set {name}",
        f"add element {name} {{ {on} }}",
    ]


def shortened(line: str) -> str:
    """Cut a long list of elements, for people."""
    head, brace, rest = line.partition(" { ")
    elements = rest.removesuffix(" }").split(", ")
    if not line.startswith("add element") or len(elements) <= _SHOWN_ELEMENTS:
        return line
    more = len(elements) - _SHOWN_ELEMENTS
    return f"{head}{brace}{', '.join(elements[:_SHOWN_ELEMENTS])} }}  # … and {more:,} more elements"
