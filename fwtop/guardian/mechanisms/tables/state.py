"""fwtop's own nftables tables, in nft's words and as the kernel lists them: rules, allow-list, named lists.

A rule consists of sets named `rID-…` and lines with the comment `fwtop-ID`. Each line matches the rule's
enable set, whose elements have a timeout in the kernel: the dead man's switch. That lookup comes after all
other conditions, so that packets that the rule isn't about don't pay for it. At netdev ingress, where all
packets pass, they don't pay for the allow-list, either: a rule's conditions lead to a chain of its own, which
begins with the allow-list. In other tables the chains with verdicts do. The roles are in further chains: only
packets of listed addresses are compared with them. Source: nft(8).

The sets of named lists are changed in one transaction, and keep their counters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Any

from msgspec import Struct, field, structs

from fwtop.kernel.programs import CommandError
from fwtop.model.addresses import roles
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import Passes
from fwtop.model.rule import Rule
from fwtop.netfilter import nf_tables, nft
from fwtop.rules.nft_objects import (
    HASHED,
    NETDEV,
    TYPES,
    Layout,
    NftRule,
    NftSet,
    address_set,
    list_set_of,
    listed_as,
    set_line,
    set_of,
)

_RULE_SET = re.compile(r"r(\d+)-\w+")
LIST_SET = re.compile(r"list-(.+)-[46]")
_COMMENT = re.compile(r"fwtop-(\d+)")
_BASE_CHAIN = re.compile(r"in-\d+")
_RULE_CHAIN = re.compile(r"r(\d+)-[46]")
_ALLOW_SETS = frozenset(
    f"{role}{family}"
    for role in ("allow", "peers", "logins", "gateways", "behind", "routers", "hosts", "nets")
    for family in (4, 6)
)
MARKS = frozenset({"allow4", "allow6"})  # of a table that fwtop made, whatever its version
_MOST_DELETED = 8  # elements: each takes nft 60 ms in a set of 10,000, filling the set anew 0.9 s in all
_SHOWN_ELEMENTS = 5
# Neighbour discovery, as in chain.py: hop limit 255 proves that it comes from the link (RFC 4861).
_NEIGHBOURS = "icmpv6 type { 134, 135, 136 } ip6 hoplimit 255 accept"


class Table(Struct):
    """A table as the kernel lists it; empty for somebody else's table of the same name."""

    foreign: bool = False  # there, but not made by fwtop
    shared: bool = False  # ours, and somebody put things of their own in
    chains: set[str] = field(default_factory=set)
    sets: set[str] = field(default_factory=set)
    rules: list[tuple[str, str, int, int, int]] = field(default_factory=list)  # id, chain, handle, counts
    others: dict[str, list[int]] = field(default_factory=dict)  # chain → handles of its first lines

    def rule_ids(self) -> set[str]:
        """Return the ids of the rules that have sets or lines here."""
        named = {rule_id for name in self.sets if (rule_id := rule_of(name)) is not None}
        chained = {found[1] for name in self.chains if (found := _RULE_CHAIN.fullmatch(name))}
        return named | chained | {rule_id for rule_id, *_ in self.rules}


def rule_of(set_name: str) -> str | None:
    """Return the id of the rule that a set belongs to; None of the allow-list's and of named lists."""
    found = _RULE_SET.fullmatch(set_name)
    return found[1] if found else None


def read_table(layout: Layout) -> Table:
    """Read one of fwtop's tables; empty if it does not exist. Raises FwtopError."""
    name = layout.table
    if nf_tables.is_missing(name):
        return Table()
    sets = nf_tables.set_names(name)
    table = Table(chains={*(nf_tables.table_chains(name) or ())}, sets={*sets})
    table.shared = any(sets.values()) or nf_tables.has_objects(name)
    for rule in nf_tables.rules(name):
        if comment := _COMMENT.fullmatch(rule.comment):
            table.rules.append((comment[1], rule.chain, rule.handle, rule.packets, rule.bytes))
        else:
            table.others.setdefault(rule.chain, []).append(rule.handle)
    if not table.sets >= MARKS:  # they come in one transaction with all the rest
        return Table(foreign=True)
    own = {name for name in table.sets if name in _ALLOW_SETS or rule_of(name)}
    own |= {name for name in table.sets if LIST_SET.fullmatch(name)}
    own |= {name for name in table.chains if _BASE_CHAIN.fullmatch(name) or _RULE_CHAIN.fullmatch(name)}
    own |= {*role_chains(), *map(listed_chain, (4, 6)), *layout.chains}
    table.shared = table.shared or bool((table.sets | table.chains) - own)
    return table


def chains_of(layout: Layout, allowed: Sequence[Passes]) -> dict[str, list[str]]:
    """Return a table's chains with their first rules, as they spare what is `allowed`, by family.

    A chain comes before those that jump to it.
    """
    listed = {listed_chain(passes.family): listed_rules(passes) for passes in allowed}
    return role_chains() | listed | dict.fromkeys(layout.chains, head(layout))


def removal_lines(layout: Layout, table: Table, rule_ids: set[str]) -> list[str]:
    """Return the commands that remove rules and keep the table."""
    places = [(chain, handle) for rule_id, chain, handle, _, _ in table.rules if rule_id in rule_ids]
    doomed = [f"delete rule {layout.table} {chain} handle {handle}" for chain, handle in places]
    gone = [
        name for name in sorted(table.sets) if (found := _RULE_SET.fullmatch(name)) and found[1] in rule_ids
    ]
    chains = [
        name for name in sorted(table.chains) if (own := _RULE_CHAIN.fullmatch(name)) and own[1] in rule_ids
    ]
    doomed += [f"{verb} chain {layout.table} {name}" for name in chains for verb in ("flush", "delete")]
    return doomed + [f"delete set {layout.table} {name}" for name in gone]


