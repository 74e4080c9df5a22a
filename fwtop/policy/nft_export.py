"""A policy as an nftables table of its own, which nft(8) replaces in one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fwtop.model.addresses.prefix_list import ATTACH_ABOVE
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule
from fwtop.policy.exports import ALLOW, FAMILIES, Exported, comment, heading, texts
from fwtop.rules.exports.nft import OPEN, OUT, PORTS, RAW, Plain, plain
from fwtop.rules.nft_objects import TYPES, list_set_of, set_lines

TABLE = "inet exported-policy"
_PART = ATTACH_ABOVE  # elements of a command


def nft_lines(policy: Exported, name: str) -> Iterator[str]:
    """Yield the input of `nft -f`; raises FwtopError (code 2) before the first line if nft can't say it."""
    rules = [(rule, _plain(rule)) for rule in policy.rules]
    yield from heading(name, f"Load it with nft -f; take it out with: nft delete table {TABLE}")
    yield f"add table {TABLE}"
    yield f"delete table {TABLE}"
    yield f"add table {TABLE}"
    for listed in policy.lists:
        for family in FAMILIES:
            yield from _list_lines(listed, family, [*texts(policy.entries(listed, family))])
    for rule, made in rules:
        for item in made.sets:
            yield from set_lines(TABLE, rule.id, item) if not item.shared else ()
    yield from _chains()
    for rule, made in rules:
        yield comment(rule)
        yield from (f"add rule {TABLE} {chain} {text}" for chain, text in made.lines)


def _list_lines(name: str, family: int, elements: Sequence[str]) -> Iterator[str]:
    own = f"{TABLE} {list_set_of(name, family)}"
    yield f"add set {own} {{ type {TYPES[family]}; flags interval; auto-merge; }}"
    for start in range(0, len(elements), _PART):
        yield f"add element {own} {{ {', '.join(elements[start : start + _PART])} }}"


def _chains() -> Iterator[str]:
    for chain, hook in (
        (PORTS, ""),
        (RAW, "type filter hook prerouting priority raw; policy accept;"),
        (OUT, "type filter hook output priority raw; policy accept;"),
        (OPEN, "type filter hook prerouting priority mangle; policy accept;"),
    ):
        yield f"add chain {TABLE} {chain}" + (f" {{ {hook} }}" if hook else "")
    yield f'add rule {TABLE} {OUT} oif "lo" return'
    for chain in (RAW, OPEN):
        yield f'add rule {TABLE} {chain} iif "lo" return'
        # Without neighbour discovery there is no network.
        yield f"add rule {TABLE} {chain} icmpv6 type {{ 134, 135, 136 }} ip6 hoplimit 255 return"
        for family, ip in ((4, "ip"), (6, "ip6")):
            yield f"add rule {TABLE} {chain} {ip} saddr @{list_set_of(ALLOW, family)} return"
    yield f"add rule {TABLE} {RAW} jump {PORTS}"


def _plain(rule: Rule) -> Plain:
    try:
        return plain(rule)
    except FwtopError as error:
        why = str(error).partition("; nothing was ")[0]
        raise FwtopError(
            f"nftables can't say '{rule.summary}': {why}; nothing was written; use --format iptables or sh", 2
        ) from None
