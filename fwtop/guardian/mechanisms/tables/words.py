"""Rules in nft syntax, for fwtop's own nftables tables.

A rule consists of sets named `rID-…` and lines with the comment `fwtop-ID`. Each line matches the rule's
enable set, whose elements have a timeout in the kernel: the dead man's switch. That lookup comes after all
other conditions, so that packets that the rule isn't about don't pay for it. At netdev ingress, where all
packets pass, they don't pay for the allow-list, either: a rule's conditions lead to a chain of its own, which
begins with the allow-list. In other tables the chains with verdicts do. The roles are in further chains: only
packets of listed addresses are compared with them. Source: nft(8).
"""

from __future__ import annotations

from fwtop.model.addresses import roles
from fwtop.model.addresses.roles import Passes
from fwtop.rules.nft_objects import HASHED, TYPES, Layout, NftRule, NftSet, address_set, set_line, set_of

_SHOWN_ELEMENTS = 5
# Neighbour discovery, as in chain.py: hop limit 255 proves that it comes from the link (RFC 4861).
_NEIGHBOURS = "icmpv6 type { 134, 135, 136 } ip6 hoplimit 255 accept"


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
    family, address = passes.family, TYPES[passes.family]
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
        NftSet(f"hosts{family}", address, HASHED, tuple(map(str, hosts))),
        address_set("nets", family, nets),
    )
    lines = []
    for item in made:
        name = f"{layout.table} {item.role}"
        lines += [set_line(name, item), f"flush set {name}"]
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
