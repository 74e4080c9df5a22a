"""A policy as an nftables table of its own, which nft(8) replaces in one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fwtop.model.addresses.prefix_list import ATTACH_ABOVE
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Level, Rule
from fwtop.policy.exports import ALLOW, FAMILIES, Exported, comment, heading, texts
from fwtop.rules.kinds.connlimit import mask_words
from fwtop.rules.nft_fields import field_words

TABLE = "inet exported-policy"
_TYPES = {4: "ipv4_addr", 6: "ipv6_addr"}
_IP = {4: "ip", 6: "ip6"}
_SYN = "tcp flags & (fin | syn | rst | ack) == syn"
_SIZE, _IDLE = 262_144, "10s"  # of a limit's table
_PEERS, _TALKING = 65_536, "180s"
_PART = ATTACH_ABOVE  # elements of a command


def nft_lines(policy: Exported, name: str) -> Iterator[str]:
    """Yield the input of `nft -f`; raises FwtopError (code 2) before the first line if nft can't say it."""
    rules = {rule.id: [*_rule_lines(rule)] for rule in policy.rules}
    yield from heading(name, f"Load it with nft -f; take it out with: nft delete table {TABLE}")
    yield f"add table {TABLE}"
    yield f"delete table {TABLE}"
    yield f"add table {TABLE}"
    for listed in policy.lists:
        for family in FAMILIES:
            yield from _list_lines(listed, family, [*texts(policy.entries(listed, family))])
    for rule in policy.rules:
        yield from _own_sets(rule)
    yield from _chains()
    for rule in policy.rules:
        yield comment(rule)
        for chain, text in rules[rule.id]:
            yield f"add rule {TABLE} {chain} {text}"


def _list_lines(name: str, family: int, elements: Sequence[str]) -> Iterator[str]:
    own = f"{TABLE} list-{name}-{family}"
    yield f"add set {own} {{ type {_TYPES[family]}; flags interval; auto-merge; }}"
    for start in range(0, len(elements), _PART):
        yield f"add element {own} {{ {', '.join(elements[start : start + _PART])} }}"


def _own_sets(rule: Rule) -> Iterator[str]:
    for family in rule.match.families:
        name, kind = f"{TABLE} {_set_of(rule, family)}", _TYPES[family]
        if _talks(rule):
            yield (
                f"add set {name} {{ type {kind} . inet_service; size {_PEERS}; flags dynamic, timeout; "
                f"timeout {_TALKING}; }}"
            )
        elif rule.limit is not None:
            kind += " . inet_service" if rule.limit.by_dport else ""
            yield (
                f"add set {name} {{ type {kind}; size {_SIZE}; flags dynamic, timeout; timeout {_IDLE}; }}"
            )
        elif rule.connections is not None:
            yield f"add set {name} {{ type {kind}; size {_PEERS}; flags dynamic; }}"


def _set_of(rule: Rule, family: int) -> str:
    return f"rule-{rule.id}-{family}"


def _talks(rule: Rule) -> bool:
    """Say whether a rule notes conversations: of a port of UDP whose open ones go on."""
    return rule.protection is not None and not rule.protection.strict and rule.match.protocol == 17


def _chains() -> Iterator[str]:
    for chain, hook in (
        ("ports", ""),
        ("raw", "type filter hook prerouting priority raw; policy accept;"),
        ("out", "type filter hook output priority raw; policy accept;"),
        ("open", "type filter hook prerouting priority mangle; policy accept;"),
    ):
        yield f"add chain {TABLE} {chain}" + (f" {{ {hook} }}" if hook else "")
    yield f'add rule {TABLE} out oif "lo" return'
    for chain in ("raw", "open"):
        yield f'add rule {TABLE} {chain} iif "lo" return'
        # Without neighbour discovery there is no network.
        yield f"add rule {TABLE} {chain} icmpv6 type {{ 134, 135, 136 }} ip6 hoplimit 255 return"
        for family, ip in _IP.items():
            yield f"add rule {TABLE} {chain} {ip} saddr @list-{ALLOW}-{family} return"
    yield f"add rule {TABLE} raw jump ports"


def _rule_lines(rule: Rule) -> Iterator[tuple[str, str]]:
    """Yield the chain and text of each line; raises FwtopError (code 2)."""
    for family in rule.match.families:
        fields = _fields(rule, family)
        if fields is None:
            continue
        of_family = " ".join([f"meta nfproto ipv{family}", *fields])
        if rule.protection is not None:
            yield from _port_lines(rule, family, of_family)
        elif rule.limit is not None:
            yield "raw", f"{of_family} {_limit_words(rule, family)} counter drop"
        elif rule.connections is not None:
            limit = rule.connections
            bits = limit.prefix_v4 if family == 4 else limit.prefix_v6
            counted = f"{_IP[family]} saddr{mask_words(family, bits)} ct count over {limit.most}"
            yield "open", f"{of_family} {_SYN} add @{_set_of(rule, family)} {{ {counted} }} counter drop"
        elif rule.list_name is not None:
            yield "raw", f"{of_family} {_IP[family]} saddr @list-{rule.list_name}-{family} counter drop"
        else:
            yield "raw", f"{of_family} counter drop"


def _fields(rule: Rule, family: int) -> list[str] | None:
    if rule.kind is Kind.STRING and any(item.offset is None for item in rule.match.payload):
        raise FwtopError(
            f"nftables finds bytes at an offset only, so it can't say '{rule.summary}'; nothing was written; "
            "give it an offset, or use --format iptables or sh",
            2,
        )
    return field_words(rule.match, family)


def _limit_words(rule: Rule, family: int) -> str:
    limit = rule.limit
    if limit is None:
        return ""
    bits = limit.prefix_v4 if family == 4 else limit.prefix_v6
    key = f"{_IP[family]} saddr{mask_words(family, bits)}" + (" . th dport" if limit.by_dport else "")
    rate = f"{limit.per_second} bytes/second" if limit.in_bytes else f"{limit.per_second}/second"
    burst = f"{limit.burst} {'bytes' if limit.in_bytes else 'packets'}"
    return f"update @{_set_of(rule, family)} {{ {key} limit rate over {rate} burst {burst} }}"


def _port_lines(rule: Rule, family: int, service: str) -> Iterator[tuple[str, str]]:
    protection, ip = rule.protection, _IP[family]
    if protection is None:
        return
    new = f"{service} {_SYN}" if rule.match.protocol == 6 and not protection.strict else service
    if _talks(rule):
        peers = _set_of(rule, family)
        known = f"{ip} saddr . udp sport"
        yield "ports", f"{service} {known} @{peers} update @{peers} {{ {known} }} return"
        answers = f"meta nfproto ipv{family} udp sport {rule.match.dport}"
        yield "out", f"{answers} update @{peers} {{ {ip} daddr . udp dport }}"
    if protection.level is Level.OPEN:
        yield "ports", f"{service} return"
        return
    for name in protection.lists if protection.level is Level.PROTECTED else ():
        yield "ports", f"{new} {ip} saddr @list-{name}-{family} return"
    yield "ports", f"{new} counter drop"
