"""Write the operator's XDP rules as straight-line C: each condition a comparison with a constant.

What a rule doesn't ask is not in the program, so a packet costs what the rules of the moment need and no
interpreter's loop. Cloudflare's L4Drop does the same (https://blog.cloudflare.com/l4drop-xdp-ebpf-based-ddos-mitigations/).
The fixed part is bpf/xdp.h; semantics are those of `Match`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fwtop.collect.xdp_tree import lookup_lines
from fwtop.model.address import Prefix
from fwtop.model.rule import Match, PayloadMatch, Range
from fwtop.model.xdp import SEARCHED_BYTES

_PORTED = "(p->protocol == 6 || p->protocol == 17 || p->protocol == 132 || p->protocol == 136)"
_WHOLE = "p->fragment != LATER_FRAGMENT"


@dataclass(frozen=True, slots=True)
class List4:
    """The maps of a long IPv4 list, by descriptor."""

    blocks: int
    parts: int


@dataclass(frozen=True, slots=True)
class List6:
    """The maps of a long IPv6 list, by descriptor, and the prefix lengths in use."""

    filter: int
    prefixes: int
    lengths: tuple[int, ...]


Lists = Mapping[tuple[str, int], "List4 | List6"]  # by side ("src", "dst") and family


@dataclass(frozen=True, slots=True)
class SlotRule:
    """A rule in its slot. `lists` has the maps of prefixes that are too many to compile; they take the place
    of those of that side and family in `match`, which may leave them out.
    """

    slot: int
    match: Match
    lists: Lists


def program_text(rules: Iterable[SlotRule], allow: tuple[Prefix, ...]) -> str:
    """Return the C functions `allowed` and `verdict` for bpf/xdp_main.h, of rules that passed check_xdp."""
    rules = list(rules)
    parts = [*_prefix_function("allow_src", "src", allow, {})]
    parts += ["INLINE u32 allowed(struct view *p)", "{", "\treturn allow_src(p);", "}", ""]
    for rule in rules:
        parts += _rule_function(rule)
    parts += ["INLINE u32 verdict(struct frame *f, struct view *p)", "{"]
    for rule in rules:
        parts += [f"\tif (rule_{rule.slot}(f, p) && alive({rule.slot}))", f"\t\treturn {rule.slot};"]
    return "\n".join([*parts, "\treturn XDP_NONE;", "}", ""])


def _rule_function(rule: SlotRule) -> list[str]:
    match, slot = rule.match, rule.slot
    lines: list[str] = []
    conditions = _header_conditions(match)
    for side, prefixes in (("src", match.sources), ("dst", match.destinations)):
        if prefixes or any(of == side for of, _ in rule.lists):
            lines += _prefix_function(f"rule_{slot}_{side}", side, prefixes, rule.lists)
            conditions.append(f"rule_{slot}_{side}(p)")
    lines += [f"INLINE u32 rule_{slot}(struct frame *f, struct view *p)", "{"]
    for condition in conditions:
        lines += [f"\tif (!({condition}))", "\t\treturn 0;"]
    for item in match.payload:
        lines += _anywhere(item) if item.offset is None else _anchored(item, item.offset)
    return [*lines, "\treturn 1;", "}", ""]


def _header_conditions(match: Match) -> list[str]:
    found = []
    if match.family is not None:
        found.append(f"p->family == {match.family:d}")
    if match.protocol is not None:
        found.append(f"p->protocol == {match.protocol:d}")
    for name, port in (("sport", match.sport), ("dport", match.dport)):
        if port is not None:
            found.append(f"{_PORTED} && {_WHOLE} && p->{name} == {port:d}")
    if match.fragment is not None:
        found.append(f"p->fragment {'!=' if match.fragment else '=='} NOT_FRAGMENTED")
    for name, span in (("ip_length", match.ip_length), ("ttl", match.ttl)):
        if span is not None:
            found.append(_within(f"p->{name}", span))
    if match.tcp_flags is not None:
        mask, value = match.tcp_flags
        found.append(f"p->protocol == 6 && {_WHOLE} && (p->tcp_flags & {mask:d}) == {value:d}")
    if match.icmp_type is not None:
        icmp = f"(p->protocol == 1 || p->protocol == 58) && {_WHOLE}"
        found.append(f"{icmp} && p->icmp_type == {match.icmp_type:d}")
    return found


def _within(value: str, span: Range) -> str:
    if span.low == span.high:
        return f"{value} == {span.low:d}"
    return f"{value} >= {max(span.low, 0):d} && {value} <= {span.high:d}"


def _anchored(item: PayloadMatch, offset: int) -> list[str]:
    lines = ["\t{", f"\t\tu8 *found = payload_at(f, p, {offset:d}, {len(item.data):d});", ""]
    lines += [f"\t\tif ({_WHOLE.replace('!=', '==')} || !found)", "\t\t\treturn 0;"]
    return [*lines, f"\t\tif ({_differs(item, 'found')})", "\t\t\treturn 0;", "\t}"]


def _anywhere(item: PayloadMatch) -> list[str]:
    size = len(item.data)
    return [
        "\t{",
        "\t\tu32 hit = 0;",
        "",
        f"\t\tfor (u32 i = 0; i <= {SEARCHED_BYTES - size}; i++) {{",
        f"\t\t\tu8 *found = payload_at(f, p, i, {size});",
        "",
        "\t\t\tif (!found)",
        "\t\t\t\tbreak;",
        f"\t\t\tif ({_differs(item, 'found')})",
        "\t\t\t\tcontinue;",
        "\t\t\thit = 1;",
        "\t\t\tbreak;",
        "\t\t}",
        "\t\tif (!hit)",
        "\t\t\treturn 0;",
        "\t}",
    ]


def _differs(item: PayloadMatch, place: str) -> str:
    """Compare in the widest words that fit; bits outside the mask don't count."""
    terms = []
    at, care = 0, item.care
    while at < len(item.data):
        size = next(size for size in (8, 4, 2, 1) if at + size <= len(item.data))
        want = int.from_bytes(item.data[at : at + size], sys.byteorder)
        bits = int.from_bytes(care[at : at + size], sys.byteorder)
        if bits:
            word = f"*(u{size * 8} *)({place} + {at})"
            masked = f"({word} & 0x{bits:x}ULL)" if bits != (1 << size * 8) - 1 else word
            terms.append(f"{masked} != 0x{want & bits:x}ULL")
        at += size
    return " || ".join(terms) or "0"


