"""A few prefixes as a decision tree of comparisons with constants: for n of them, about log2(n) branches."""

from __future__ import annotations

from collections.abc import Iterable

from fwtop.model.address import Prefix

_LOW_64 = (1 << 64) - 1


def lookup_lines(prefixes: Iterable[Prefix]) -> list[str]:
    """Return C statements that tell whether (hi, lo) lies in any of the prefixes, all of one family."""
    apart = disjoint(prefixes)
    return [f"\t\t{line}" for line in _branch(apart)]


def disjoint(prefixes: Iterable[Prefix]) -> list[Prefix]:
    """Leave out prefixes that lie within another; the rest in order of their addresses."""
    found: list[Prefix] = []
    for prefix in sorted(prefixes, key=lambda item: (item.value, item.length)):
        if not (found and found[-1].contains(prefix)):
            found.append(prefix)
    return found


def _branch(apart: list[Prefix]) -> list[str]:
    """Halve: the only prefix that can hold an address is the last one that doesn't begin behind it."""
    if len(apart) == 1:
        return [f"return {_inside(apart[0])};"]
    middle = len(apart) // 2
    left = [f"\t{line}" for line in _branch(apart[:middle])]
    return [f"if ({_before(apart[middle])}) {{", *left, "}", *_branch(apart[middle:])]


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
