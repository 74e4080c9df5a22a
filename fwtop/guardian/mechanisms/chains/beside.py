"""The lines beside others' rules on states: in iptables' table filter, and in nft's own tables.

Only rules that have sets of their own for it have such lines, and others' rules are read for no other. Few
guardians have such a rule, so what reads and writes the lines is imported for the first one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fwtop.guardian.mechanisms.chains import sets
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Match
from fwtop.netfilter.iptables import Variant
from fwtop.rules.objects import BESIDE

if TYPE_CHECKING:
    from fwtop.guardian.mechanisms.chains.beside_nft import NftInserts
    from fwtop.guardian.mechanisms.chains.beside_xtables import Inserts

_SET = re.compile(rf"fwtop-(\d+)-{BESIDE}[46]")


class Beside:
    """The lines of all rules."""

    def __init__(self, variant: Variant) -> None:
        self._variant = variant

    @property
    def _xtables(self) -> Inserts:
        from fwtop.guardian.mechanisms.chains.beside_xtables import Inserts

        return Inserts(self._variant)

    @property
    def _native(self) -> NftInserts:
        from fwtop.guardian.mechanisms.chains.beside_nft import NftInserts

        return NftInserts(self._variant)

    def plan(self, rule_id: str, services: Sequence[Match]) -> list[str]:
        """Return the commands that `install` amounts to; raises FwtopError where one must be tracked."""
        if not services:
            return []
        self._require(services)
        return self._xtables.plan(rule_id, services) + self._native.plan(rule_id, services)

    def install(self, rule_id: str, services: Sequence[Match], timeout_seconds: int) -> None:
        """Put in a rule's lines, instead of those that are there; raises FwtopError."""
        if not services:
            return
        self.remove({rule_id})
        self._require(services)
        self._xtables.install(rule_id, services)
        self._native.install(rule_id, services, timeout_seconds)

    def _require(self, services: Sequence[Match]) -> None:
        from fwtop.netfilter.states.stateless import obstacles
        from fwtop.netfilter.states.tracking import service_name

        for match in services:
            if reasons := obstacles(self._variant, match):
                raise FwtopError(f"{service_name(match)} must be tracked: {reasons[0]}; nothing was changed")

    def renew(self, rule_id: str, timeout_seconds: int) -> None:
        """Set a new timeout; raises FwtopError. (Those of iptables ask the rule's ipsets.)"""
        self._native.renew(rule_id, timeout_seconds)

    def disable(self, rule_ids: set[str]) -> None:
        """Stop the effect of lines of nft; raises FwtopError. (Those of iptables end with their ipsets.)"""
        if mine := _with_lines(rule_ids):
            self._native.disable(mine)

    def remove(self, rule_ids: set[str]) -> None:
        """Take out the lines of rules; raises FwtopError. What is not there is no error."""
        if mine := _with_lines(rule_ids):
            self._xtables.remove(mine)
            self._native.remove(mine)

    def contents(self, rule_id: str) -> list[str]:
        """Return what a rule's lines and sets say; raises FwtopError."""
        return self._xtables.contents(rule_id) + self._native.contents(rule_id)


def _with_lines(rule_ids: set[str]) -> set[str]:
    return rule_ids & {found[1] for name in sets.names() if (found := _SET.fullmatch(name))}
