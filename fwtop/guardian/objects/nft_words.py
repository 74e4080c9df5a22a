"""Rules in nft syntax, for fwtop's own nftables tables.

A rule consists of sets named `rID-…` and lines with the comment `fwtop-ID`. Each line matches the rule's
enable set, whose elements have a timeout in the kernel: the dead man's switch. That lookup comes after all
other conditions, so that packets that the rule isn't about don't pay for it. At netdev ingress, where all
packets pass, they don't pay for the allow-list, either: a rule's conditions lead to a chain of its own, which
begins with the allow-list. In other tables the chains with verdicts do. The roles are in further chains: only
packets of listed addresses are compared with them. Source: nft(8).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from fwtop.model.addresses import roles
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import Passes

if TYPE_CHECKING:  # numpy, which a guardian without lists needn't carry
    from fwtop.model.addresses.port_rows import PortRows

_INTERVALS = "flags interval"
_HASHED = ""  # a set without flags: a lookup costs a fifth of that in a tree of intervals
_TYPES = {4: "ipv4_addr", 6: "ipv6_addr"}
_OWN_ROLES = ("src", "dst")
_SHOWN_ELEMENTS = 5
# Neighbour discovery, as in chain.py: hop limit 255 proves that it comes from the link (RFC 4861).
_NEIGHBOURS = "icmpv6 type { 134, 135, 136 } ip6 hoplimit 255 accept"


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
    flags = _HASHED if is_hashed else _INTERVALS
    return NftSet(f"{role}{family}", _TYPES[family], flags, tuple(map(str, kept)), counted, shared)


def port_set(family: int, entries: PortRows, shared: str) -> NftSet:
    """Return a named list's set of prefixes with ports."""
    kind = f"{_TYPES[family]} . inet_proto . inet_service"
    return NftSet(f"src{family}", kind, _INTERVALS, tuple(elements_of_ports(entries)), True, shared)


def elements_of_ports(entries: PortRows) -> list[str]:
    """Return elements without those inside others, which nft refuses."""
    names = {6: "tcp", 17: "udp"}
    return [f"{one.prefix} . {names[one.protocol]} . {one.low}" for one in entries.outermost().entries()]


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


def head(layout: Layout) -> list[str]:
    """Return the first rules of every chain with verdicts: what leads to the allow-list."""
    if layout.per_interface:  # each rule's own chain begins with it
        return []
    return ['iif "lo" return', *(f"{layout.only(family)} jump {listed_chain(family)}" for family in (4, 6))]


def base_lines(layout: Layout) -> list[str]:
    """Return what leads from an interface's chain to the chains with rules, one a family."""
    chains = zip((4, 6), layout.chains, strict=True)
    return [f"{layout.only(family)} goto {name}" for family, name in chains]


def listed_chain(family: int) -> str:
    """Return the name of the chain that leads packets of listed addresses to their roles."""
    return f"listed{family}"


def role_chains() -> dict[str, list[str]]:
    """Return the chains that compare packets with the roles; `accept` ends fwtop's base chain alone."""
    return {f"roles{family}": _roles(family) for family in (4, 6)}


def rule_chain(rule_id: str, family: int) -> str:
    """Return the name of a rule's own chain."""
    return f"r{rule_id}-{family}"


def rule_lines(rule_id: str, rule: NftRule) -> list[tuple[str, str]]:
    """Return all lines of a rule as (chain, text), without comments."""
    layout, found = rule.layout, []
    ask = f"{layout.enable_match} @{set_of(rule_id, 'on')}"
    for line in rule.lines:
        verdict = _joined(line.counted, ask, line.statement)
        if layout.per_interface:
            own = rule_chain(rule_id, line.family)
            found += [
                (own, f"jump {listed_chain(line.family)}"),
                (own, verdict),
                (line.chain, _joined(line.conditions, f"jump {own}")),
            ]
        else:
            found.append((line.chain, _joined(layout.only(line.family), line.conditions, verdict)))
    return found


def _joined(*words: str) -> str:
    return " ".join(filter(None, words))


def _roles(family: int) -> list[str]:
    """Return the allow-list's rules by role (roles.py); ports first, as most packets differ."""
    saddr = "ip saddr" if family == 4 else "ip6 saddr"
    peer, gateway = f"{saddr} . meta l4proto . th sport @peers{family}", f"{saddr} @gateways{family}"
    server, client = roles.DHCP_PORTS[family]
    numbers = ", ".join(map(str, (roles.ICMP[family], *roles.ROUTING)))
    conditions = [
        f"{saddr} @allow{family}",
        f"meta l4proto tcp tcp flags & (fin | syn | rst | ack) != syn {peer}",
        f"{saddr} . tcp dport @logins{family}",
        f"udp sport {roles.DNS_PORT} udp dport {roles.ASKING_PORTS}-65535 {peer}",
        f"udp sport {roles.NTP_PORT} {peer}",
        f"udp sport {server} udp dport {client} {peer}",
        f"udp dport {{ {', '.join(map(str, roles.BFD_PORTS))} }} {gateway}",
        f"tcp dport {roles.BGP_PORT} {gateway}",
        f"meta l4proto {{ {numbers} }} {gateway}",
        *_behind(family),
    ]
    return [f"{condition} accept" for condition in conditions]


