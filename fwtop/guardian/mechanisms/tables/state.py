"""fwtop's own nftables tables as the kernel lists them: what is there, whose it is, what it counted.

The sets of named lists are changed in one transaction, and keep their counters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct, field

from fwtop.guardian.mechanisms.tables.words import head, listed_chain, listed_rules, role_chains
from fwtop.kernel.programs import CommandError
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import Passes
from fwtop.model.rule import Rule
from fwtop.netfilter import nf_tables, nft
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
_MOST_DELETED = 8  # elements: each takes nft 60 ms in a set of 10,000, filling the set anew 0.9 s in all


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


def refill_lines(layout: Layout, edit: SetEdit) -> list[str]:
    """Return the commands that fill a set anew; what stays starts with its counters. Raises FwtopError."""
    counts = element_counts(layout, edit.name)
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
