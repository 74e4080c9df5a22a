"""The rule that a key makes of a row: of a source, a port, bytes, a signature, a packet, or a proposal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fwtop.analysis.window.traffic import payload
from fwtop.model.addresses.address import Prefix, origin_of, prefixes_of
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, PayloadMatch, Range, RateLimit, Rule
from fwtop.model.traffic.packets import Fragment
from fwtop.model.traffic.protocols import ICMP, ICMPV6, NUMBERS, TCP, WITH_PORTS
from fwtop.model.traffic.snapshot import (
    Destination,
    LedgerRow,
    PacketSignature,
    Payload,
    Port,
    Proposal,
    Source,
)
from fwtop.rules.words import with_summary
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.lists.history import TrendItem
from fwtop.ui.lists.packet_rows import PacketRow

TTL_SECONDS = 600
DEFAULT_LIMIT = RateLimit(1000, 1000, 24, 56)

_KINDS = {"block": Kind.IPSET, "limit": Kind.HASHLIMIT, "xdp": Kind.XDP, "notrack": Kind.NOTRACK}
_PROPOSAL_KEYS = {
    kind.value: ("block", "proposal", key) for key, kind in {**_KINDS, "string": Kind.STRING}.items()
}
_CLASSIC = 63  # the six flags that every mechanism can match
_MOST_BYTES = 16  # of a payload's beginning
_SEARCHED = 64  # bytes of the payload in which others are compared
_FEW = 5  # packets to compare with
_MOST = 0.9  # of them have a byte in common
_LEAST, _MOST_RUN = 4, 32  # bytes of a run


class NoRuleError(ValueError):
    """No rule fits the row; the text says what to do instead."""


def rule_from_row(action: str, item: Struct | None, now: float) -> Rule:
    """Return the rule that a key makes of a row; raises NoRuleError with a line to show."""
    if isinstance(item, Proposal):
        if action not in _PROPOSAL_KEYS.get(item.kind, ("block", "proposal")):
            raise NoRuleError(f"proposal {item.number} is another kind of rule: {item.number} takes it")
        return rule_from_proposal(item, now)
    if item is None:
        words = "nothing is selected: {next_panel} goes to a panel, {up} and {down} select a row"
        raise NoRuleError(KEY_MAP.words(words))
    if isinstance(item, TrendItem):
        item = item.source()
        if item is None:
            raise NoRuleError(
                "only countries and networks of Trends can be blocked: the Traffic tab has the rest"
            )
    kind, match = _of_packet(action, item) if isinstance(item, PacketRow) else _of_row(action, item)
    limit = DEFAULT_LIMIT if action == "limit" else None
    origin = _origin(item) if isinstance(item, Source) else None
    rule = with_summary(Rule("", kind, match, "", TTL_SECONDS, now, "key", limit=limit, origin=origin))
    if isinstance(item, Source) and origin is not None and item.as_name:
        return replace(rule, summary=rule.summary.replace(item.key, f"{item.key} {item.as_name}", 1))
    return rule


def rule_from_proposal(proposal: Proposal, now: float) -> Rule:
    """Return a proposal's rule; raises NoRuleError where nothing on this machine helps."""
    if proposal.rule is None:
        key = KEY_MAP.label("details")
        raise NoRuleError(f"this machine can't carry out proposal {proposal.number}: {key} shows its details")
    return replace(proposal.rule, created=now, created_by=f"proposal {proposal.number}")


def check_targets(words: Sequence[str]) -> tuple[tuple[Prefix, ...], str | None]:
    """Parse prefixes, or one `asn:N` or `country:CC`, typed by the operator; raises FwtopError."""
    if any(word.startswith("@") for word in words):
        raise FwtopError("the screen can't read files; in a shell: sudo fwtop block @FILE", 2)
    if len(words) == 1 and (origin := origin_of(words[0])):
        return (), origin
    return prefixes_of(words), None


def rule_from_targets(action: str, words: Sequence[str], now: float) -> Rule:
    """Return the rule that a key would make of typed sources; raises FwtopError."""
    sources, origin = check_targets(words)
    kind, match = _KINDS[action], Match(sources=sources)
    limit = DEFAULT_LIMIT if action == "limit" else None
    return with_summary(Rule("", kind, match, "", TTL_SECONDS, now, "command", limit=limit, origin=origin))


def _of_row(action: str, item: Struct) -> tuple[Kind, Match]:
    if action == "string" and not isinstance(item, Payload):
        words = "{string} drops packets with the selected bytes: select a row of Payloads first"
        raise NoRuleError(KEY_MAP.words(words))
    if action == "notrack" and isinstance(item, Payload):
        words = "{notrack} keeps a port or a source out of connection tracking: select one of those"
        raise NoRuleError(KEY_MAP.words(words))
    if action in ("block", "string"):
        kind = {Source: Kind.IPSET, Payload: Kind.STRING}.get(type(item), Kind.XDP)
    else:
        kind = _KINDS[action]
    return kind, _matched(item)


