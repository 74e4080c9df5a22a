"""fwtop's own nftables tables as the kernel lists them: what is there, whose it is, what it counted."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct, field

from fwtop.guardian.mechanisms.tables.lists import element_counts
from fwtop.guardian.mechanisms.tables.words import head, listed_chain, listed_rules, role_chains
from fwtop.kernel.programs import CommandError
from fwtop.model.addresses.roles import Passes
from fwtop.model.rule import Rule
from fwtop.netfilter import nf_tables
from fwtop.rules.nft_objects import NETDEV, Layout, list_set_of, set_of

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
    return {name: packets for packets, name in sorted(counted, reverse=True)[:top]}
