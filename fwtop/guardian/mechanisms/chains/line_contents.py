"""Whether the lines in fwtop's chains of table raw say what they said when they were written."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fwtop.guardian.mechanisms.baseline import Baseline, digest, head_key
from fwtop.guardian.mechanisms.chains.chain import Chains
from fwtop.guardian.mechanisms.chains.chain_text import own_lines
from fwtop.guardian.mechanisms.chains.table_state import TableState
from fwtop.rules.objects import OWN_CHAINS, PORT_CHAINS


class LineContents:
    """The lines of rules, and those of the chains themselves, in both variants and families."""

    def __init__(self, baseline: Baseline) -> None:
        self._baseline = baseline

    def note(
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

    def forget(self, rule_ids: Iterable[str]) -> None:
        """Forget rules that ended."""
        names = set(rule_ids)
        self._baseline.forget(lambda key: key.rpartition("/rule/")[2] in names)

    def forget_chains(self, chains: Chains, family: int) -> None:
        """Forget all of a family, whose chains are gone."""
        place = _place(chains, family)
        self._baseline.forget(lambda key: key.startswith(f"{place}/"))


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
