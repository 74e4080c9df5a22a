"""Generate straight-line C from compiled rules: each condition is a comparison with a constant.

The program contains only the tests that the current rules need, and no interpreter loop. Cloudflare's L4Drop
does the same (https://blog.cloudflare.com/l4drop-xdp-ebpf-based-ddos-mitigations/). The fixed part is
bpf/xdp*.h; semantics are those of `Match`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fwtop.model.addresses.address import Prefix
from fwtop.xdp.conditions import ANY, PLAIN, Headers, header_conditions, limit_function, payload_lines
from fwtop.xdp.ipv6_lists import lookup_lines6
from fwtop.xdp.ports import ports_function
from fwtop.xdp.slot_rule import PORTS, List4, List6, ListPorts, Lists, SlotRule, UncountedList4
from fwtop.xdp.tree import count_functions, lookup_lines


def program_text(rules: Iterable[SlotRule], allow: tuple[Prefix, ...], *, plain: bool = True) -> str:
    """Return the C functions that bpf/xdp_main.h calls, for rules that passed check_xdp.

    Without `plain` there is no fast path for plain packets: slower, but a seventh of the code.
    """
    rules = list(rules)
    parts: list[str] = []
    for headers in (ANY, *((Headers(4), Headers(6)) if plain else ())):
        parts += _prefix_function(headers, "listed", "src", allow, {})
        parts += _allowed_function(headers)
    for headers in (ANY, *(PLAIN if plain else ())):
        parts += _verdict(rules, headers)
    parts += count_functions(rules)
    if plain:
        parts.append("#define FWTOP_PLAIN")
    return "\n".join([*parts, ""])


def _allowed_function(headers: Headers) -> list[str]:
    """Write the function that checks the allow-list: the operator's prefixes and the roles."""
    name = headers.name
    head = f"INLINE u32 {name}_allowed(struct frame *f, {headers.parameter})"
    return [head, "{", f"\treturn {name}_listed(p) || {name}_in_role(f, p);", "}", ""]


def _verdict(rules: list[SlotRule], headers: Headers) -> list[str]:
    """Write the rules that can match such packets, and the function that evaluates them in order."""
    functions: list[str] = []
    calls: list[str] = []
    for rule in rules:
        lines = _rule_function(rule, headers)
        functions += lines
        if lines:
            tests = [f"{headers.name}_rule_{rule.slot}(f, p)", f"is_enabled(counters, {rule.slot})"]
            if rule.limit is not None and _answer(rule, headers) == rule.slot:
                functions += limit_function(f"rule_{rule.slot}", rule.limit, rule.buckets, headers)
                # Allowed sources must not use up a bucket: check them first
                tests += [
                    f"!{headers.of_family.name}_allowed(f, p)",
                    f"{headers.name}_rule_{rule.slot}_over(p)",
                ]
            calls += [f"\tif ({' && '.join(tests)})"]
            calls += [f"\t\treturn {_answer(rule, headers)};", "\tBARRIER();"]
    parameters = f"struct frame *f, {headers.parameter}, struct xdp_counters *counters"
    head = f"INLINE u32 {headers.name}_verdict({parameters})"
    return [*functions, head, "{", *calls, "\treturn XDP_NONE;", "}", ""]


def _answer(rule: SlotRule, headers: Headers) -> int | str:
    """Return the verdict; payload searches are compiled once, off the fast path."""
    return "NOT_PLAIN" if headers.family and _searches(rule) else rule.slot


def _searches(rule: SlotRule) -> bool:
    return any(item.offset is None for item in rule.match.payload)


def _rule_function(rule: SlotRule, headers: Headers) -> list[str]:
    """Write the function of one rule; nothing if it can't match such packets."""
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
    of_ports = rule.lists.get(PORTS)
    if isinstance(of_ports, ListPorts):
        found = ports_function(headers, f"rule_{rule.slot}_ports", of_ports)
        if not found:
            return []
        lines += found
        conditions.append(f"{headers.name}_rule_{rule.slot}_ports(p)")
    lines += [f"INLINE u32 {name}(struct frame *f, {headers.parameter})", "{"]
    for condition in conditions:
        lines += [f"\tif (!({condition}))", "\t\treturn 0;"]
    for item in match.payload if _answer(rule, headers) == rule.slot else ():
        lines += payload_lines(item, headers)
    return [*lines, "\treturn 1;", "}", ""]


def _prefix_function(
    headers: Headers, name: str, side: str, prefixes: Sequence[Prefix], lists: Lists
) -> list[str]:
    """Write the function that looks an address of the packet up in prefixes."""
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
        elif isinstance(maps, UncountedList4):
            parts = f"MAP_VALUE({maps.parts}), CONSTANT({maps.count})"
            small = f"MAP_VALUE({maps.small}), CONSTANT({maps.small_count})"
            lines.append(f"\t\treturn in_uncounted4(MAP_VALUE({maps.blocks}), {parts}, {small}, lo);")
        elif isinstance(maps, List6):
            lines += lookup_lines6(maps)
        else:
            lines += lookup_lines(mine)
        lines.append("\t}")
    return [*lines, "\treturn 0;", "}", ""]
