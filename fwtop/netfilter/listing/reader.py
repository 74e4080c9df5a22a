"""Reads every rule and set of this network namespace, within a bounded time."""

from __future__ import annotations

import time

from fwtop.model.errors import FwtopError
from fwtop.model.ruleset import SOURCES, ListedRule, ListedSet, Ruleset
from fwtop.netfilter.listing.elsewhere import attached_programs, discarding_routes
from fwtop.netfilter.listing.nf_tables import NfTables
from fwtop.netfilter.listing.xtables import ipset_sets, legacy_rules

SECONDS = 5.0  # of a reading
MOST_RULES = 120_000  # of each source
MOST_SETS = 4096
_MOST_NOTES = 20
_NF_TABLES_SHARE = 0.5  # of the time, whatever the others took


class RulesetReader:
    """Reads again and again; remembers what never changes, so that a further reading is cheap."""

    def __init__(self, *, seconds: float = SECONDS, most: int = MOST_RULES) -> None:
        self._seconds = seconds
        self._most = most
        self._nf_tables = NfTables()

    def read(self) -> Ruleset:
        """Read everything now. What can't be read is a note."""
        end = time.monotonic() + self._seconds
        taken = time.time()
        rules, notes, total = list[ListedRule](), list[str](), 0
        for read in (attached_programs, legacy_rules, discarding_routes):
            try:
                more, said, count = read(end, self._most)
            except (OSError, FwtopError) as error:
                notes.append(str(FwtopError.of(error)))
                continue
            rules += more
            notes += said
            total += count
        least = time.monotonic() + _NF_TABLES_SHARE * self._seconds
        found = self._nf_tables.read(max(end, least), self._most)  # last: of all it may take the longest
        rules += found.rules
        notes += found.notes
        total += found.total
        sets = found.sets
        sets += self._sets(notes)
        if total > len(rules):
            notes.append(f"{len(rules):,} of {total:,} rules are listed")
        order = {source: place for place, source in enumerate(SOURCES)}
        rules.sort(key=lambda rule: order[rule.source])
        return Ruleset(taken, tuple(rules), tuple(sets[:MOST_SETS]), tuple(notes[:_MOST_NOTES]), total)

    def _sets(self, notes: list[str]) -> list[ListedSet]:
        try:
            return ipset_sets()
        except FwtopError as error:
            notes.append(str(error))
            return []
