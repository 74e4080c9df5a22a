"""Reads every rule and set of this network namespace within a bounded time; for the guardian in a child.

A foreign rule set of any length delays nobody there: the child reads once for each message on its socket,
ends when nobody asks for a while, and has the lowest priority.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time

from msgspec.structs import replace

from fwtop.kernel.children import enlarge
from fwtop.model.errors import FwtopError
from fwtop.model.messages import MAX_MESSAGE
from fwtop.model.ruleset import SOURCES, ListedRule, ListedSet, Ruleset
from fwtop.model.wire import to_json
from fwtop.netfilter.listing.nf_tables import NfTables
from fwtop.netfilter.listing.others import attached_programs, discarding_routes, ipset_sets, legacy_rules

SECONDS = 5.0  # of a reading
MOST_RULES = 120_000  # of each source
MOST_SETS = 4096
_MOST_NOTES = 20
_NF_TABLES_SHARE = 0.5  # of the time, whatever the others took


class RulesetReader:
    """Reads again and again; remembers what never changes, so that a further reading is cheap."""

    def __init__(self, most: int = MOST_RULES) -> None:
        self._most = most
        self._nf_tables = NfTables()

    def read(self) -> Ruleset:
        """Read everything now. What can't be read is a note."""
        end = time.monotonic() + SECONDS
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
        least = time.monotonic() + _NF_TABLES_SHARE * SECONDS
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


ANSWERED_RULES, ANSWERED_SETS = 1500, 500  # in an answer
_LONGEST = MAX_MESSAGE - (1 << 16)
_IDLE_SECONDS = 90.0
_NICE = 10


def main(arguments: list[str]) -> int:
    """Serve the socket whose descriptor is the argument."""
    channel = socket.socket(fileno=int(arguments[0]))
    os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    enlarge(channel)
    channel.settimeout(_IDLE_SECONDS)
    reader = RulesetReader()
    before: dict[str, int] = {}
    with channel, contextlib.suppress(TimeoutError, ConnectionError, BrokenPipeError):
        while channel.recv(1):
            found = reader.read()
            channel.send(encoded(found, before))
            before = {rule.key: rule.packets or 0 for rule in found.rules}
    return 0


def encoded(found: Ruleset, before: dict[str, int]) -> bytes:
    """Encode what fits into a message: fwtop's own rules, those that counted something, then any others."""
    most = ANSWERED_RULES
    while True:
        data = to_json(cut(found, before, most))
        if len(data) <= _LONGEST:
            return data
        most //= 2


def cut(found: Ruleset, before: dict[str, int], most: int) -> Ruleset:
    """Return at most so many rules, in their order, and sets; a note says how many there are."""

    def matters(rule: ListedRule) -> tuple[bool, int, int]:
        packets = rule.packets or 0
        return rule.ours, packets - before.get(rule.key, packets), packets

    sets = sorted(found.sets, key=lambda item: (item.nearly_full, item.ours), reverse=True)
    sets = sets[: min(ANSWERED_SETS, most)]
    rules, notes = found.rules, list(found.notes)
    if len(rules) > most:
        chosen = {rule.key for rule in sorted(rules, key=matters, reverse=True)[:most]}
        rules = tuple(rule for rule in rules if rule.key in chosen)[:most]
        notes.append(f"the {len(rules):,} busiest of {found.rules_total:,} rules: fwtop rules lists all")
    if len(sets) < len(found.sets):
        notes.append(f"{len(sets):,} of {len(found.sets):,} sets: fwtop rules lists all")
    return replace(found, rules=rules, sets=tuple(sets), notes=tuple(notes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
