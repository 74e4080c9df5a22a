"""Write the C that counts a packet for the prefix of its source: asked only when a rule has dropped it."""

from __future__ import annotations

from collections.abc import Iterable

from fwtop.collect.xdp_list6 import number_lines6
from fwtop.collect.xdp_rule import List4, List6, SlotRule
from fwtop.collect.xdp_tree import number_lines
from fwtop.model.numbered import apart


def count_functions(rules: Iterable[SlotRule]) -> list[str]:
    """Return `count_source`, which counts what the rule in a slot dropped for the prefix it came from."""
    functions, cases = [], []
    for rule in rules:
        if rule.counted:
            functions += _number_function(rule)
            number = f"rule_{rule.slot}_number(family, hi, lo)"
            cases += [f"\tcase {rule.slot}:"]
            cases += [
                f"\t\tcount_prefix(MAP_VALUE({rule.hits}), CONSTANT({rule.counted}), {number}, packets);"
            ]
            cases += ["\t\tbreak;"]
    head = "INLINE void count_source(u32 slot, u32 family, u64 hi, u64 lo, u64 packets)"
    return [*functions, head, "{", "\tswitch (slot) {", *cases, "\t}", "}", ""]


def _number_function(rule: SlotRule) -> list[str]:
    lines = [f"INLINE u64 rule_{rule.slot}_number(u32 family, u64 hi, u64 lo)", "{"]
    for family in (4, 6):
        mine = [prefix for prefix in rule.match.sources if prefix.family == family]
        maps = rule.lists.get(("src", family))
        if not mine and maps is None:
            continue
        lines.append(f"\tif (family == {family}) {{")
        if isinstance(maps, List4):
            sizes = f"CONSTANT({maps.count}), CONSTANT({maps.several})"
            lines.append(
                f"\t\treturn number4(MAP_VALUE({maps.blocks}), MAP_VALUE({maps.numbers}), {sizes}, lo);"
            )
        elif isinstance(maps, List6):
            lines += number_lines6(maps)
        else:
            lines += number_lines(
                mine, 0 if family == 4 else len(apart(rule.match.sources)) - len(apart(mine))
            )
        lines.append("\t}")
    return [*lines, "\treturn 0;", "}", ""]