def replacement_lines(
    layout: Layout, table: Table, rule_id: str, before: NftRule, rule: NftRule
) -> list[str] | None:
    """Return the commands that give a rule's lines and sets other contents; None: it has not the same ones.

    Lines and elements that count go on with what was counted. Raises FwtopError.
    """
    changed = []
    for old, new in zip_longest(before.sets, rule.sets):
        if old is None or new is None or structs.replace(old, elements=new.elements) != new:
            return None
        if old.elements != new.elements and not new.shared:
            edit = SetEdit(new.name(rule_id), frozenset(old.elements), frozenset(new.elements))
            changed += refill_lines(layout, edit, counted=new.counted)
    wanted = rule_lines(rule_id, rule)
    mine = [line for line in table.rules if line[0] == rule_id]
    if sorted(chain for chain, _ in wanted) != sorted(line[1] for line in mine):
        return None
    for chain in dict.fromkeys(chain for chain, _ in wanted):
        texts = [text for own, text in wanted if own == chain]
        there = [line for line in mine if line[1] == chain]
        for text, (_, _, handle, packets, size) in zip(texts, there, strict=True):
            place, counted = f"{layout.table} {chain} handle {handle}", with_counts(text, packets, size)
            changed.append(f'replace rule {place} {counted} comment "fwtop-{rule_id}"')
    return changed


def with_counts(text: str, packets: int = 0, size: int = 0) -> str:
    """Return a line whose counter begins with what was counted before."""
    return re.sub(r"\bcounter\b", f"counter packets {packets} bytes {size}", text, count=1)


def entry_counters(rule: Rule, *, top: int) -> dict[str, int]:
    """Return the `top` sources of a rule at netdev ingress that matched most: prefix → packets."""
    counted: list[tuple[int, str]] = []
    for family in (4, 6):
        listed, own = rule.list_name, set_of(rule.id, f"src{family}")
        try:
            counts = element_counts(NETDEV, own if listed is None else list_set_of(listed, family))
        except CommandError:
            continue
        counted += [(packets, name) for name, (packets, _) in counts.items()]
    return {listed_as(name): packets for packets, name in sorted(counted, reverse=True)[:top]}


class SetEdit(Struct, frozen=True):
    """A set, and the elements in it before and after a change, none within another."""

    name: str
    before: frozenset[Prefix] | frozenset[str]
    after: frozenset[Prefix] | frozenset[str]


class NftListChange:
    """A change of a named list's sets, which can be unmade."""

    def __init__(
        self, layout: Layout, edits: Iterable[SetEdit], apply: Callable[[list[SetEdit], list[str]], None]
    ) -> None:
        """Take what differs; `apply` runs commands as one transaction, and raises FwtopError."""
        self._layout = layout
        self._edits = [edit for edit in edits if edit.before != edit.after]
        self._apply = apply
        self._is_made = False

    def commit(self) -> None:
        """Make the change; raises FwtopError, and nothing is changed then."""
        self._carry_out(self._edits)
        self._is_made = True

    def revert(self) -> None:
        """Unmake the change if it was made; raises FwtopError."""
        if self._is_made:
            self._carry_out([SetEdit(edit.name, edit.after, edit.before) for edit in self._edits])

    def conclude(self) -> None:
        """Do nothing: the kernel keeps no copies."""

    def _carry_out(self, edits: list[SetEdit]) -> None:
        self._apply(edits, [line for edit in edits for line in _change_lines(self._layout, edit)])


def _change_lines(layout: Layout, edit: SetEdit) -> list[str]:
    """Return the commands of a change: what goes may overlap what comes, so it goes first."""
    gone = edit.before - edit.after
    if len(gone) > _MOST_DELETED:
        return refill_lines(layout, edit)
    return [
        *_element_lines("delete", layout, edit.name, sorted(map(str, gone))),
        *_element_lines("add", layout, edit.name, sorted(map(str, edit.after - edit.before))),
    ]


def refill_lines(layout: Layout, edit: SetEdit, *, counted: bool = True) -> list[str]:
    """Return the commands that fill a set anew; what stays starts with its counters. Raises FwtopError."""
    counts = element_counts(layout, edit.name) if counted else {}
    elements = []
    for text in sorted(map(str, edit.after)):
        packets, size = counts.get(text, (0, 0))
        elements.append(f"{text} counter packets {packets} bytes {size}" if packets else text)
    return [f"flush set {layout.table} {edit.name}", *_element_lines("add", layout, edit.name, elements)]


def element_counts(layout: Layout, name: str) -> dict[str, tuple[int, int]]:
    """Return packets and bytes of each element of a counted set; raises FwtopError."""
    elements = [item["elem"] for item in nft.elements(layout.table, name)]
    return {
        _element(item["val"]): (int(item["counter"]["packets"]), int(item["counter"]["bytes"]))
        for item in elements
    }


def _element(value: str | int | dict[str, Any]) -> str:
    if isinstance(value, dict) and "concat" in value:
        return " . ".join(map(_element, value["concat"]))
    if isinstance(value, dict):
        return f"{value['prefix']['addr']}/{value['prefix']['len']}"
    return str(value)


def _element_lines(verb: str, layout: Layout, name: str, elements: Sequence[str]) -> list[str]:
    return [f"{verb} element {layout.table} {name} {{ {', '.join(elements)} }}"] if elements else []


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