def _prefix_function(name: str, side: str, prefixes: tuple[Prefix, ...], lists: Lists) -> list[str]:
    """Write the function that tells whether an address of the packet lies in any of the prefixes."""
    lines = [f"INLINE u32 {name}(struct view *p)", "{"]
    lines += [f"\tu64 hi = p->{side}_hi, lo = p->{side}_lo;", ""]
    for family in (4, 6):
        mine = [prefix for prefix in prefixes if prefix.family == family]
        maps = lists.get((side, family))
        if not mine and maps is None:
            continue
        lines.append(f"\tif (p->family == {family}) {{")
        if isinstance(maps, List4):
            blocks, parts = f"MAP_VALUE({maps.blocks})", f"MAP({maps.parts})"
            lines.append(f"\t\treturn in_list4({blocks}, {parts}, lo);")
        elif isinstance(maps, List6):
            lines += _list6_lines(maps)
        else:
            lines += lookup_lines(mine)
        lines.append("\t}")
    return [*lines, "\treturn 0;", "}", ""]


def _list6_lines(maps: List6) -> list[str]:
    lines = [f"\t\tif (!may_list6(MAP_VALUE({maps.filter}), hi))", "\t\t\treturn 0;"]
    for length in maps.lengths:
        mask = ((1 << length) - 1) << (128 - length)
        high, low = mask >> 64, mask & (1 << 64) - 1
        lines.append(
            f"\t\tif (in_list6(MAP({maps.prefixes}), hi & 0x{high:x}ULL, lo & 0x{low:x}ULL, {length}))"
        )
        lines.append("\t\t\treturn 1;")
    return [*lines, "\t\treturn 0;"]
