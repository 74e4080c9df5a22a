"""Turn rules into a loaded program: generate C, compile it with bcc, load it.

The C is straight-line: each condition is a comparison with a constant. The program contains only the tests
that the current rules need, and no interpreter loop. Cloudflare's L4Drop does the same
(https://blog.cloudflare.com/l4drop-xdp-ebpf-based-ddos-mitigations/). The fixed part is bpf/xdp*.h; semantics
are those of `Match`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from fwtop.compile.compiler import SOURCES, cached_code, compile_text, relocate
from fwtop.kernel import bpf
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.xdp.conditions import ANY, PLAIN, Headers, header_conditions, limit_function, payload_lines
from fwtop.xdp.ipv6_lists import lookup_lines6, number_lines6, with_placeholders
from fwtop.xdp.lists import ports_function
from fwtop.xdp.maps import (
    PORTS,
    SHARED,
    AnyList,
    List4,
    List6,
    ListPorts,
    Lists,
    SlotRule,
    UncountedList4,
    disjoint,
    possible_cpus,
)

_CALLED = ("xdp_allow.h", "xdp_lists.h", "xdp_limit.h", "xdp_count.h")  # by the rules
_HEADERS = ("kernel.h", "record.h", "xdp.h", *_CALLED, "xdp_parse.h", "xdp_plain.h", "xdp_main.h")
_CACHED = 64  # compiled rule sets
_MAX_FAST_PREFIXES = 1000  # in the code of all rules: with more, the fast path takes over 10 s to compile
_TABLE_PREFIXES = 10  # that the lookup in one IPv6 table equals in code size
_TOO_LARGE = (errno.E2BIG, errno.EFAULT)  # the verifier gave up: too many instructions or branches
_FAR_JUMP = "jump out of range"  # check_subprogs in kernel/bpf/verifier.c
_REFUSED = "the kernel refused the compiled rules: {}; nothing was changed"


def build_xdp(rules: list[SlotRule], allow: tuple[Prefix, ...], shared: dict[str, int]) -> int:
    """Return the descriptor of a loaded XDP program; raises FwtopError."""
    return _build(rules, allow, shared, bpf.XDP_FRAGMENTS, "fwtop_xdp")


def build_tc(rules: list[SlotRule], allow: tuple[Prefix, ...], shared: dict[str, int]) -> int:
    """Return the descriptor of the same rules as a program for tc ingress; raises FwtopError."""
    return _build(rules, allow, shared, bpf.TC, "fwtop_tc")


def _build(
    rules: list[SlotRule],
    allow: tuple[Prefix, ...],
    shared: dict[str, int],
    kind: bpf.ProgramType,
    name: str,
) -> int:
    maps = dict(enumerate((shared[part] for part in SHARED), 1))
    numbered = [_numbered(rule, maps) for rule in rules]
    definitions = _definitions(kind)
    for plain in variants(numbered):
        code = relocate(_compiled(program_text(numbered, allow, plain=plain), definitions, name), maps)
        try:
            return bpf.load_program(kind, name, code)
        except OSError as error:
            if not is_too_large(error):
                raise FwtopError(_REFUSED.format(safe_text(error))) from None
    raise FwtopError(_REFUSED.format("these are too many rules for one program"))


def precompile(rules: list[SlotRule], allow: tuple[Prefix, ...], *, for_tc: bool) -> None:
    """Compile rules into the cache, so that installing them is quick; raises FwtopError."""
    maps = dict.fromkeys(range(1, len(SHARED) + 1), 0)
    numbered = [_numbered(rule, maps) for rule in rules]
    kind, name = (bpf.TC, "fwtop_tc") if for_tc else (bpf.XDP_FRAGMENTS, "fwtop_xdp")
    _compiled(program_text(numbered, allow, plain=variants(numbered)[0]), _definitions(kind), name)


def is_too_large(error: OSError) -> bool:
    """Return whether the program was too long for the verifier; a jump reaches 32,767 instructions."""
    return error.errno in _TOO_LARGE or (error.errno == errno.EINVAL and _FAR_JUMP in str(error))


def variants(rules: list[SlotRule]) -> tuple[bool, ...]:
    """Return whether to compile the fast path for plain packets, in order of preference.

    Without it, compiling takes a quarter of the time. Long lists add no code, but for one lookup for each
    IPv6 prefix length in use.
    """
    tables = sum(
        len(found.tables) for rule in rules for found in rule.lists.values() if isinstance(found, List6)
    )
    prefixes = sum(
        len(found)
        for rule in rules
        for side, found in (("src", rule.match.sources), ("dst", rule.match.destinations))
        if all(listed != side for listed, _ in rule.lists)
    )
    return (True, False) if prefixes + _TABLE_PREFIXES * tables <= _MAX_FAST_PREFIXES else (False,)


def _definitions(kind: bpf.ProgramType) -> dict[str, object]:
    found: dict[str, object] = {
        f"FWTOP_XDP_{part.upper()}_FD": number for number, part in enumerate(SHARED, 1)
    }
    found["FWTOP_CPUS"] = possible_cpus()
    return found | {"FWTOP_TC": 1} if kind == bpf.TC else found


def _numbered(rule: SlotRule, maps: dict[int, int]) -> SlotRule:
    """Replace a rule's maps and their sizes by placeholders, so that other lists give the same code.

    Adds the values of the placeholders to `maps`.
    """

    def number(value: int) -> int:
        maps[len(maps) + 1] = value
        return len(maps)

    lists: dict[tuple[str, int], AnyList] = {}
    for key, found in rule.lists.items():
        numbered = replace(found, **{name: number(getattr(found, name)) for name in found.MAPS + found.SIZES})
        if isinstance(numbered, List6):
            tables = tuple(with_placeholders(table, number) for table in numbered.tables)
            numbered = replace(numbered, tables=tables)
        lists[key] = numbered
    return replace(
        rule,
        lists=lists,
        buckets=number(rule.buckets) if rule.limit is not None else 0,
        hits=number(rule.hits) if rule.counted else 0,
        counted=number(rule.counted) if rule.counted else 0,
    )


def _compiled(generated: str, definitions: dict[str, object], name: str) -> bytes:
    """Compile, or take the code from the cache, which lasts until reboot."""
    headers = [(SOURCES / header).read_text() for header in _HEADERS]
    key = [generated, definitions, name, headers]
    before, after = (
        "".join(f'#include "{SOURCES}/{header}"\n' for header in headers)
        for headers in (_CALLED, ("xdp_main.h",))
    )
    text = f"{before}{generated}\n{after}"
    return cached_code("rules", key, _CACHED, lambda: compile_text(text, definitions, [name]))[name]


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
    # First what leaves the fast path: there all rules follow again, and nothing may be counted twice
    for rule in sorted(rules, key=lambda one: _answer(one, headers) == one.slot):
        lines = _rule_function(rule, headers)
        functions += lines
        if lines:
            tests = [f"{headers.name}_rule_{rule.slot}(f, p)", f"is_enabled(counters, {rule.slot})"]
            answer = f"return {_answer(rule, headers)};"
            if rule.counts_only and not headers.family:
                answer = f"count_rule(f, counters, {rule.slot}, p->wire);"
                tests += ["!any_allowed(f, p)", "!any_neighbour(p)"]
            if rule.limit is not None and _answer(rule, headers) == rule.slot:
                functions += limit_function(f"rule_{rule.slot}", rule.limit, rule.buckets, headers)
                # Allowed sources must not use up a bucket: check them first
                tests += [
                    f"!{headers.of_family.name}_allowed(f, p)",
                    f"{headers.name}_rule_{rule.slot}_over(p)",
                ]
            calls += [f"\tif ({' && '.join(dict.fromkeys(tests))})", f"\t\t{answer}", "\tBARRIER();"]
    parameters = f"struct frame *f, {headers.parameter}, struct xdp_counters *counters"
    head = f"INLINE u32 {headers.name}_verdict({parameters})"
    return [*functions, head, "{", *calls, "\treturn XDP_NONE;", "}", ""]


def _answer(rule: SlotRule, headers: Headers) -> int | str:
    """Return the verdict; searches of the payload, and counting, are compiled once, off the fast path."""
    return "NOT_PLAIN" if headers.family and (_searches(rule) or rule.counts_only) else rule.slot


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
