"""A few prefixes as a decision tree of comparisons with constants: for n of them, about log2(n) branches."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fwtop.model.address import Prefix
from fwtop.model.numbered import apart

_LOW_64 = (1 << 64) - 1


def lookup_lines(prefixes: Iterable[Prefix]) -> list[str]:
    """Return C statements that tell whether (hi, lo) lies in any of the prefixes, all of one family."""
    return [f"\t\t{line}" for line in _branch(apart(prefixes), _inside)]


def number_lines(prefixes: Iterable[Prefix], first: int) -> list[str]:
    """Return C statements that tell which of the prefixes holds (hi, lo), which one does, from `first` on."""
    ordered = apart(prefixes)
    numbers = {prefix: first + place for place, prefix in enumerate(ordered)}
    return [f"\t\t{line}" for line in _branch(ordered, lambda prefix: str(numbers[prefix]))]


def _branch(ordered: list[Prefix], answer: Callable[[Prefix], str]) -> list[str]:
    """Halve: the only prefix that can hold an address is the last one that doesn't begin behind it."""
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
