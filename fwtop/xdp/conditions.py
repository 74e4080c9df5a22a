"""The conditions of a rule as C, specialised for what is known about the packets.

`Headers` says what is known, and how to read the other fields. Known fields need no test, and a rule that
can't match such packets has no conditions at all.
"""

from __future__ import annotations

import sys

from msgspec import Struct

from fwtop.model.rule import Match, PayloadMatch, Range, RateLimit
from fwtop.rules.kinds.compiled import SEARCHED_BYTES
from fwtop.rules.xtables import compiled_cost

_ICMP = {4: 1, 6: 58}
PORTED = frozenset({6, 17, 132, 136})
_PLAIN_FIELDS = {
    "icmp_type": "p->transport[0]",
    "ip_id": "BE16(p->ip + 4)",
    "tcp_flags": "p->transport[13]",
    "tcp_header": "(p->transport[12] >> 4) * 4",
    "tcp_seq": "BE32(p->transport + 4)",
    "tcp_window": "BE16(p->transport + 14)",
}


class Headers(Struct, frozen=True):
    """What is known about the packet `p` of a generated function; 0: any family, protocol or fragment."""

    family: int = 0
    protocol: int = 0

    @property
    def name(self) -> str:
        """The prefix of its functions' names."""
        return "_".join(["plain" if self.family else "any", *(str(n) for n in self._known)])

    @property
    def parameter(self) -> str:
        """The C parameter declaration of the packet."""
        return f"struct {'plain' if self.family else 'view'} *p"

    @property
    def _known(self) -> tuple[int, ...]:
        return tuple(number for number in (self.family, self.protocol) if number)

    @property
    def of_family(self) -> Headers:
        """The same without the protocol, for functions that don't need it."""
        return Headers(self.family)

    def field(self, name: str) -> str:
        """Return the C expression of a field in host order."""
        if not self.family:
            return f"p->{name}"
        if name in ("sport", "dport"):
            return f"BE16(p->transport + {0 if name == 'sport' else 2})"
        if name == "ip_length":
            return "BE16(p->ip + 2)" if self.family == 4 else "(BE16(p->ip + 4) + 40)"
        if name == "ttl":
            return "p->ip[8]" if self.family == 4 else "p->ip[7]"
        return _PLAIN_FIELDS[name]

    def address(self, side: str) -> tuple[str, str]:
        """Return the C expressions of both halves of an address; IPv4 is in the low one."""
        if not self.family:
            return f"p->{side}_hi", f"p->{side}_lo"
        if self.family == 4:
            return "0", f"BE32(p->ip + {12 if side == 'src' else 16})"
        first = 8 if side == "src" else 24
        return f"BE64(p->ip + {first})", f"BE64(p->ip + {first + 8})"


ANY = Headers()
PLAIN = tuple(Headers(family, protocol) for family in (4, 6) for protocol in (17, 6, _ICMP[family]))
_NEVER = None
_LOW_64 = (1 << 64) - 1


def header_conditions(match: Match, headers: Headers) -> list[str] | None:
    """Return the tests of a match, except addresses and payload; None if it can't match."""
    ports = [_is(headers, "sport", match.sport), _is(headers, "dport", match.dport)]
    tests = [
        _equal("family", match.family, headers.family),
        _equal("protocol", match.protocol, headers.protocol),
        _of_transport(headers, PORTED, ports),
        _fragment(match.fragment, headers),
        _range(headers, "ip_length", match.ip_length),
        _range(headers, "ttl", match.ttl),
        _identification(headers, match.ip_id),
        _of_transport(headers, frozenset({6}), _segment(headers, match)),
        _of_transport(headers, frozenset(_ICMP.values()), [_is(headers, "icmp_type", match.icmp_type)]),
    ]
    found: list[str] = []
    for test in tests:
        if test is _NEVER:
            return None
        found += test
    return found


def _equal(name: str, wanted: int | None, known: int) -> list[str] | None:
    if wanted is None or wanted == known:
        return []
    return _NEVER if known else [f"p->{name} == {wanted:d}"]


def _of_transport(headers: Headers, protocols: frozenset[int], tests: list[str]) -> list[str] | None:
    """Test the protocol, and that its header is present, before its fields."""
    tests = [test for test in tests if test]
    if not tests or headers.protocol in protocols:
        return tests
    if headers.protocol:
        return _NEVER
    either = " || ".join(f"p->protocol == {number}" for number in sorted(protocols))
    return [f"({either})", "p->fragment != LATER_FRAGMENT", *tests]


