"""A rule's lines beside others' in table filter: one transaction a family, found again by their set.

Each asks a set of the rule first, so that it has no effect once the set is empty or its time is over.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from fwtop.model.rule import Match
from fwtop.netfilter.iptables import LEGACY, LOCK_SECONDS, REMOVAL_LOCK_SECONDS, Variant, loaded_tables
from fwtop.netfilter.saved import Line
from fwtop.netfilter.states.stateless import Insert, from_below, inserts
from fwtop.rules.objects import BESIDE
from fwtop.rules.xtables import set_name

FAMILIES = (4, 6)
_OWN = re.compile(rf"--match-set fwtop-(\d+)-{BESIDE}[46] ")


class Inserts(Struct, frozen=True):
    """The lines of all rules in table filter of one iptables variant."""

    variant: Variant

    def wanted(self, services: Sequence[Match]) -> list[Insert]:
        """Return the lines that untracked services need; raises FwtopError."""
        found: list[Insert] = []
        for family in FAMILIES:
            mine = [match for match in services if family in match.families]
            found += inserts(self.read(family), mine, family) if mine else []
        return found

    def plan(self, rule_id: str, services: Sequence[Match]) -> list[str]:
        """Return the commands that `install` amounts to; raises FwtopError."""
        return [
            f"{self.variant.program(item.family)} -t filter {_command(rule_id, item)}  # {item.why}"
            for item in from_below(self.wanted(services))
        ]

    def install(self, rule_id: str, services: Sequence[Match]) -> None:
        """Put in a rule's lines, of which none is there; raises FwtopError."""
        items = self.wanted(services)
        for family in FAMILIES:
            lines = [_command(rule_id, item) for item in from_below(items) if item.family == family]
            self._apply(family, lines)

    def remove(self, rule_ids: set[str]) -> None:
        """Take out the lines of rules; raises FwtopError. What is not there is no error."""
        for family in FAMILIES:
            mine = [line for line in self.read(family) if _rule_of(line) in rule_ids]
            doomed = sorted(mine, key=lambda line: (line.chain, -line.number))
            self._apply(family, [f"-D {line.chain} {line.number}" for line in doomed], REMOVAL_LOCK_SECONDS)

    def contents(self, rule_id: str) -> list[str]:
        """Return what a rule's lines say; raises FwtopError."""
        lines = (line for family in FAMILIES for line in self.read(family))
        return [f"{line.family} {line.chain} {line.text}" for line in lines if _rule_of(line) == rule_id]

    def read(self, family: int) -> list[Line]:
        """Return the lines of table filter; raises FwtopError. Never makes the kernel load a legacy table."""
        if self.variant.name == LEGACY and "filter" not in loaded_tables(family):
            return []
        return [*self.variant.read(family, "filter").lines]

    def _apply(self, family: int, lines: list[str], lock_seconds: int = LOCK_SECONDS) -> None:
        if lines:
            text = "\n".join(["*filter", *lines, "COMMIT", ""])
            self.variant.restore(family, text, lock_seconds=lock_seconds)


def _rule_of(line: Line) -> str:
    found = _OWN.search(line.text)
    return found[1] if found else ""


def _command(rule_id: str, item: Insert) -> str:
    asks = ("-m", "set", "--match-set", set_name(rule_id, item.family, BESIDE), "src")
    return item.line(asks)
