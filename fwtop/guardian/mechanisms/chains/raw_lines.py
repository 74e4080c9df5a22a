"""The lines of rules in table raw: of both families, each in the variant of iptables that its rule is in.

Written and removed in one transaction a family; what they say is kept, to see later whether somebody changed
it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

from fwtop.guardian.mechanisms.chains.chain import Chains, Variants
from fwtop.guardian.mechanisms.chains.table_raw import Listed, TableState, add_text, own_lines, restore_text
from fwtop.guardian.mechanisms.mechanism import Baseline, Count, digest, each, head_key, readable
from fwtop.guardian.records.former import FormerState
from fwtop.model.rule import Mode
from fwtop.netfilter.iptables import NFT
from fwtop.rules.kind import HOOK_CHAINS, OWN_CHAINS, PORT_CHAINS, ChainLine

FAMILIES = (4, 6)


class RawLines:
    """The lines of one namespace."""

    def __init__(self, variants: Variants, baseline: Baseline, memory: FormerState) -> None:
        self.variants = variants
        self._baseline = baseline
        self._memory = memory
        self._carried: dict[str, Count] = {}  # by rule: what lines counted that were written again

    def present(self, rule_id: str, lines: Sequence[ChainLine]) -> bool:
        """Return whether all of a rule's lines are there; raises FwtopError.

        They are looked for in its own variant of iptables first, and belong to the one that has them.
        """
        for chains in self.variants.all_of(rule_id):
            there = {family: chains.own_lines(family) for family in FAMILIES}
            if sum(len(state.lines_of(rule_id)) for state in there.values()) >= len(lines):
                self.variants.assign(rule_id, chains.variant.name)
                for family in {line.family for line in lines}:
                    self._note(chains, family, rule_id, there[family], rule_anew=False)
                return True
        return False

    def forget(self, rule_ids: set[str]) -> None:
        """Forget rules that ended."""
        self.variants.forget(rule_ids)
        self._baseline.forget(lambda key: key.rpartition("/rule/")[2] in rule_ids)
        for rule_id in rule_ids:
            self._carried.pop(rule_id, None)

    def rule_ids(self) -> set[str]:
        """Return the ids of all rules with readable lines."""
        return {rule_id for state in self._own_lines() for rule_id in state.rule_ids()}

    def mode_of(self, rule_id: str) -> Mode:
        """Return whether a rule's lines do anything but count."""
        lines = [line for state in self._own_lines() for line in state.lines_of(rule_id)]
        return Mode.COUNT if lines and not any(line.target for line in lines) else Mode.DROP

    def counts(self) -> dict[str, Count]:
        """Return what the lines of each rule matched, leaving out what can't be read."""
        found = dict(self._carried)
        for state in self._own_lines():
            for rule_id in state.rule_ids():
                found[rule_id] = found.get(rule_id, Count(0, 0)).plus(_sum(state.lines_of(rule_id)))
        return found

    def is_empty(self, family: int) -> bool:
        """Return whether our chains of a family have no line, in either variant; raises FwtopError."""
        return not any(any(chains.own_lines(family).chains.values()) for chains in self.variants.there())

    def remove(self, rule_ids: set[str]) -> None:
        """Remove the lines of rules from both families and variants; tries all before it raises."""

        def remove(place: tuple[Chains, int]) -> None:
            chains, family = place
            nothing_left = chains.remove(family, rule_ids, self._memory.before(family))
            if nothing_left:
                self._baseline.forget(lambda key: key.startswith(f"{_place(chains, family)}/"))
            if nothing_left and chains.variant.name == NFT:
                self._memory.forget_before(family)

        each(remove, itertools.product(self.variants.there(), FAMILIES))

    def find_variant(self, rule_id: str) -> str:
        """Return the variant of iptables that has lines of a rule without a record."""
        for chains in self.variants.all_of(rule_id):
            if any(chains.own_lines(family).lines_of(rule_id) for family in FAMILIES):
                self.variants.assign(rule_id, chains.variant.name)
        return self.variants.of(rule_id).variant.name

    def add(self, family: int, rule_id: str, lines: list[ChainLine]) -> None:
        """Append a rule's lines of a family, hooking the chains if necessary; raises FwtopError."""
        chains = self.variants.of(rule_id)
        before = self._read_to_change(chains, family)
        chains.apply(family, add_text(before, family, lines))
        made = {line.hook for line in lines if HOOK_CHAINS[line.hook] not in before.chains}
        self._note(chains, family, rule_id, chains.own_lines(family), made)

    def restore(
        self, family: int, wanted: Mapping[str, list[ChainLine]], *, heads_anew: bool = False
    ) -> None:
        """Write the lines of rules again, at once; what they counted goes on, in the kernel or here.

        ip6tables-nft 1.8.9 starts every counter at 0, whatever it is told.
        """
        for name in {self.variants.of(rule_id).variant.name for rule_id in wanted}:
            mine = {
                rule_id: lines
                for rule_id, lines in wanted.items()
                if self.variants.of(rule_id).variant.name == name
            }
            chains = self.variants.of(next(iter(mine)))
            state = self._read_to_change(chains, family)
            chains.apply(family, restore_text(state, family, mine, heads_anew=heads_anew))
            there = chains.own_lines(family)
            for rule_id, lines in mine.items():
                anew = {line.hook for line in lines} if heads_anew else ()
                self._note(chains, family, rule_id, there, anew)
                self._carry(rule_id, _sum(state.lines_of(rule_id)), _sum(there.lines_of(rule_id)))

    def _carry(self, rule_id: str, before: Count, after: Count) -> None:
        if after.packets < before.packets:
            carried = self._carried.get(rule_id, Count(0, 0))
            self._carried[rule_id] = carried.plus(before).minus(after)

    def _note(
        self,
        chains: Chains,
        family: int,
        rule_id: str,
        there: TableState,
        heads_anew: Collection[str] = (),
        *,
        rule_anew: bool = True,
    ) -> None:
        """Take a rule's lines as they are, just written; so the first lines of the chains of some hooks.

        Those of other hooks only where nothing is known of them: somebody may have changed them before.
        """
        place = _place(chains, family)
        self._baseline.note(_rule_key(place, rule_id), _of_rule(there, rule_id), anew=rule_anew)
        for hook in OWN_CHAINS:
            for chain, head in _heads(family, hook, there).items():
                key = head_key(place, chain, head)
                self._baseline.note(key, _of_chain(there, chain), anew=hook in heads_anew)

    def changed(self, chains: Chains, family: int, rule_id: str, there: TableState) -> bool:
        """Return whether a rule's lines say something else, or others came that ask its sets."""
        return self._baseline.differs(_rule_key(_place(chains, family), rule_id), _of_rule(there, rule_id))

    def changed_head(self, chains: Chains, family: int, hook: str, there: TableState) -> str:
        """Name one of a hook's chains whose own lines say something else; "" if none does."""
        place = _place(chains, family)
        for chain, head in _heads(family, hook, there).items():
            if self._baseline.differs(head_key(place, chain, head), _of_chain(there, chain)):
                return chain
        return ""

    def note_beside(self, rule_id: str, found: Iterable[str]) -> None:
        """Take a rule's lines beside others' as they are, just written."""
        self._baseline.note(_rule_key("beside", rule_id), map(_digest, found), anew=True)

    def changed_beside(self, rule_id: str, found: Iterable[str]) -> bool:
        """Return whether those say something else."""
        return self._baseline.differs(_rule_key("beside", rule_id), map(_digest, found))

    def _own_lines(self) -> list[TableState]:
        """Return what is in our chains, of both variants and families, as far as that can be read."""
        places = itertools.product(self.variants.there(), FAMILIES)
        return [readable(partial(chains.own_lines, family), TableState()) for chains, family in places]

    def _read_to_change(self, chains: Chains, family: int) -> TableState:
        """Read a family's table, and keep what it was like before the first rule; raises FwtopError."""
        state = chains.writable(family)
        if not state.chains and chains.variant.name == NFT:  # a legacy table stays once it was loaded
            self._memory.remember_before(family, chains.native_chains(family))
        return state


def _sum(lines: list[Listed]) -> Count:
    counted = [line for line in lines if not line.passing]
    return Count(sum(line.packets for line in counted), sum(line.bytes for line in counted))


def _digest(text: str) -> str:
    return digest(text.encode())


def _place(chains: Chains, family: int) -> str:
    return f"{chains.variant.name}{family}"


def _rule_key(place: str, rule_id: str) -> str:
    return f"{place}/rule/{rule_id}"


def _of_rule(there: TableState, rule_id: str) -> list[str]:
    lines = ((chain, line) for chain in sorted(there.chains) for line in there.chains[chain])
    return [f"{chain} {line.content}" for chain, line in lines if line.rule_id == rule_id]


def _of_chain(there: TableState, chain: str) -> list[str]:
    return [line.content for line in there.chains[chain] if not line.rule_id]


def _heads(family: int, hook: str, there: TableState) -> dict[str, list[str]]:
    wanted = own_lines(family, hook, ports=PORT_CHAINS.get(hook) in there.chains)
    return {chain: head for chain, head in wanted.items() if chain in there.chains}
