"""Write the operator's XDP rules as straight-line C: each condition a comparison with a constant.

What a rule doesn't ask is not in the program, so a packet costs what the rules of the moment need and no
interpreter's loop. Cloudflare's L4Drop does the same (https://blog.cloudflare.com/l4drop-xdp-ebpf-based-ddos-mitigations/).
The fixed part is bpf/xdp*.h; semantics are those of `Match`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fwtop.collect.xdp_conditions import ANY, PLAIN, Headers, header_conditions, limit_function, payload_lines
from fwtop.collect.xdp_list6 import lookup_lines6
from fwtop.collect.xdp_numbers import count_functions
from fwtop.collect.xdp_rule import List4, List6, Lists, SlotRule
from fwtop.collect.xdp_tree import lookup_lines
from fwtop.model.address import Prefix


def program_text(rules: Iterable[SlotRule], allow: tuple[Prefix, ...], *, plain: bool = True) -> str:
    """Return the C functions that bpf/xdp_main.h calls, of rules that passed check_xdp.

    Without `plain`, all packets go the way of any, which is slower and a seventh as much code.
    """
    rules = list(rules)
    parts: list[str] = []
    for headers in (ANY, *((Headers(4), Headers(6)) if plain else ())):
        parts += _prefix_function(headers, "allowed", "src", allow, {})
    for headers in (ANY, *(PLAIN if plain else ())):
        parts += _verdict(rules, headers)
    parts += count_functions(rules)
    if plain:
        parts.append("#define FWTOP_PLAIN")
    return "\n".join([*parts, ""])


def _verdict(rules: list[SlotRule], headers: Headers) -> list[str]:
    """Write the rules that can hit such packets, and the function that asks them one after the other."""
    functions: list[str] = []
    calls: list[str] = []
    for rule in rules:
        lines = _rule_function(rule, headers)
        functions += lines
        if lines:
            tests = [f"{headers.name}_rule_{rule.slot}(f, p)", f"alive(cell, {rule.slot})"]
            if rule.limit is not None and _answer(rule, headers) == rule.slot:
                functions += limit_function(f"rule_{rule.slot}", rule.limit, rule.buckets, headers)
                # Who is allowed has no bucket: this must be asked here, not once a rule has hit
                tests += [f"!{headers.of_family.name}_allowed(p)", f"{headers.name}_rule_{rule.slot}_over(p)"]
            calls += [f"\tif ({' && '.join(tests)})"]
            calls += [f"\t\treturn {_answer(rule, headers)};", "\tMEET();"]
    head = f"INLINE u32 {headers.name}_verdict(struct frame *f, {headers.parameter}, struct xdp_cell *cell)"
    return [*functions, head, "{", *calls, "\treturn XDP_NONE;", "}", ""]


def _answer(rule: SlotRule, headers: Headers) -> int | str:
    """A search through the payload is compiled once only: other packets that come so far go that way."""
    return "NOT_PLAIN" if headers.family and _searches(rule) else rule.slot


def _searches(rule: SlotRule) -> bool:
    return any(item.offset is None for item in rule.match.payload)


def _rule_function(rule: SlotRule, headers: Headers) -> list[str]:
    """Return nothing where the rule can't hit such packets."""
    match, name = rule.match, f"{headers.name}_rule_{rule.slot}"
    conditions = header_conditions(match, headers)
    if conditions is None:
        return []
    lines: list[str] = []
    for side, prefixes in (("src", match.sources), ("dst", match.destinations)):
        families = {prefix.family for prefix in prefixes} | {of for on, of in rule.lists if on == side}
        if not families:
            continue
        if headers.family and headers.family not in families:
            return []
        lines += _prefix_function(headers, f"rule_{rule.slot}_{side}", side, prefixes, rule.lists)
        conditions.append(f"{headers.name}_rule_{rule.slot}_{side}(p)")
    lines += [f"INLINE u32 {name}(struct frame *f, {headers.parameter})", "{"]
    for condition in conditions:
        lines += [f"\tif (!({condition}))", "\t\treturn 0;"]
    for item in match.payload if _answer(rule, headers) == rule.slot else ():
        lines += payload_lines(item, headers)
    return [*lines, "\treturn 1;", "}", ""]


def _prefix_function(
    headers: Headers, name: str, side: str, prefixes: Sequence[Prefix], lists: Lists
) -> list[str]:
    """Write the function that tells whether an address of the packet lies in any of the prefixes."""
    lines = [f"INLINE u32 {headers.name}_{name}({headers.parameter})", "{"]
    high, low = headers.address(side)
    lines += [f"\tu64 hi = {high}, lo = {low};", ""]
    for family in (headers.family,) if headers.family else (4, 6):
        mine = [prefix for prefix in prefixes if prefix.family == family]
        maps = lists.get((side, family))
        if not mine and maps is None:
            continue
        lines.append("\t{" if headers.family else f"\tif (p->family == {family}) {{")
        if isinstance(maps, List4):
            blocks, parts = f"MAP_VALUE({maps.blocks})", f"MAP_VALUE({maps.parts})"
            lines.append(f"\t\treturn in_list4({blocks}, {parts}, CONSTANT({maps.count}), lo);")
        elif isinstance(maps, List6):
            lines += lookup_lines6(maps)
        else:
            lines += lookup_lines(mine)
        lines.append("\t}")
    return [*lines, "\treturn 0;", "}", ""]
