"""The header fields that a rule can match: each says once how it is bounded, asked for, compared and written.

What reads or writes a rule's conditions walks over these fields: the command line, the dialog, iptables, nft,
words, and the comparison with packets. Addresses and payload bytes are conditions of their own. Below is what
the verbs of the command line say of a rule, None where a verb can't say it: each kind names the verbs that
make its rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from fwtop.model.errors import FwtopError
from fwtop.model.rule import ConnectionLimit, Match, PayloadMatch, Range, RateLimit, Rule
from fwtop.model.text import dns_name_text
from fwtop.model.traffic.protocols import (
    ICMP,
    ICMPV6,
    NUMBERS,
    TCP,
    UDP,
    flags_option,
    flags_text,
    protocol_name,
    read_flags,
    segments_text,
    split_wire,
    type_text,
    wire_name,
)

_FLAG_NAMES = ((1, "FIN"), (2, "SYN"), (4, "RST"), (8, "PSH"), (16, "ACK"), (32, "URG"))
_SHORTEST, _LONGEST = 20, 65_535  # of an IP packet, bytes
_NO_OPTIONS = 20  # bytes of TCP header
_IPV6_HEADER = 40
PORTED = frozenset({TCP, UDP, 132, 136})  # whose ports are read: those of SCTP and UDP-Lite, too


class Field(Struct, frozen=True):
    """A header field. Its condition is a number, a Range, TCP flags as mask and value, or whether it is so.

    `xtables` and `nft` return what a condition is for a family; nft's None: no packet of it can match.
    """

    name: str  # of the attribute of Match, and of the column of packets
    option: str
    help: str
    most: int = 65_535
    least: int = 0  # that the dialog takes
    metavar: str = "N"
    what: str = "a number"
    label: str = ""  # in the dialog; "" for none there
    asks: str = "a port is a whole number from 0 to {most:,}, or any"  # where something else was typed
    protocols: frozenset[int] = frozenset()  # that have it; none: all
    families: tuple[int, ...] = (4, 6)  # that have it
    reads: Callable[[str, int], Any] | None = None  # the text of its option, and `most`; None: a number
    shows: Callable[[Any], str] = str  # the inverse
    words: Callable[[Any], str] = str
    brief: Callable[[Any], str] | None = None  # the words in a line of a list, if shorter
    xtables: Callable[[Any, int], Sequence[str]] = lambda *_: ()
    nft: Callable[[Any, int], str | None] = lambda *_: None

    def briefly(self, match: Match) -> list[str]:
        """Return a match's condition in the words of a line, nothing if it has none."""
        wanted = self.of(match)
        return [(self.brief or self.words)(wanted)] if wanted is not None else []

    def of(self, match: Match) -> Any:  # noqa: ANN401 - of each field's type
        """Return a match's condition, None if it has none."""
        return getattr(match, self.name)

    @property
    def is_range(self) -> bool:
        """Whether its conditions are ranges."""
        return self.reads is _read_range

    def read(self, text: str) -> Any:  # noqa: ANN401
        """Read the value of its option; raises ValueError."""
        if self.reads is not None:
            return self.reads(text, self.most)
        if not (text.isascii() and text.isdigit() and int(text) <= self.most):
            raise ValueError(f"{text[:40]!r} is not {self.what} from 0 to {self.most}")
        return int(text)

    def written(self, wanted: Any) -> list[str]:  # noqa: ANN401
        """Return the option and its value."""
        return [self.option] * wanted if isinstance(wanted, bool) else [self.option, self.shows(wanted)]

    def numbers(self, wanted: Any) -> tuple[tuple[str, int, int], ...]:  # noqa: ANN401
        """Return the numbers in a condition, each with its place there and the least that it may be."""
        if isinstance(wanted, Range):
            return (".low", wanted.low, 0), (".high", wanted.high, wanted.low)
        if isinstance(wanted, bool):
            return ()
        return tuple(("", number, 0) for number in (wanted if isinstance(wanted, tuple) else (wanted,)))

    def meets(self, wanted: Any, column: Any) -> Any:  # noqa: ANN401 - arrays, where there is numpy
        """Compare a column of packets with a condition."""
        if isinstance(wanted, Range):
            return (column >= wanted.low) & (column <= wanted.high)
        if isinstance(wanted, tuple):
            return (column & wanted[0]) == wanted[1]
        return (column != 0) == wanted if isinstance(wanted, bool) else column == wanted


def _read_range(text: str, most: int) -> Range:
    """Read A:B, A:, :B or A; raises ValueError."""
    low, colon, high = text.partition(":")
    ends = [low or "0", (high or str(most)) if colon else low]
    if not all(end.isascii() and end.isdigit() and int(end) <= most for end in ends) or not low + high:
        raise ValueError(f"{text[:40]!r} is not a range like 40:100 up to {most}")
    if int(ends[0]) > int(ends[1]):
        raise ValueError(f"{text[:40]!r} is reversed")
    return Range(int(ends[0]), int(ends[1]))