def _behind(family: int) -> list[str]:
    """Return the conditions of conversations (roles.py): what comes from the peer's port, what goes to it."""
    ip = "ip" if family == 4 else "ip6"
    peers = f"{ip} saddr . meta l4proto . th sport . {ip} daddr @behind{family}"
    hosts = f"{ip} daddr . meta l4proto . th dport . {ip} saddr @behind{family}"
    opens_nothing = "meta l4proto tcp tcp flags & (fin | syn | rst | ack) != syn"
    bfd, routing = (", ".join(map(str, numbers)) for numbers in (roles.BFD_PORTS, roles.ROUTING))
    return [
        f"{opens_nothing} {peers}",
        f"{opens_nothing} tcp dport != {roles.DNS_PORT} {hosts}",
        f"udp sport {roles.DNS_PORT} udp dport {roles.ASKING_PORTS}-65535 {peers}",
        f"udp sport {roles.NTP_PORT} {peers}",
        f"udp dport {{ {bfd} }} {hosts}",
        f"meta l4proto {{ {routing} }} {ip} saddr . meta l4proto . {ip} daddr @routers{family}",
    ]


def allow_lines(layout: Layout, passes: Passes) -> list[str]:
    """Return the commands that create or refill a family's allow-list sets."""
    hosts, nets = passes.known_hosts, passes.known_networks
    family, address = passes.family, _TYPES[passes.family]
    networks = address_set("allow", family, passes.networks)
    peers = tuple(f"{who} . {protocol} . {port}" for who, protocol, port in passes.peers)
    logins = tuple(f"{who} . {port}" for who, port in passes.logins)
    ported = tuple(
        f"{item.peer} . {item.protocol} . {item.port} . {item.host}"
        for item in passes.behind
        if item.port != roles.ANY_PORT
    )
    routers = tuple(
        f"{item.peer} . {item.protocol} . {item.host}"
        for item in passes.behind
        if item.port == roles.ANY_PORT
    )
    made = (
        networks,
        NftSet(f"peers{family}", f"{address} . inet_proto . inet_service", "size 65535", peers),
        NftSet(f"logins{family}", f"{address} . inet_service", "size 65535", logins),
        NftSet(f"gateways{family}", address, "size 1024", tuple(map(str, passes.gateways))),
        NftSet(f"behind{family}", f"{address} . inet_proto . inet_service . {address}", "size 4096", ported),
        NftSet(f"routers{family}", f"{address} . inet_proto . {address}", "size 4096", routers),
        NftSet(f"hosts{family}", address, _HASHED, tuple(map(str, hosts))),
        address_set("nets", family, nets),
    )
    lines = []
    for item in made:
        name = f"{layout.table} {item.role}"
        lines += [_set_line(name, item), f"flush set {name}"]
        if item.elements:
            lines.append(f"add element {name} {{ {', '.join(item.elements)} }}")
    return lines


def listed_lines(layout: Layout, passes: Passes) -> list[str]:
    """Return the commands that create or refill a family's chain of what leads to the roles."""
    name = f"{layout.table} {listed_chain(passes.family)}"
    rules = [f"add rule {name} {text}" for text in listed_rules(passes)]
    return [f"add chain {name}", f"flush chain {name}", *rules]


def listed_rules(passes: Passes) -> list[str]:
    """Return the rules that lead from a listed address to its roles; they ask sets with elements only."""
    family, sets = passes.family, {"hosts": passes.known_hosts, "nets": passes.known_networks}
    saddr = "ip saddr" if family == 4 else "ip6 saddr"
    asked = [f"{saddr} @{role}{family} goto roles{family}" for role, elements in sets.items() if elements]
    return asked if family == 4 else [_NEIGHBOURS, *asked]


def set_lines(layout: Layout, rule_id: str, item: NftSet) -> list[str]:
    """Return the commands that create and fill a rule's set."""
    name = f"{layout.table} {item.name(rule_id)}"
    lines = [_set_line(name, item)]
    return [*lines, f"add element {name} {{ {', '.join(item.elements)} }}"] if item.elements else lines


def _set_line(name: str, item: NftSet) -> str:
    flags, counter = f" {item.flags};" if item.flags else "", " counter;" if item.counted else ""
    return f"add set {name} {{ type {item.kind};{flags}{counter} }}"


def enable_lines(rule_id: str, rule: NftRule, seconds: int) -> list[str]:
    """Return the commands that set the timeout of a rule's enable set.

    Flush first: nft can't change the timeout of an element that is there (before Linux 6.12).
    """
    name = f"{rule.layout.table} {set_of(rule_id, 'on')}"
    on = ", ".join(f"{rule.layout.enable_elements[family]} timeout {seconds}s" for family in rule.families)
    return [
        f"add set {name} {{ type {rule.layout.enable_type}; flags timeout; }}",
        f"flush set {name}",
        f"add element {name} {{ {on} }}",
    ]


def shortened(line: str) -> str:
    """Shorten a long list of elements for display."""
    head, brace, rest = line.partition(" { ")
    elements = rest.removesuffix(" }").split(", ")
    if not line.startswith("add element") or len(elements) <= _SHOWN_ELEMENTS:
        return line
    more = len(elements) - _SHOWN_ELEMENTS
    return f"{head}{brace}{', '.join(elements[:_SHOWN_ELEMENTS])} }}  # … and {more:,} more elements"