def _is(headers: Headers, name: str, wanted: int | None) -> str:
    return "" if wanted is None else f"{headers.field(name)} == {wanted:d}"


def _fragment(wanted: bool | None, headers: Headers) -> list[str] | None:
    if wanted is None or (headers.family and not wanted):
        return []
    return _NEVER if headers.family else [f"p->fragment {'!=' if wanted else '=='} NOT_FRAGMENTED"]


def _range(headers: Headers, name: str, span: Range | None) -> list[str]:
    if span is None:
        return []
    value = headers.field(name)
    if span.low == span.high:
        return [f"{value} == {span.low:d}"]
    return [f"{value} >= {max(span.low, 0):d}", f"{value} <= {span.high:d}"]


def _identification(headers: Headers, span: Range | None) -> list[str] | None:
    """Test the IPv4 identification, which IPv6 lacks."""
    if span is None or headers.family == 6:
        return [] if span is None else _NEVER
    return [*([] if headers.family else ["p->family == 4"]), *_range(headers, "ip_id", span)]


def _segment(headers: Headers, match: Match) -> list[str]:
    """Test fields of the TCP header; a truncated header has no flags set."""
    tests = [_flags(headers, match.tcp_flags)]
    spans: list[str] = []
    for name in ("tcp_seq", "tcp_window", "tcp_header"):
        spans += _range(headers, name, getattr(match, name))
    return tests + (["p->tcp_header"] if spans and not headers.family else []) + spans


def _flags(headers: Headers, wanted: tuple[int, int] | None) -> str:
    if wanted is None:
        return ""
    mask, value = wanted
    return f"({headers.field('tcp_flags')} & {mask:d}) == {value:d}"


def limit_function(name: str, limit: RateLimit, buckets: int, headers: Headers) -> list[str]:
    """Write the function that checks a matching packet against the rule's rate."""
    high, low = headers.address("src")
    masks = {4: _mask(limit.prefix_v4 + 96), 6: _mask(limit.prefix_v6)}
    lines = [f"INLINE u32 {headers.name}_{name}_over({headers.parameter})", "{"]
    lines += [f"\tstruct bucket_key key = {{{high}, {low}, {headers.family or 'p->family'}, 0}};", ""]
    for family in (headers.family,) if headers.family else (4, 6):
        lines += [f"\tif (key.family == {family}) {{"]
        lines += [f"\t\tkey.hi &= 0x{masks[family] >> 64:x}ULL;"]
        lines += [f"\t\tkey.lo &= 0x{masks[family] & _LOW_64:x}ULL;", "\t}"]
    if limit.by_dport and headers.protocol in PORTED | {0}:
        lines.append(f"\tkey.dport = {headers.field('dport')};")
    cost = compiled_cost(limit)
    packet = f"(u64){headers.field('ip_length')} * {cost}" if limit.in_bytes else f"{cost}"
    lines.append(f"\treturn over_limit(MAP({buckets}), &key, {packet}, {cost * limit.burst}ULL);")
    return [*lines, "}", ""]


def _mask(length: int) -> int:
    return (1 << 128) - (1 << 128 - length)


def payload_lines(item: PayloadMatch, headers: Headers) -> list[str]:
    """Return C statements that return 0 unless the payload matches."""
    return _anywhere(item) if item.offset is None else _anchored(item, item.offset, headers)


def _anchored(item: PayloadMatch, offset: int, headers: Headers) -> list[str]:
    place = f"payload_at(f, p->payload, p->payload_end, {offset:d}, {len(item.data):d})"
    lines = ["\t{", f"\t\tu8 *found = {place};", ""]
    nothing = "!found" if headers.family else "p->fragment == LATER_FRAGMENT || !found"
    lines += [f"\t\tif ({nothing})", "\t\t\treturn 0;"]
    return [*lines, f"\t\tif ({_differs(item, 'found')})", "\t\t\treturn 0;", "\t}"]


def _anywhere(item: PayloadMatch) -> list[str]:
    size = len(item.data)
    return [
        "\t{",
        "\t\tu32 hit = 0;",
        "",
        f"\t\tfor (u32 i = 0; i <= {SEARCHED_BYTES - size}; i++) {{",
        f"\t\t\tu8 *found = payload_at(f, p->payload, p->payload_end, i, {size});",
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
    """Compare in the widest words that fit, ignoring bits outside the mask."""
    terms = []
    at, care = 0, item.compared_bits
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