def _read_protocol(text: str, most: int) -> int:
    number = NUMBERS.get(text.lower(), int(text) if text.isascii() and text.isdigit() else -1)
    if not 0 <= number <= most:
        raise ValueError(f"{text[:40]!r} is not a protocol: a number to {most}, or {', '.join(NUMBERS)}")
    return number


def _span(name: str, option: str, help: str, most: int = 65_535, least: int = 0, **more: Any) -> Field:  # noqa: ANN401
    """Return a field whose condition is a range."""
    asks = "{label} is a number from {least} to {most:,}, two as in 60-70, the upper end last, or any"
    return Field(
        name, option, help, most, least, "A:B", asks=asks, reads=_read_range,
        shows=lambda wanted: f"{wanted.low}:{wanted.high}", **more,
    )  # fmt: skip


def range_text(wanted: Range, to: str = " to ") -> str:
    """Format a range: 66, or 60 to 70."""
    return f"{wanted.low}" if wanted.low == wanted.high else f"{wanted.low}{to}{wanted.high}"


def _spans(words: str) -> Callable[[Range, int], str]:
    return lambda wanted, _: f"{words} {range_text(wanted, '-')}"


def _named(words: str) -> Callable[[Range], str]:
    return lambda wanted: f"{words} {range_text(wanted)}"


# -- u32 (iptables-extensions(8)): a word of the packet, shifted and masked, within a range


def u32(tests: Sequence[str]) -> list[str]:
    """Return one u32 match for all tests."""
    return ["-m", "u32", "--u32", "&&".join(tests)]


def _u32_span(span: Range) -> str:
    return f"0x{span.low:X}" + (f":0x{span.high:X}" if span.high > span.low else "")


def _segment_word(offset: int, cut: str = "") -> Callable[[Range, int], list[str]]:
    """Return the test of a field of the TCP header, which has no match of its own."""

    def test(wanted: Range, family: int) -> list[str]:
        place = f"0>>22&0x3C@{offset}" if family == 4 else f"{_IPV6_HEADER + offset}"
        return [f"{place}{cut}={_u32_span(wanted)}"]

    return test


def _header_words(wanted: Range, family: int) -> list[str]:
    return _segment_word(12, ">>28")(data_offsets(wanted), family)