def _matched(item: Struct) -> Match:
    if isinstance(item, Source):
        return Match(sources=(item.prefix,) if item.prefix is not None else ())
    if isinstance(item, Port):
        number_of = NUMBERS.get(item.protocol)
        if number_of not in WITH_PORTS:
            raise NoRuleError(f"fwtop has no rule for ports of {item.protocol}")
        match = Match(protocol=number_of)
        return replace(match, sport=item.port) if item.side == "src" else replace(match, dport=item.port)
    if isinstance(item, Payload):
        return Match(payload=(PayloadMatch(item.data, item.offset, None, item.dns_name),))
    if isinstance(item, PacketSignature):
        return item.match
    if isinstance(item, Destination):
        raise NoRuleError("that would cut the address off: select a signature, a source or a port")
    if isinstance(item, LedgerRow):
        if item.mostly is None:
            raise NoRuleError("different traffic ends there: select a source, a port or a payload")
        return item.mostly
    raise NoRuleError("no rule fits this row: select a source, port or payload, or press a proposal's number")


def _origin(item: Source) -> str | None:
    if item.prefix is not None:
        return None
    if item.key.startswith("AS") and item.key[2:].isdigit():
        return f"asn:{item.key[2:]}"
    if len(item.key) == 2 and item.key.isalpha():
        return f"country:{item.key}"
    raise NoRuleError(f"{item.key} is not known by number or code, so it can't be blocked as a whole")


def makes_rule(item: Struct) -> bool:
    """Whether a block can be made of a row."""
    if isinstance(item, PacketRow):
        return item.source is not None
    try:
        rule_from_row("block", item, 0.0)
    except (NoRuleError, FwtopError):
        return False
    return True


# -- packets


def _of_packet(action: str, item: PacketRow) -> tuple[Kind, Match]:
    """Match a packet by what its payload has in common with others to that port, or else by header fields."""
    if item.source is None:
        raise NoRuleError("this is not an IP packet: no rule of fwtop's matches it")
    if action in ("block", "limit"):
        return _KINDS[action], Match(sources=(item.source,))
    if action not in ("like", "string", "xdp"):
        words = "no such rule fits a packet: {like} drops what is like it, {block} blocks its sender"
        raise NoRuleError(KEY_MAP.words(words))
    match = _fields(item)
    if item.field("fragment") == Fragment.LATER:
        return Kind.XDP, match
    if item.payload:
        kind = Kind.XDP if action == "xdp" else Kind.STRING
        return kind, replace(match, payload=(_common_bytes(item),))
    if action == "string":
        words = "this packet has no payload: {like} drops packets with its header fields"
        raise NoRuleError(KEY_MAP.words(words))
    return Kind.XDP, _without_payload(match, item)


def _common_bytes(item: PacketRow) -> PayloadMatch:
    """Return the longest run of bytes that most payloads of like packets have at the same place.

    Transaction ids and other bytes that change with every packet stay out of it. Without others to compare
    with, or without a run worth the name, these are the packet's own first bytes.
    """
    packets, data = item.shown.packets, item.payload[:_SEARCHED]
    like = (packets.protocol == item.field("protocol")) & (packets.dport == item.field("dport"))
    like &= (packets.family == item.field("family")) & (packets.fragment == item.field("fragment"))
    rows = np.flatnonzero(
        like & (packets.payload_length > 0) & (packets.tcp_flags == item.field("tcp_flags"))
    )
    start, best = 0, 0
    if len(rows) >= _FEW:
        heads, _ = payload(packets, rows, len(data))
        common = (heads == np.frombuffer(data, np.uint8)).mean(axis=0) >= _MOST
        edges = np.flatnonzero(np.diff(np.concatenate(([False], common, [False]))))
        runs = edges.reshape(-1, 2)
        if len(runs):
            start, end = runs[np.argmax(runs[:, 1] - runs[:, 0])].tolist()
            best = end - start
    if best < _LEAST:
        return PayloadMatch(data[:_MOST_BYTES], 0)
    return PayloadMatch(data[start : start + min(best, _MOST_RUN)], start)


def _fields(item: PacketRow) -> Match:
    protocol = item.field("protocol")
    match = Match(family=item.field("family"), protocol=protocol)
    if item.field("fragment") == Fragment.LATER:
        return replace(match, fragment=True)
    if protocol in WITH_PORTS:
        match = replace(match, dport=item.field("dport"))
    if protocol in (ICMP, ICMPV6):
        match = replace(match, icmp_type=item.field("icmp_type"))
    if protocol == TCP and item.field("tcp_header"):
        match = replace(match, tcp_flags=(_CLASSIC, item.field("tcp_flags") & _CLASSIC))
    return match


def _without_payload(match: Match, item: PacketRow) -> Match:
    """Narrow a match by length and, for TCP, by window and options' length."""
    length = item.field("ip_length")
    match = replace(match, ip_length=Range(length, length))
    header, window = item.field("tcp_header"), item.field("tcp_window")
    if item.field("protocol") != TCP or not header:
        return match
    return replace(match, tcp_window=Range(window, window), tcp_header=Range(header, header))
