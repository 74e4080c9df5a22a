"""Which of the sources on the screen an active rule covers already."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from fwtop.model.address import Prefix
from fwtop.model.rule import ACTIVE_STATES, RuleStatus
from fwtop.model.snapshot import Source, Sources


class Coverage:
    """The sources of the active rules as sets by prefix length: a look-up costs one step a length."""

    def __init__(self, statuses: Iterable[RuleStatus]) -> None:
        self._rules: list[tuple[str, frozenset[Prefix], frozenset[tuple[int, int]], str]] = []
        for status in statuses:
            if status.state in ACTIVE_STATES:
                sources = frozenset(status.rule.match.sources)
                lengths = frozenset((prefix.family, prefix.length) for prefix in sources)
                origin = status.rule.origin or ""
                self._rules.append((status.rule.id, sources, lengths, origin))

    def mark(self, sources: Sources) -> Sources:
        """Return the tables with `active_rule` set where a rule covers an entry wholly."""
        if not self._rules:
            return sources
        return Sources(
            address=tuple(self._marked(entry, "") for entry in sources.address),
            prefix=tuple(self._marked(entry, "") for entry in sources.prefix),
            asn=tuple(self._marked(entry, f"asn:{entry.asn}") for entry in sources.asn),
            country=tuple(self._marked(entry, f"country:{entry.key}") for entry in sources.country),
        )

    def _marked(self, entry: Source, named: str) -> Source:
        for rule_id, sources, lengths, origin in self._rules:
            if (named and named == origin) or self._covers(entry.prefix, sources, lengths):
                return dataclasses.replace(entry, active_rule=rule_id)
        return entry

    @staticmethod
    def _covers(
        prefix: Prefix | None, sources: frozenset[Prefix], lengths: frozenset[tuple[int, int]]
    ) -> bool:
        if prefix is None:
            return False
        for family, length in lengths:
            if family == prefix.family and length <= prefix.length:
                shift = prefix.bits - length
                if Prefix(family, prefix.value >> shift << shift, length) in sources:
                    return True
        return False
