"""The guardian's reader of the rule set: a child, so that a foreign rule set of any length delays nobody.

It reads once for each message on its socket, ends when nobody asks for a while, and has the lowest priority.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys

from msgspec.structs import replace

from fwtop.kernel.children import enlarge
from fwtop.model.protocol import MAX_MESSAGE
from fwtop.model.ruleset import ListedRule, Ruleset
from fwtop.model.wire import to_json
from fwtop.netfilter.listing.reader import RulesetReader

MOST_RULES, MOST_SETS = 1500, 500  # in an answer
_LONGEST = MAX_MESSAGE - (1 << 16)
_IDLE_SECONDS = 90.0
_NICE = 10


def main(arguments: list[str]) -> int:
    """Serve the socket whose descriptor is the argument."""
    channel = socket.socket(fileno=int(arguments[0]))
    os.nice(_NICE)
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
    most = MOST_RULES
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
    sets = sets[: min(MOST_SETS, most)]
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
