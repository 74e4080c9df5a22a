"""Rules that the kernel has and no record is left of: named by their sets, ended by their sets' clocks.

What a rule asked for besides its sources is not to be had from there. So it can be watched and undone, and it
ends when the kernel ends it; kept for longer it can be where its sets say all there is to it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable

from fwtop.guardian.mechanisms.chains import sets
from fwtop.guardian.records.entry import Entry
from fwtop.kernel.programs import CommandError
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, Rule, State
from fwtop.netfilter import ipset, nft
from fwtop.rules.nft_objects import CONNECTIONS, LAYOUTS, NETDEV, PROXY, set_of

_SET = re.compile(r"fwtop-(\d+)-(on|un|dst|shut|pass|)([46])")
_NOTE = "found in the kernel: the journal has lost it"
_KINDS = {NETDEV.table: Kind.NFTABLES, PROXY.table: Kind.SYNPROXY, CONNECTIONS.table: Kind.CONNLIMIT}


def unrecorded(rule_ids: Iterable[str], variant_of: Callable[[str], str]) -> list[Entry]:
    """Return what the kernel says of these rules, as far as anything in it has a clock; raises nothing.

    `variant_of` returns the variant of iptables that has a rule's lines.
    """
    found = []
    for rule_id in sorted(rule_ids, key=int):
        try:
            variant = variant_of(rule_id)
            entry = _in_sets(rule_id, variant) or _in_tables(rule_id, variant)
        except (FwtopError, ValueError, KeyError, TypeError):
            continue  # not as fwtop makes it: it is taken out
        if entry is not None:
            found.append(entry)
    return found


def _in_sets(rule_id: str, variant: str) -> Entry | None:
    """Read a rule's ipsets: the sources are the elements, the clock is their timeout."""
    sources: list[Prefix] = []
    families: set[int] = set()
    kind = Kind.IPSET
    left = 0
    for name in sorted(sets.names()):
        named = _SET.fullmatch(name)
        if named is None or named[1] != rule_id:
            continue
        families.add(int(named[3]))
        kind = Kind.PROTECT if named[2] == "shut" else kind
        for entry in ipset.entries(name):
            if entry.element.flags:  # `nomatch`
                continue
            left = max(left, entry.seconds)
            if not named[2]:
                sources.append(entry.prefix)
    family = families.pop() if len(families) == 1 else None
    return _entry(rule_id, variant, left, kind, Match(sources=tuple(sources), family=family))


def _in_tables(rule_id: str, variant: str) -> Entry | None:
    """Read a rule's sets in nftables tables of our own: its switch has the clock."""
    for layout in LAYOUTS:
        try:
            elements = nft.elements(layout.table, set_of(rule_id, "on"))
        except CommandError:
            continue
        clocks = [item["elem"] for item in elements if "elem" in item]
        left = max((int(item.get("expires", 0)) for item in clocks), default=0)
        kind = _KINDS[layout.table]
        return _entry(rule_id, variant, left, kind, Match())
    return None


def _entry(rule_id: str, variant: str, left: int, kind: Kind, match: Match) -> Entry | None:
    if left <= 0:
        return None
    rule = Rule(rule_id, kind, match, _NOTE, left, created=time.time())
    return Entry(rule, variant, State.CONFIRMED, time.monotonic() + left, note=_NOTE)
