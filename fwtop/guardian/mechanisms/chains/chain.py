"""fwtop's own chains in table raw: hooked before all others, removed with the last rule; and read back.

One `iptables-restore --noflush` transaction a family. The state before the first rule (was there a table
raw, a base chain?) is remembered by the caller, so that `undo` can leave the rule set as it was.

A new rule goes into the variant of iptables in use. It stays in that one as long as it lives, whatever is in
use when the next guardian starts: packets pass both.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct

from fwtop.guardian.mechanisms.chains.table_raw import (
    TABLE,
    TableState,
    is_dormant,
    native,
    read_nft,
    read_own,
    removal,
    table_of,
    wake_command,
)
from fwtop.kernel.programs import CommandError
from fwtop.model.errors import FwtopError
from fwtop.netfilter import iptables, nf_tables, nft
from fwtop.netfilter.iptables import (
    LOCK_SECONDS,
    LOCKED,
    NFT,
    REMOVAL_LOCK_SECONDS,
    Variant,
    loaded_tables,
)
from fwtop.rules.kind import HOOK_CHAINS

if TYPE_CHECKING:
    from fwtop.guardian.mechanisms.chains.beside import Beside


_ATTEMPTS = 3
_ALL_THERE = frozenset(HOOK_CHAINS)  # nothing of the table is ours to remove


class Chains(Struct, frozen=True):
    """fwtop's chains in one iptables variant."""

    variant: Variant

    @property
    def beside(self) -> Beside:
        """The lines beside others' rules on states."""
        from fwtop.guardian.mechanisms.chains.beside import Beside  # few guardians have such a rule

        return Beside(self.variant)

    def read(self, family: int) -> TableState:
        """Read table raw with counters; reading changes nothing.

        In nf_tables only our chains are read, and what leads to them: a foreign rule set of any length, or
        one with native rules that iptables refuses to list, keeps no rule from ending.
        """
        if self.variant.name != NFT:
            if TABLE not in loaded_tables(family):
                return TableState()
            return table_of(self.variant.read(family, TABLE))
        return read_nft(family)

    def may_hold_rules(self) -> bool:
        """Return whether the kernel has a table raw of this variant, or nf_tables at all."""
        if self.variant.name != NFT:
            return any(TABLE in loaded_tables(family) for family in (4, 6))
        return bool(nf_tables.generation())

    def is_dormant(self, family: int) -> bool:
        """Return whether somebody switched table raw off: packets pass none of its chains then."""
        return self.variant.name == NFT and is_dormant(family)

    def own_lines(self, family: int) -> TableState:
        """Read only our chains, but not what leads to them."""
        if self.variant.name != NFT:
            return self.read(family)
        return read_own(family, nf_tables.table_chains(native(family)) or {})[0]

    def refuses(self, family: int) -> bool:
        """Say whether iptables can't list table raw because of somebody's native rules."""
        return self.variant.name == NFT and self.variant.read(family, TABLE).refused

    def writable(self, family: int) -> TableState:
        """Read table raw to change it; raises FwtopError (code 3) where no packet would pass our chains.

        iptables jumps from whatever has the name of a base chain.
        """
        state = self.read(family)
        if self.variant.name == NFT:
            for loose in nf_tables.unhooked_chains(native(family)) & HOOK_CHAINS.keys():
                line = f"chain {loose} of table raw (IPv{family}) is no base chain: no packet passes it"
                raise FwtopError(f"{line}; nothing was changed", 3)
            if state.dormant:
                line = f"table raw (IPv{family}) is dormant: no packet passes it; nothing was changed"
                raise FwtopError(f"{line}; {wake_command(family)} wakes it", 3)
        return state

    def native_chains(self, family: int) -> frozenset[str] | None:
        """Return the chains that table raw has in nf_tables, None if there is no such table.

        `iptables-nft-save` shows base chains that don't exist, so the kernel is asked. Legacy tables can't be
        removed once loaded: for them there is nothing to remember.
        """
        if self.variant.name != NFT:
            return _ALL_THERE
        chains = nf_tables.table_chains(native(family))
        return frozenset(chains) if chains is not None else None

    def remove(self, family: int, rule_ids: set[str], before: frozenset[str] | None) -> bool:
        """Delete the lines of rules, and fwtop's chains with the last one; returns whether nothing is left.

        `before` is what `native_chains` said before the first rule: what was not there then goes too,
        if nobody else uses it now. Removing what is not there is no error. Raises FwtopError; chains that
        somebody else's rule keeps in place are empty then.
        """
        for attempt in range(_ATTEMPTS):
            state = self.read(family)
            try:
                if not self._remove_once(family, state, rule_ids):
                    break
            except FwtopError as error:
                if isinstance(error, CommandError) and error.status == LOCKED:
                    raise
                if attempt == _ATTEMPTS - 1:  # otherwise somebody changed the table meanwhile
                    self._remove_once(family, state, rule_ids, keep_chains=True)
                    raise
        if state.chains:
            return False
        self._leave_as_before(family, state, before)
        return True

    def _remove_once(
        self, family: int, state: TableState, rule_ids: set[str], *, keep_chains: bool = False
    ) -> bool:
        """Remove the lines of rules that `state` lists; returns whether there were any.

        `keep_chains`: chains that no rule uses any more are emptied, and those that jump to them left alone.
        """
        lines = removal(state, family, rule_ids, keep_chains=keep_chains)
        if lines and state.by_handle:
            nft.execute(lines)
        elif lines:
            self.apply(family, "\n".join(["*raw", *lines, "COMMIT", ""]), REMOVAL_LOCK_SECONDS)
        return bool(lines)

    def apply(self, family: int, transaction: str, lock_seconds: int = LOCK_SECONDS) -> None:
        """Run one transaction; raises FwtopError with what iptables said."""
        self.variant.restore(family, transaction, lock_seconds=lock_seconds)

    def _leave_as_before(self, family: int, state: TableState, before: frozenset[str] | None) -> None:
        if self.variant.name != NFT or before == _ALL_THERE:
            return
        now = self.native_chains(family)
        if now is None:
            return
        ours = {hook for hook in HOOK_CHAINS if hook in now and (before is None or hook not in before)}
        unused = [hook for hook in sorted(ours) if not state.base_chains.get(hook)]
        if unused:
            self.apply(family, "*raw\n" + "".join(f"-X {hook}\n" for hook in unused) + "COMMIT\n")
        if before is None and now <= set(unused):
            words = ["table", *native(family).split()]
            if nft.printed(*words).split() == [*words, "{", "}"]:
                nft.execute([f"delete {' '.join(words)}"])


