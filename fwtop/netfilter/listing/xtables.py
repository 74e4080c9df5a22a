"""The rules of iptables-legacy, and the sets of ipset by their headers: how many elements, not which."""

from __future__ import annotations

from collections import Counter

from fwtop.model.ruleset import IPSET, IPTABLES_LEGACY, ListedRule, ListedSet
from fwtop.model.text import safe_text
from fwtop.netfilter import ipset
from fwtop.netfilter.iptables import LEGACY, loaded_tables, save_program
from fwtop.netfilter.listing.names import NAME, TEXT, is_own_name, is_own_rule
from fwtop.netfilter.listing.output import output_of
from fwtop.netfilter.saved import Counted, Line, each

_FAMILIES = {4: "ip", 6: "ip6"}


def legacy_rules(end: float, most: int) -> tuple[list[ListedRule], list[str], int]:
    """Return the rules of iptables-legacy, what is missing in words, and how many there are.

    Nothing is run where no table is loaded, and no table is loaded by reading.
    """
    found: list[ListedRule] = []
    notes: list[str] = []
    total = 0
    for family, name in _FAMILIES.items():
        if not loaded_tables(family):
            continue
        program = save_program(LEGACY, family)
        if not program:
            notes.append(f"{name}tables-legacy holds rules, and its program is not installed")
            continue
        output = output_of([program, "-c"], end)
        notes += [output.problem] if output.problem else []
        times = Counter[tuple[str, str, str]]()
        for line, counted in each(output.text, family):
            if not line.number and line.text == "-":
                continue
            total += 1
            if len(found) < most:
                times[line.table, line.chain, line.text] += 1
                found.append(_listed(name, line, times[line.table, line.chain, line.text], counted))
    return found, notes, total


def _listed(family: str, line: Line, time: int, counted: Counted) -> ListedRule:
    # The same text stands for the same rule, wherever in its chain it has moved to
    kind, text = (line.text, line.text) if line.number else ("policy", f"policy {line.text}")
    return ListedRule(
        f"{IPTABLES_LEGACY} {family} {line.table} {line.chain} {time} {safe_text(kind, limit=TEXT)}",
        IPTABLES_LEGACY,
        family,
        safe_text(f"{line.table} {line.chain}", limit=NAME),
        safe_text(text, limit=TEXT),
        is_own_rule(line.table, line.chain, text),
        *counted,
    )


def ipset_sets() -> list[ListedSet]:
    """List all sets; raises FwtopError."""
    found = []
    for header in ipset.headers():
        name, kind = safe_text(header.name, limit=NAME), safe_text(header.type, limit=NAME)
        own = is_own_name(header.name)
        found.append(
            ListedSet(f"{IPSET} {name}", IPSET, header.family, name, kind, own, header.entries, header.size)
        )
    return found