def data_offsets(header: Range) -> Range:
    """Convert TCP header lengths in bytes to values of the data offset field, in words of 4 bytes.

    Raises FwtopError (code 2) if no header has such a length.
    """
    low, high = -(-header.low // 4), header.high // 4
    if low > high:
        raise FwtopError("a TCP header has 20, 24, … or 60 bytes; nothing was installed", 2)
    return Range(low, high)


# -- single fields


def _length(wanted: Range) -> str:
    if wanted.high >= _LONGEST:
        return f"{wanted.low} bytes or more"
    if wanted.low <= _SHORTEST < wanted.high:
        return f"up to {wanted.high} bytes"
    return f"{range_text(wanted)} bytes"


def _brief_length(wanted: Range) -> str:
    if wanted.high >= _LONGEST:
        return f"≥{wanted.low}-byte"
    up_to = wanted.low <= _SHORTEST < wanted.high
    return f"≤{wanted.high}-byte" if up_to else f"{range_text(wanted, '–')}-byte"


def _length_nft(wanted: Range, family: int) -> str | None:
    """IPv6 writes down its length without the fixed header (RFC 8200, 3)."""
    if family == 4:
        return f"ip length {range_text(wanted, '-')}"
    low, high = max(0, wanted.low - _IPV6_HEADER), wanted.high - _IPV6_HEADER
    return f"ip6 length {range_text(Range(low, high), '-')}" if high >= 0 else None


def _ttl_xtables(wanted: Range, family: int) -> list[str]:
    module, option = ("ttl", "--ttl") if family == 4 else ("hl", "--hl")
    if wanted.low == wanted.high:
        return ["-m", module, f"{option}-eq", str(wanted.low)]
    args = ["-m", module, f"{option}-gt", str(wanted.low - 1)] if wanted.low > 0 else []
    return args + (["-m", module, f"{option}-lt", str(wanted.high + 1)] if wanted.high < 255 else [])


def _flags_xtables(wanted: tuple[int, int], _: int) -> list[str]:
    mask, value = wanted
    if mask & ~0x3F or value & ~mask:
        raise FwtopError("iptables knows FIN, SYN, RST, PSH, ACK and URG only; nothing was installed", 2)
    named = (",".join(name for bit, name in _FLAG_NAMES if number & bit) for number in wanted)
    return ["--tcp-flags", *(names or "NONE" for names in named)]


def _fragment_xtables(wanted: bool, family: int) -> list[str]:
    if family == 4:  # more-fragments bit or an offset; `-f` would miss the first fragment
        return u32(["4&0x3FFF=0x1:0x3FFF" if wanted else "4&0x3FFF=0x0"])
    return ["-m", "ipv6header", *([] if wanted else ["!"]), "--header", "frag", "--soft"]


def _fragment_nft(wanted: bool, family: int) -> str:
    if family == 4:
        return f"ip frag-off & 0x3fff {'!=' if wanted else '=='} 0"
    return f"exthdr frag {'exists' if wanted else 'missing'}"


PROTOCOL = Field(
    "protocol", "--proto", "tcp, udp, icmp, … or a number", 255, metavar="P", label="protocol",
    asks="a protocol is tcp, udp, icmp, any, or its number, up to {most}", reads=_read_protocol,
    shows=protocol_name,
)  # fmt: skip
SPORT = Field(
    "sport", "--sport", "source port", label="from port", protocols=PORTED, what="a port",
    words=lambda port: f"from port {port}", brief=lambda port: f"from {port}",
    nft=lambda port, _: f"th sport {port}",
)  # fmt: skip
DPORT = Field(
    "dport", "--dport", "destination port", label="to port", protocols=PORTED, what="a port",
    words=lambda port: f"to port {port}", brief=lambda port: f"to {port}",
    nft=lambda port, _: f"th dport {port}",
)  # fmt: skip
ICMP_TYPE = Field(
    "icmp_type", "--icmp-type", "ICMP or ICMPv6 type", 255, protocols=frozenset({ICMP, ICMPV6}),
    what="an ICMP type", words=lambda kind: f"type {kind}",
    xtables=lambda kind, family: ("--icmp-type" if family == 4 else "--icmpv6-type", str(kind)),
)  # fmt: skip
LENGTH = _span(
    "ip_length", "--length", "IP total length in bytes", least=20, label="length", words=_length,
    brief=_brief_length,
    xtables=lambda wanted, _: ("-m", "length", "--length", f"{wanted.low}:{wanted.high}"), nft=_length_nft,
)  # fmt: skip
TTL = _span(
    "ttl", "--ttl-field", "TTL or hop limit of the packet", 255, 1, label="ttl", words=_named("TTL"),
    xtables=_ttl_xtables,
    nft=lambda wanted, family: _spans("ip ttl" if family == 4 else "ip6 hoplimit")(wanted, family),
)  # fmt: skip
IP_ID = _span(
    "ip_id", "--ip-id", "IPv4 identification", label="ip id", families=(4,), words=_named("IP id"),
    xtables=lambda wanted, _: u32([f"4>>16={_u32_span(wanted)}"]), nft=_spans("ip id"),
)  # fmt: skip
_OF_TCP = frozenset({TCP})
TCP_SEQ = _span(
    "tcp_seq", "--tcp-seq", "TCP sequence number", 0xFFFF_FFFF, label="sequence", protocols=_OF_TCP,
    words=_named("sequence number"), xtables=_segment_word(4), nft=_spans("tcp sequence"),
)  # fmt: skip
TCP_WINDOW = _span(
    "tcp_window", "--window", "TCP window, as in the header", label="window", protocols=_OF_TCP,
    words=_named("window"), xtables=_segment_word(12, "&0xFFFF"), nft=_spans("tcp window"),
)  # fmt: skip
TCP_HEADER = _span(
    "tcp_header", "--tcp-header", "TCP header length in bytes; 20 means no options", 60, 20, label="header",
    protocols=_OF_TCP, xtables=_header_words,
    words=lambda wanted: "no TCP options"
    if wanted.high == _NO_OPTIONS
    else f"a TCP header of {range_text(wanted)} bytes",
    nft=lambda wanted, family: _spans("tcp doff")(data_offsets(wanted), family),
)  # fmt: skip
TCP_FLAGS = Field(
    "tcp_flags", "--tcp-flags", "of the flags M exactly F are set: syn,ack/syn", 255, label="flags",
    protocols=_OF_TCP, words=lambda wanted: flags_text(*wanted),
    brief=lambda wanted: segments_text(wanted[1]), xtables=_flags_xtables,
    nft=lambda wanted, _: f"tcp flags & {wanted[0]:#x} == {wanted[1]:#x}", metavar="M/F",
    asks="{error}; syn,ack/syn is SYN without ACK", reads=lambda text, _: read_flags(text),
    shows=lambda wanted: flags_option(*wanted),
)  # fmt: skip
FRAGMENT = Field(
    "fragment", "--fragment", "fragments only",
    words=lambda wanted: "fragments" if wanted else "unfragmented",
    xtables=_fragment_xtables, nft=_fragment_nft,
)  # fmt: skip
PORTS, IP = (SPORT, DPORT), (LENGTH, TTL, IP_ID)
SEGMENT = (TCP_SEQ, TCP_WINDOW, TCP_HEADER)  # read by u32 in iptables
FIELDS = (PROTOCOL, *PORTS, ICMP_TYPE, *IP, *SEGMENT, TCP_FLAGS, FRAGMENT)


def option_words(fields: Sequence[Field], match: Match) -> list[str]:
    """Return the options of the command line for a match's conditions on these fields."""
    given = ((field, field.of(match)) for field in fields)
    return [word for field, wanted in given if wanted is not None for word in field.written(wanted)]


_PLAIN_LABEL = re.compile(rb"(?!-)[^\x00-\x20.\\\x7f-\xff]+")  # printable, no dot or backslash, no leading -
_SCOPE = (PROTOCOL, DPORT)
_OF_DROP = tuple(field for field in FIELDS if field not in _SCOPE)


def block_words(rule: Rule) -> list[str] | None:
    """Return `block` with a rule's sources or its list, and where it drops them."""
    match, sources = rule.match, [rule.origin] if rule.origin else [str(item) for item in rule.match.sources]
    if not (match.sources or rule.list_name is not None) or rule.limit is not None:
        return None
    if match != Match(sources=match.sources, family=match.family):
        return None
    if rule.list_name is not None:
        sources = ["--list", rule.list_name, *family_words(match)]
    return ["block", *sources, "--via", rule.kind.value, *(["--close-open"] * rule.close_open)]


def early_words(rule: Rule) -> list[str] | None:
    """Return the verb that makes a rule before netfilter's chains: block, limit, match or drop."""
    match, via = rule.match, ["--via", rule.kind.value]
    if match.sources or rule.list_name is not None:
        if (words := block_words(rule)) is not None:
            return words
        if rule.origin is not None or rule.limit is not None or match.payload or match.destinations:
            return None
    elif rule.limit is not None or match.payload:
        words = limit_words(rule) if rule.limit is not None else match_words(rule)
        return [*words, *via] if words is not None else None
    elif match.destinations:
        return None
    senders = [word for prefix in match.sources for word in ("--from", str(prefix))]
    return ["drop", *scope_words(match), *senders, *option_words(_OF_DROP, match), *via]


def limit_words(rule: Rule) -> list[str] | None:
    """Return `limit` with a rule's rate."""
    match, limit = rule.match, rule.limit
    if limit is None or match.payload or has_more(match):
        return None
    words = ["limit", *scope_words(match), *per_words(match, limit)]
    words += ["--rate", f"{limit.per_second}{'B' if limit.in_bytes else ''}/s"]
    words += ["--burst", str(limit.burst)] if limit.burst != limit.per_second else []
    return words + ["--by-port"] * limit.by_dport


def per_words(match: Match, limit: RateLimit | ConnectionLimit) -> list[str]:
    """Return the options for the source prefixes that a limit is kept for."""
    length = limit.prefix_v6 if match.family == 6 else limit.prefix_v4
    return ["--per", str(length), *(["--per6", str(limit.prefix_v6)] if match.family is None else [])]


def match_words(rule: Rule) -> list[str] | None:
    """Return `match` with a rule's bytes."""
    match = rule.match
    if len(match.payload) != 1 or has_more(match):
        return None
    offset = match.payload[0].offset
    place = [] if offset is None else ["--offset", str(offset)]
    what = _bytes(match.payload[0])
    return ["match", *what, *place, *scope_words(match)] if what is not None else None


def _bytes(payload: PayloadMatch) -> list[str] | None:
    """Return the options for bytes; None for a DNS name that no option can express exactly."""
    if payload.dns_name is None:
        return ["--hex", payload.data.hex(), *(["--mask", payload.mask.hex()] if payload.mask else [])]
    labels, rest = split_wire(payload.data)
    plain = all(_PLAIN_LABEL.fullmatch(label) for label in labels)
    same = wire_name(labels) + rest == payload.data and payload.dns_name == dns_name_text(labels)
    if not (plain and same and payload.mask is None and len(rest) in (0, 2)):
        return None
    return ["--dns", payload.dns_name, *(["--type", type_text(int.from_bytes(rest, "big"))] if rest else [])]


def scope_words(match: Match) -> list[str]:
    """Return the options for family, protocol and port, which most verbs take."""
    return [*family_words(match), *option_words(_SCOPE, match)]


def family_words(match: Match) -> list[str]:
    """Return -4 or -6, or nothing for both."""
    return [f"-{match.family}"] if match.family is not None else []


def has_more(match: Match) -> bool:
    """Return whether there are conditions on addresses, or on header fields beside those of `scope_words`."""
    by_address = bool(match.sources or match.destinations)
    return by_address or any(field.of(match) is not None for field in _OF_DROP)
