"""fwtop's chains in both variants of iptables: where a rule's lines are, and what else may hold some.

A new rule goes into the variant in use. It stays in that one as long as it lives, whatever is in use when the
next guardian starts: packets pass both.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from fwtop.guardian.mechanisms.chains.chain import Chains
from fwtop.netfilter import iptables


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
