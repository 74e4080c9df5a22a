"""Rules in fwtop's own nftables tables: installed and removed in one transaction each."""

from __future__ import annotations

import itertools
import re
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from fwtop.guardian.allow.allowlist import AllowList
from fwtop.guardian.failpoints import Failpoint, Failpoints
from fwtop.guardian.mechanisms.mechanism import (
    HEAD_CHANGED,
    Changed,
    Count,
    Expected,
    Mechanism,
    Remains,
    Shortfall,
    Wanted,
    each,
)
from fwtop.guardian.mechanisms.tables import state
from fwtop.guardian.mechanisms.tables.contents import NftContents, difference
from fwtop.kernel.links import Link
from fwtop.kernel.programs import CommandError
from fwtop.model.addresses.address import Prefix, says_more
from fwtop.model.addresses.roles import Passes
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, Mode, Rule
from fwtop.model.text import safe_text
from fwtop.netfilter import nf_tables, nft
from fwtop.rules.kind import KernelObjects, Layer
from fwtop.rules.nft_objects import (
    CONNECTIONS,
    LAYOUTS,
    NETDEV,
    PROXY,
    Layout,
    NftRule,
    elements_of,
    list_set_of,
    outermost,
    set_line,
    set_lines,
    set_of,
)
from fwtop.rules.xtables import COUNTED_ELEMENTS

if TYPE_CHECKING:  # numpy, which a guardian without lists needn't carry
    from fwtop.guardian.mechanisms.chains.list_sets import ListDelta
    from fwtop.model.addresses.list_rows import Rows

_KINDS = {NETDEV.table: Kind.NFTABLES, PROXY.table: Kind.SYNPROXY, CONNECTIONS.table: Kind.CONNLIMIT}
_PLAIN_NAME = re.compile(r"[\w.@-]{1,15}")