class Variants:
    """The chains of one namespace, by variant."""

    def __init__(self, in_use: Chains) -> None:
        self.in_use = in_use
        self._of: dict[str, Chains] = {}  # by rule

    @cached_property
    def _other(self) -> Chains | None:
        found = iptables.other_than(self.in_use.variant)
        return Chains(found) if found is not None else None

    def there(self) -> list[Chains]:
        """Return the chains that may hold lines, those in use first."""
        other = self._other
        return [self.in_use, other] if other is not None and other.may_hold_rules() else [self.in_use]

    def of(self, rule_id: str) -> Chains:
        """Return the chains that a rule's lines belong in."""
        return self._of.get(rule_id, self.in_use)

    def all_of(self, rule_id: str) -> list[Chains]:
        """Return where a rule's lines may be, its own variant first."""
        mine = self.of(rule_id)
        return [mine, *(chains for chains in self.there() if chains is not mine)]

    def assign(self, rule_id: str, name: str) -> None:
        """Note the variant that a rule was put into."""
        known = [self.in_use, *([self._other] if self._other is not None else [])]
        self._of[rule_id] = next((item for item in known if item.variant.name == name), self.in_use)

    def forget(self, rule_ids: Iterable[str]) -> None:
        """Forget rules that ended."""
        for rule_id in rule_ids:
            self._of.pop(rule_id, None)
