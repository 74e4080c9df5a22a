"""Rules in nftables tables of our own: one transaction in, one out, the table gone with the last rule."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from fwtop.mitigate import nft_state
from fwtop.mitigate.allowlist import AllowList
from fwtop.mitigate.nft_state import Table
from fwtop.mitigate.nft_words import (
    LAYOUTS,
    Layout,
    NftRule,
    allow_lines,
    head,
    set_lines,
    set_of,
    shortened,
    switch_lines,
)
from fwtop.mitigate.run import CommandError, run
from fwtop.mitigate.steps import Step, Steps
from fwtop.model.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_PLAIN_NAME = re.compile(r"[\w.@-]{1,15}")


class NftTables:
    """Our tables in this namespace. `interfaces` says where packets come in."""

    def __init__(self, steps: Steps, interfaces: Callable[[], list[tuple[int, str]]]) -> None:
        self._steps = steps
        self._interfaces = interfaces
        self._allowed: dict[tuple[str, int], list[Prefix]] = {}
        self._in_use: set[str] = set()  # tables that have rules: others are not asked again and again

    def plan(self, rule_id: str, rule: NftRule, timeout_seconds: int, allow: AllowList) -> list[str]:
        """Return the transaction as text for people, tried without being done; raises FwtopError."""
        lines = self._transaction(rule_id, rule, allow, timeout_seconds)
        _apply(lines, check=True)
        return [f"nft {shortened(line)}" for line in lines]

    def install(self, rule_id: str, rule: NftRule, allow: AllowList, timeout_seconds: int) -> str:
        """Put a rule in, in one transaction; returns where it runs. Raises FwtopError, nothing changed."""
        _apply(self._transaction(rule_id, rule, allow, timeout_seconds))
        self._remember(rule.layout, allow)
        self._in_use.add(rule.layout.table)
        self._steps.reached(Step.NFT)
        if not rule.layout.per_interface:
            return ""
        return f"netdev ingress of {', '.join(safe_text(name) for _, name in self._interfaces())}"

    def renew(self, rule_id: str, rule: NftRule, timeout_seconds: int) -> None:
        """Set a rule's switch to another time."""
        if set_of(rule_id, "on") not in nft_state.read(rule.layout).sets:
            raise FwtopError(f"rule {rule_id} is gone from the kernel; nothing was changed")
        _apply(switch_lines(rule_id, rule, timeout_seconds))

    def remove(self, rule_ids: set[str]) -> None:
        """Take rules out, and a table with its last one; what is not there is no error."""
        for layout in LAYOUTS:
            table = nft_state.read(layout)
            if not table.chains:
                continue
            if table.rule_ids() <= rule_ids and not table.shared:
                _apply([f"delete table {layout.table}"])
                self._allowed = {key: old for key, old in self._allowed.items() if key[0] != layout.table}
                self._in_use.discard(layout.table)
                self._steps.reached(Step.UNNFT)
            elif doomed := nft_state.removal(layout, table, rule_ids):
                _apply(doomed)
                self._steps.reached(Step.UNNFT)

    def present(self, rule_id: str, rule: NftRule) -> bool:
        """Say whether the kernel has all lines and sets of a rule."""
        table = nft_state.read(rule.layout)
        wanted = {set_of(rule_id, role) for role in ("on", *(item.role for item in rule.sets))}
        return wanted <= table.sets and sum(found[0] == rule_id for found in table.rules) == len(rule.lines)

    def rule_ids(self) -> set[str]:
        """Return the ids of all rules of which our tables hold anything."""
        found = {layout.table: nft_state.read(layout).rule_ids() for layout in LAYOUTS}
        self._in_use |= {table for table, ids in found.items() if ids}
        return {rule_id for ids in found.values() for rule_id in ids}

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return packets and bytes of each rule, over its lines that count."""
        found: dict[str, tuple[int, int]] = {}
        for layout in self._used():
            for rule_id, _, _, packets, size in nft_state.read(layout).rules:
                before = found.get(rule_id, (0, 0))
                found[rule_id] = (before[0] + packets, before[1] + size)
        return found

    def refresh_allow(self, allow: AllowList) -> None:
        """Follow the allow-list where there are rules."""
        for layout in self._used():
            stale = any(
                self._allowed.get((layout.table, family)) != allow.of_family(family) for family in (4, 6)
            )
            if stale and nft_state.read(layout).chains:
                _apply(allow_lines(layout, allow))
                self._remember(layout, allow)

    def _transaction(self, rule_id: str, rule: NftRule, allow: AllowList, seconds: int) -> list[str]:
        layout, table = rule.layout, nft_state.read(rule.layout)
        if table.foreign:
            raise FwtopError(f"there is a table {layout.table} that is not fwtop's; nothing was changed")
        lines = [f"add table {layout.table}", *allow_lines(layout, allow)]
        for name, hook in layout.chains.items():
            if name not in table.chains:
                lines.append(f"add chain {layout.table} {name}" + (f" {{ {hook} }}" if hook else ""))
                lines += [f"add rule {layout.table} {name} {text}" for text in head(layout)]
        if layout.per_interface:
            lines += self._base_chains(layout, table)
        for item in rule.sets:
            lines += set_lines(layout, rule_id, item)
        lines += switch_lines(rule_id, rule, seconds)
        ask = f"{layout.switch_ask} @{set_of(rule_id, 'on')}"
        for chain, family, text in rule.lines:
            only = f"{layout.switch_ask} {layout.switch_elements[family]}"
            lines.append(f'add rule {layout.table} {chain} {ask} {only} {text} comment "fwtop-{rule_id}"')
        return lines

    def _base_chains(self, layout: Layout, table: Table) -> list[str]:
        lines = []
        places = self._interfaces()
        if not places:
            raise FwtopError("no interface is up at whose ingress a rule could be; nothing was installed")
        for index, name in places:
            chain = f"in-{index}"
            if chain in table.chains:
                continue
            if not _PLAIN_NAME.fullmatch(name):
                raise FwtopError(f"nftables can't name interface {safe_text(name)!r}; nothing was installed")
            lines.append(f"add chain {layout.table} {chain} {{ {layout.per_interface.format(name)} }}")
            lines.append(f"add rule {layout.table} {chain} jump {next(iter(layout.chains))}")
        return lines

    def _used(self) -> list[Layout]:
        return [layout for layout in LAYOUTS if layout.table in self._in_use]

    def _remember(self, layout: Layout, allow: AllowList) -> None:
        for family in (4, 6):
            self._allowed[layout.table, family] = allow.of_family(family)


def _apply(lines: Iterable[str], *, check: bool = False) -> None:
    try:
        run(["nft", *(["-c"] if check else []), "-f", "-"], text="\n".join(lines) + "\n")
    except CommandError as error:
        raise FwtopError(
            f"{error}; nothing was changed", 3 if nft_state.is_missing(str(error)) else 1
        ) from None
