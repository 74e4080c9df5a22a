"""Short prefix lists as decision trees in C, and the C that counts packets per source prefix."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fwtop.model.addresses.address import Prefix
from fwtop.xdp.ipv6_lists import number_lines6
from fwtop.xdp.slot_rule import List4, List6, SlotRule, disjoint

_LOW_64 = (1 << 64) - 1


def lookup_lines(prefixes: Iterable[Prefix]) -> list[str]:
    """Return C that looks (hi, lo) up in prefixes of one family; it returns 0 or 1."""
    return [f"\t\t{line}" for line in _branch(disjoint(prefixes), _inside)]


def number_lines(prefixes: Iterable[Prefix], first: int) -> list[str]:
    """Return C that returns the number of the prefix around (hi, lo), which must exist; from `first` on."""
    ordered = disjoint(prefixes)
    numbers = {prefix: first + place for place, prefix in enumerate(ordered)}
    return [f"\t\t{line}" for line in _branch(ordered, lambda prefix: str(numbers[prefix]))]


def _branch(ordered: list[Prefix], answer: Callable[[Prefix], str]) -> list[str]:
    """Bisect: only the last prefix that begins at or before an address can contain it."""
    if len(ordered) == 1:
        return [f"return {answer(ordered[0])};"]
    middle = len(ordered) // 2
    left = [f"\t{line}" for line in _branch(ordered[:middle], answer)]
    return [f"if ({_before(ordered[middle])}) {{", *left, "}", *_branch(ordered[middle:], answer)]


def _before(prefix: Prefix) -> str:
    if prefix.family == 4:
        return f"lo < 0x{prefix.lo:x}ULL"
    if prefix.lo == 0:
        return f"hi < 0x{prefix.hi:x}ULL"
    return f"hi < 0x{prefix.hi:x}ULL || (hi == 0x{prefix.hi:x}ULL && lo < 0x{prefix.lo:x}ULL)"


def _inside(prefix: Prefix) -> str:
    mask = ((1 << prefix.length) - 1) << (prefix.bits - prefix.length)
    terms = []
    if prefix.family == 6 and mask >> 64:
        terms.append(f"(hi & 0x{mask >> 64:x}ULL) == 0x{prefix.hi:x}ULL")
    if mask & _LOW_64:
        terms.append(f"(lo & 0x{mask & _LOW_64:x}ULL) == 0x{prefix.lo:x}ULL")
    return " && ".join(terms) or "1"


def count_functions(rules: Iterable[SlotRule]) -> list[str]:
    """Write `count_source`, which counts a slot's dropped packets by source prefix."""
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
                mine, 0 if family == 4 else len(disjoint(rule.match.sources)) - len(disjoint(mine))
            )
        lines.append("\t}")
    return [*lines, "\treturn 0;", "}", ""]