class NftTables(Mechanism):
    """fwtop's tables in this namespace. `interfaces` returns those that packets arrive on."""

    layers = (Layer.NETDEV,)

    def __init__(
        self, failpoints: Failpoints, contents: NftContents, interfaces: Callable[[], list[Link]]
    ) -> None:
        self.contents = contents
        self._failpoints = failpoints
        self._interfaces = interfaces
        self._allowed: dict[tuple[str, int], Passes] = {}
        self._in_use: set[str] = set()  # tables that have rules; the others are not read again
        self._hooked: dict[str, set[int]] = {}  # by table: interfaces that had a base chain
        self._list_sets: set[str] = set()  # those of named lists
        self._compared: tuple[int, dict[str, str]] = 0, {}  # rule set's number, shortfall by rule and table

    def is_used(self, objects: KernelObjects) -> bool:  # noqa: D102
        return isinstance(objects.instead, NftRule)

    def plan(self, wanted: Wanted, *, follows: bool) -> list[str]:  # noqa: ARG002
        """Return the transaction as text, after nft has checked it; raises FwtopError."""
        lines = self._transaction(wanted)
        _apply(lines, check=True)
        return [f"nft {state.shortened(line)}" for line in lines]

    def install(self, wanted: Wanted) -> str:
        """Install a rule in one transaction; returns where it runs. Raises FwtopError."""
        layout = _rule_of(wanted).layout
        _wake(layout)
        _apply(self._transaction(wanted))
        self._note_installed(wanted)
        self._failpoints.reached(Failpoint.NFT)
        if not layout.per_interface:
            return ""
        return f"netdev ingress of {', '.join(safe_text(link.name) for link in self._interfaces())}"

    def change(self, changes: Sequence[Changed]) -> None:
        """Replace lines by their handles, or the whole rule, with what they counted; in one transaction."""
        for one in changes:
            if one.rule.mode is not Mode.OFF:
                self.renew(one)
        layouts = {_rule_of(one).layout.table: _rule_of(one).layout for one in changes}
        tables = {name: state.read_table(layout) for name, layout in layouts.items()}
        lines: list[str] = []
        for one in changes:
            rule, before = _rule_of(one), one.before.instead
            table = tables[rule.layout.table]
            replaced = None
            if isinstance(before, NftRule):
                replaced = state.replacement_lines(rule.layout, table, one.rule.id, before, rule)
            lines += self._instead(one, table) if replaced is None else replaced
        _apply(lines)
        for one in changes:
            self.contents.note_rule(one.rule.id, _rule_of(one))

    def _instead(self, wanted: Wanted, table: state.Table, *, heads_anew: bool = False) -> list[str]:
        """Return the commands that put a rule in place of what is left of it, with what that has counted."""
        left = state.removal_lines(_rule_of(wanted).layout, table, {wanted.rule.id})
        return [*left, *self._transaction(wanted, heads_anew=heads_anew)]

    def restore(self, wanted: Wanted) -> None:
        """Install a rule again in place of what is left of it, in one transaction; raises FwtopError."""
        layout = _rule_of(wanted).layout
        _wake(layout)
        _apply(self._instead(wanted, state.read_table(layout), heads_anew=True))
        self._note_installed(wanted, heads_anew=True)
        self._failpoints.reached(Failpoint.REPAIR_NFT)

    def _note_installed(self, wanted: Wanted, *, heads_anew: bool = False) -> None:
        rule = _rule_of(wanted)
        self._remember(rule.layout, wanted.allow, heads_anew=heads_anew)
        self.contents.note_rule(wanted.rule.id, rule)
        self._in_use.add(rule.layout.table)
        self._list_sets |= {item.shared for item in rule.sets if item.shared}

    def prepare_list(self, delta: ListDelta) -> state.NftListChange:
        """Return the transaction that changes a named list's sets; raises FwtopError."""
        edits: list[state.SetEdit] = []
        there = state.read_table(NETDEV).sets if self._list_sets else set()
        for family in (4, 6):
            name = list_set_of(delta.name, family)
            if name in self._list_sets & there:
                before, after = (_elements(rows, family) for rows in (delta.before, delta.after))
                edits.append(state.SetEdit(name, before, after))
        return state.NftListChange(NETDEV, edits, self._apply_edits)

    def _apply_edits(self, edits: Iterable[state.SetEdit], lines: list[str]) -> None:
        if lines:
            _apply(lines)
            self.contents.note_sets(NETDEV, [edit.name for edit in edits])

    def rebuild_list(self, name: str, rows: Rows) -> None:
        """Put exactly these prefixes into a named list's sets; raises FwtopError."""
        mine = [(family, list_set_of(name, family)) for family in (4, 6)]
        wanted = [
            state.SetEdit(own, frozenset(), _elements(rows, family))
            for family, own in mine
            if own in self._list_sets
        ]
        self._apply_edits(wanted, [line for edit in wanted for line in state.refill_lines(NETDEV, edit)])

    def tidy_lists(self, used: Collection[str]) -> None:
        """Delete the sets of named lists that no rule uses; raises FwtopError."""
        gone = {
            name
            for name in self._list_sets
            if (ours := state.LIST_SET.fullmatch(name)) and ours[1] not in used
        }
        if not gone:
            return
        there = state.read_table(NETDEV).sets
        if doomed := [f"delete set {NETDEV.table} {name}" for name in sorted(gone & there)]:
            _apply(doomed)
        self._list_sets -= gone

    def renew(self, wanted: Wanted) -> None:
        """Set the timeout of a rule's enable set, with the allow-list as it should be."""
        rule_id, rule, allow = wanted.rule.id, _rule_of(wanted), wanted.allow
        if set_of(rule_id, "on") not in state.read_table(rule.layout).sets:
            raise FwtopError(f"rule {rule_id} is gone from the kernel; nothing was changed")
        stale = self._is_stale(rule.layout, allow)
        sets, leading = _allow_lines(rule.layout, allow) if stale else ([], [])
        _apply([*sets, *leading, *state.enable_lines(rule_id, rule, wanted.seconds)])
        self._remember(rule.layout, allow)

    def disable(self, rule_ids: set[str]) -> None:
        """Empty the enable sets of rules, which then match nothing; missing sets are no error."""
        for layout in self._used():
            for rule_id in sorted(rule_ids):
                try:
                    nft.execute([f"flush set {layout.table} {set_of(rule_id, 'on')}"])
                except CommandError as error:
                    if not nft.is_missing(error):
                        raise

    def remove(self, rule_ids: set[str]) -> None:
        """Remove rules, and a table with its last one; missing ones are no error."""
        each(lambda layout: self._remove_from(layout, rule_ids), LAYOUTS)

    def _remove_from(self, layout: Layout, rule_ids: set[str]) -> None:
        _wake(layout)
        table = state.read_table(layout)
        if not table.chains:
            return
        if table.rule_ids() <= rule_ids and not table.shared:
            _apply([f"delete table {layout.table}"])
            self._allowed = {key: old for key, old in self._allowed.items() if key[0] != layout.table}
            self._hooked.pop(layout.table, None)
            self._in_use.discard(layout.table)
            self._list_sets -= table.sets
            self.contents.forget_table(layout)
            self._failpoints.reached(Failpoint.NFT_REMOVED)
        elif doomed := state.removal_lines(layout, table, rule_ids):
            _apply(doomed)
            self.contents.forget_rules(rule_ids)
            self._failpoints.reached(Failpoint.NFT_REMOVED)

    def present(self, expected: Expected) -> bool:
        """Return whether the kernel has all lines and sets of a rule."""
        rule_id, rule = expected.rule.id, _rule_of(expected)
        table = state.read_table(rule.layout)
        wanted = {set_of(rule_id, "on"), *(item.name(rule_id) for item in rule.sets)}
        self._list_sets |= {item.shared for item in rule.sets if item.shared and item.shared in table.sets}
        lines = sum(found[0] == rule_id for found in table.rules)
        if wanted <= table.sets and lines == len(state.rule_lines(rule_id, rule)):
            self.contents.note_rule(rule_id, rule, anew=False)
            return True
        return False

    def shortfall(self, expected: Expected) -> Shortfall | None:
        """Return what the kernel lacks of a rule; read when the rule set is another. Raises FwtopError."""
        if text := self._once(expected.rule.id, lambda: self._lines_short(expected)):
            return Shortfall(text)
        text = self.allow_shortfall(_rule_of(expected).layout)
        return Shortfall(text, elements_only=True) if text else None

    def _once(self, what: str, compare: Callable[[], str]) -> str:
        """Compare something once as long as the rule set is the same."""
        now = nf_tables.generation()
        if not now or now != self._compared[0]:
            self._compared = now, {}
        texts = self._compared[1]
        if what not in texts:
            texts[what] = compare()
        return texts[what]

    def _lines_short(self, expected: Expected) -> str:
        """Describe damage to a rule's lines, to what leads to them, or to its sets; "" if none."""
        rule_id, rule = expected.rule.id, _rule_of(expected)
        layout, where = rule.layout, f"table {rule.layout.table}"
        if nf_tables.is_dormant(layout.table):
            return f"{where} is dormant: packets pass none of its chains"
        table = state.read_table(layout)
        if not self.present(expected):
            return f"lines or sets of it are gone from {where}"
        wanted = state.chains_of(layout, self._filled(layout))
        broken = [name for name in wanted if len(table.others.get(name, ())) != len(wanted[name])]
        if broken:
            return f"{HEAD_CHANGED} {broken[0]} in {where} were changed"
        if layout.per_interface and (bare := self._unhooked(layout, table)):
            return f"nothing leads to chain {next(iter(layout.chains))} in {where} any more{bare}"
        return self.contents.shortfall(rule_id, rule, self._heads(layout))

    def _heads(self, layout: Layout) -> dict[str, list[str]]:
        """Return the first lines of all chains, as far as they are known."""
        found = state.chains_of(layout, self._filled(layout))
        if layout.per_interface:
            found |= {f"in-{index}": state.base_lines(layout) for index, _ in socket.if_nameindex()}
        return found

    def _unhooked(self, layout: Layout, table: state.Table) -> str:
        """Name an interface that had a base chain and has lost it; "" if none has."""
        names = {index: name for index, name in socket.if_nameindex()}
        wanted = len(state.base_lines(layout))
        now = {index for index in names if len(table.others.get(f"in-{index}", ())) == wanted}
        before = self._hooked.setdefault(layout.table, set())
        before |= now
        lost = before & names.keys() - now
        if not now:
            return " from any interface"
        return f" from the ingress of {safe_text(names[min(lost)])}" if lost else ""

    def rule_ids(self) -> set[str]:
        """Return the ids of all rules with any object in fwtop's tables, which are active then."""
        for layout in LAYOUTS:
            _wake(layout)
        self._in_use = {layout.table for layout in LAYOUTS}  # as long as they were not read
        found = {layout.table: state.read_table(layout).rule_ids() for layout in LAYOUTS}
        self._in_use = set()
        self._in_use |= {table for table, ids in found.items() if ids}
        return {rule_id for ids in found.values() for rule_id in ids}

    def remains(self, rule_id: str) -> Remains | None:
        """Read a rule's enable set, which has the clock."""
        for layout in LAYOUTS:
            try:
                elements = nft.elements(layout.table, set_of(rule_id, "on"))
            except CommandError:
                continue
            left = (int(item["elem"].get("expires", 0)) for item in elements if "elem" in item)
            mine = [rule for rule in nf_tables.rules(layout.table) if rule.comment == f"fwtop-{rule_id}"]
            mode = Mode.DROP if any(rule.drops for rule in mine) else Mode.COUNT
            return Remains(_KINDS[layout.table], Match(), max(left, default=0), mode)
        return None

    def counts(self) -> dict[str, Count]:
        """Return packets and bytes of each rule, summed over its counters."""
        found: dict[str, Count] = {}
        for layout in self._used():
            for rule_id, _, _, packets, size in state.read_table(layout).rules:
                found[rule_id] = found.get(rule_id, Count(0, 0)).plus(Count(packets, size))
        return found

    def entries(self, rule: Rule, most: int) -> dict[str, int]:
        """Return what the sets of a rule, or of the named list that it is on, count by element."""
        return {} if len(rule.match.sources) > COUNTED_ELEMENTS else state.entry_counters(rule, top=most)

    def refresh_allow(self, allow: AllowList) -> None:
        """Update the allow-list in tables that have rules; tries each before it raises FwtopError."""

        def refresh(layout: Layout) -> None:
            if self._is_stale(layout, allow) and state.read_table(layout).chains:
                _apply(itertools.chain(*_allow_lines(layout, allow)))
                self._remember(layout, allow)

        each(refresh, self._used())

    def allow_shortfall(self, layout: Layout) -> str:
        """Name a set of the allow-list that was changed, "" if none; raises FwtopError."""

        def compare() -> str:
            return next((text for item in self._filled(layout) if (text := difference(layout, item))), "")

        return self._once(layout.table, compare)

    def _filled(self, layout: Layout) -> list[Passes]:
        """Return what this guardian put into a table's allow-list, by family."""
        keys = ((layout.table, family) for family in (4, 6))
        return [self._allowed[key] for key in keys if key in self._allowed]

    def _is_stale(self, layout: Layout, allow: AllowList) -> bool:
        """Return whether a table's allow-list is another, or somebody changed or removed its sets."""
        if any(self._allowed.get((layout.table, family)) != allow.passes(family) for family in (4, 6)):
            return True
        try:
            return bool(self.allow_shortfall(layout))
        except FwtopError:
            return True  # its sets are gone

    def _transaction(self, wanted: Wanted, *, heads_anew: bool = False) -> list[str]:
        """Return the commands that install a rule; `heads_anew`: and write all that leads to it again."""
        rule_id, rule, allow = wanted.rule.id, _rule_of(wanted), wanted.allow
        layout, table = rule.layout, state.read_table(rule.layout)
        if table.foreign:
            raise FwtopError(f"there is a table {layout.table} that is not fwtop's; nothing was changed")
        sets, leading = _allow_lines(layout, allow)
        lines = [f"add table {layout.table}", *sets]
        lines += [*_chain_lines(layout, table, state.role_chains(), anew=heads_anew), *leading]
        lines += _chain_lines(
            layout, table, dict.fromkeys(layout.chains, state.head(layout)), anew=heads_anew
        )
        if layout.per_interface:
            lines += self._base_chains(layout, table, anew=heads_anew)
        for item in rule.sets:
            if heads_anew and item.shared in table.sets:
                lines += state.refill_lines(
                    layout, state.SetEdit(item.shared, frozenset(), frozenset(item.elements))
                )
            elif item.counted and item.name(rule_id) in table.sets:  # of a rule that is there
                edit = state.SetEdit(item.name(rule_id), frozenset(), frozenset(item.elements))
                lines += [set_line(f"{layout.table} {edit.name}", item), *state.refill_lines(layout, edit)]
            else:
                lines += set_lines(layout.table, rule_id, item)
        lines += state.enable_lines(rule_id, rule, wanted.seconds)
        if layout.per_interface:
            lines += [
                f"add chain {layout.table} {state.rule_chain(rule_id, family)}" for family in rule.families
            ]
        counted = [line[3:] for line in table.rules if line[0] == rule_id]  # of one that is there
        for chain, text in state.rule_lines(rule_id, rule):
            if counted and state.with_counts(text) != text:
                text = state.with_counts(text, *map(sum, zip(*counted, strict=True)))  # noqa: PLW2901
                counted = []
            lines.append(f'add rule {layout.table} {chain} {text} comment "fwtop-{rule_id}"')
        return lines

    def _base_chains(self, layout: Layout, table: state.Table, *, anew: bool) -> list[str]:
        lines, wanted = [], state.base_lines(layout)
        places = self._interfaces()
        if not places:
            raise FwtopError("no interface is up at whose ingress a rule could be; nothing was installed")
        for link in places:
            chain = f"in-{link.index}"
            there = table.others.get(chain, [])
            if len(there) == len(wanted) and not anew:
                continue
            lines += [f"delete rule {layout.table} {chain} handle {handle}" for handle in there]
            if not _PLAIN_NAME.fullmatch(link.name):
                raise FwtopError(
                    f"nftables can't name interface {safe_text(link.name)!r}; nothing was installed"
                )
            lines.append(f"add chain {layout.table} {chain} {{ {layout.per_interface.format(link.name)} }}")
            lines += [f"add rule {layout.table} {chain} {text}" for text in wanted]
        return lines

    def _used(self) -> list[Layout]:
        return [layout for layout in LAYOUTS if layout.table in self._in_use]

    def _remember(self, layout: Layout, allow: AllowList, *, heads_anew: bool = False) -> None:
        for family in (4, 6):
            self._allowed[layout.table, family] = allow.passes(family)
        self.contents.note_heads(layout, self._heads(layout), anew=heads_anew)


