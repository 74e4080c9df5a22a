"""FlowSpec rules (RFC 8955, for IPv6 RFC 8956): as ExaBGP configuration and as NLRI."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Match, Range, Rule
from fwtop.model.traffic.protocols import protocol_name
from fwtop.rules import kinds

_EQUAL, _AT_LEAST, _AT_MOST = 0x01, 0x03, 0x05  # numeric operators (4.2.1.1)
_NOT, _ALL = 0x02, 0x01  # bitmask operators (4.2.1.2)
_AND, _LAST = 0x40, 0x80
_FLAGS = {1: "fin", 2: "syn", 4: "rst", 8: "push", 16: "ack", 32: "urgent"}
_FRAGMENT_BITS = 0x02 | 0x04  # is a fragment other than the first, or the first (4.2.2.12)
_MOST = 65_535
_MOST_SOURCES = 200  # a router holds some thousand FlowSpec routes for all its customers


class FlowSpec(Struct, frozen=True):
    """A FlowSpec rule that drops packets."""

    destination: Prefix
    match: Match
    source: Prefix | None = None

    @property
    def text(self) -> str:
        """The route in ExaBGP's configuration syntax, with rate 0 (drop)."""
        parts = " ".join(words for words, _ in self._components())
        return f"flow {{ route {{ match {{ {parts} }} then {{ rate-limit 0; }} }} }}"

    @property
    def nlri(self) -> bytes:
        """The NLRI (RFC 8955, 4.1) with its length."""
        body = b"".join(encoded for _, encoded in self._components())
        return bytes([len(body)]) + body

    def _components(self) -> Iterator[tuple[str, bytes]]:
        """Yield the components in the order of their types (RFC 8955, 4.2.2), as words and encoded."""
        match = self.match
        yield f"destination {_prefix_text(self.destination)};", _prefix_component(1, self.destination)
        if self.source is not None:
            yield f"source {_prefix_text(self.source)};", _prefix_component(2, self.source)
        if match.protocol is not None:
            word = "protocol" if self.destination.family == 4 else "next-header"
            yield f"{word} ={protocol_name(match.protocol)};", _number(3, match.protocol)
        ports = ((5, "destination-port", match.dport), (6, "source-port", match.sport))
        for kind, word, value in (*ports, (7, "icmp-type", match.icmp_type)):
            if value is not None:
                yield f"{word} ={value};", _number(kind, value)
        if match.tcp_flags is not None:
            words = f"tcp-flags [ {_flag_words(*match.tcp_flags)} ];"
            yield words, b"\x09" + _operations(_flag_tests(*match.tcp_flags))
        if match.ip_length is not None:
            words = f"packet-length {_length_words(match.ip_length)};"
            yield words, b"\x0a" + _operations(_length_tests(match.ip_length))
        if match.fragment:
            words = "fragment [ is-fragment first-fragment ];"
            yield words, b"\x0c" + _operations([(0, _FRAGMENT_BITS)])


def routes(rule: Rule, targets: Sequence[Prefix]) -> list[FlowSpec]:
    """Return the routes that drop what a rule drops, to one of the targets; none if no router can."""
    match = rule.match
    unsaid = (match.ttl, match.ip_id, match.tcp_seq, match.tcp_window, match.tcp_header)
    drops = kinds.of(rule.kind).is_filter and rule.limit is None and not rule.counts_only
    if not drops or match.payload or match.fragment is False or any(unsaid):
        return []
    if not match.sources and match == Match(family=match.family):
        return []
    found = []
    for target in match.destinations or targets:
        if target.family not in match.families:
            continue
        sources: list[Prefix | None] = [one for one in match.sources if one.family == target.family]
        if match.sources and not sources:
            continue
        found += [FlowSpec(target, match, source) for source in (sources or [None])[:_MOST_SOURCES]]
    return found


def _prefix_text(prefix: Prefix) -> str:
    return str(prefix) if "/" in str(prefix) else f"{prefix}/{prefix.length}"


def _prefix_component(kind: int, prefix: Prefix) -> bytes:
    whole = prefix.value.to_bytes(prefix.bits // 8, "big")
    offset = b"" if prefix.family == 4 else b"\0"
    return bytes([kind, prefix.length]) + offset + whole[: (prefix.length + 7) // 8]


def _number(kind: int, value: int) -> bytes:
    return bytes([kind]) + _operations([(_EQUAL, value)])


def _operations(tests: Sequence[tuple[int, int]]) -> bytes:
    """Encode (operator, value) pairs, combined by AND."""
    out = b""
    for place, (operator, value) in enumerate(tests):
        wide = value > 255
        bits = operator | (_AND if place else 0) | (_LAST if place == len(tests) - 1 else 0) | (wide << 4)
        out += bytes([bits]) + value.to_bytes(2 if wide else 1, "big")
    return out


def _flag_tests(mask: int, value: int) -> list[tuple[int, int]]:
    """Return the tests for the flags that must be set and for those that must not."""
    clear = mask & ~value
    return ([(_ALL, value)] if value else []) + ([(_NOT, clear)] if clear else [])


def _flag_words(mask: int, value: int) -> str:
    wanted, clear = _names(value), _names(mask & ~value)
    words = [f"={'+'.join(wanted)}"] if wanted else []
    return "&".join(words + ([f"!{'+'.join(clear)}"] if clear else []))


def _names(bits: int) -> list[str]:
    return [name for bit, name in _FLAGS.items() if bits & bit]


def _length_tests(wanted: Range) -> list[tuple[int, int]]:
    if wanted.low == wanted.high:
        return [(_EQUAL, wanted.low)]
    upper = [(_AT_MOST, wanted.high)] if wanted.high < _MOST else []
    return [(_AT_LEAST, wanted.low), *upper]


def _length_words(wanted: Range) -> str:
    if wanted.low == wanted.high:
        return f"={wanted.low}"
    return f">={wanted.low}" + (f"&<={wanted.high}" if wanted.high < _MOST else "")