def _rule_of(expected: Expected) -> NftRule:
    """Return a rule as nft has it: only those that have one get here."""
    rule = expected.objects.instead
    if not isinstance(rule, NftRule):
        raise FwtopError(f"rule {expected.rule.id} is none of nftables'")
    return rule


def _allow_lines(layout: Layout, allow: AllowList) -> tuple[list[str], list[str]]:
    passes = [allow.passes(family) for family in (4, 6)]
    sets = [line for item in passes for line in state.allow_lines(layout, item)]
    return sets, [line for item in passes for line in state.listed_lines(layout, item)]


def _chain_lines(
    layout: Layout, table: state.Table, chains: Mapping[str, list[str]], *, anew: bool
) -> list[str]:
    """Return the commands that create chains with their first lines, and put back what somebody flushed.

    Without those nobody would be spared any more.
    """
    lines = []
    for name, first in chains.items():
        there, hook = table.others.get(name, []), layout.chains.get(name)
        if name not in table.chains:
            lines.append(f"add chain {layout.table} {name}" + (f" {{ {hook} }}" if hook else ""))
            lines += [f"add rule {layout.table} {name} {text}" for text in first]
        elif anew or len(there) != len(first):
            lines += [f"delete rule {layout.table} {name} handle {handle}" for handle in there]
            lines += [f"insert rule {layout.table} {name} {text}" for text in reversed(first)]
    return lines


def _apply(lines: Iterable[str], *, check: bool = False) -> None:
    try:
        nft.execute(lines, check=check)
    except CommandError as error:
        raise FwtopError(f"{error}; nothing was changed", 3 if nft.is_missing(error) else 1) from None


def _wake(layout: Layout) -> None:
    table = layout.table
    if nf_tables.is_dormant(table) and all(nf_tables.has_set(table, name) for name in state.MARKS):
        _apply([f"add table {table}"])


def _elements(rows: Rows, family: int) -> frozenset[Prefix] | frozenset[str]:
    mine = rows.of_family(family)
    if says_more(mine):
        return frozenset(elements_of(mine))
    return frozenset(outermost(tuple(mine)))
