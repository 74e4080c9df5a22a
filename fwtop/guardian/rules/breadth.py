"""Detect overly broad rules: those that leave hardly any clients to serve, or nobody able to log in.

Judged by what the conditions leave over, because a client can add conditions that every packet meets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fwtop.guardian.allow.allowlist import AllowList
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.coverage import SPACE, covered, listed
from fwtop.model.addresses.roles import Role
from fwtop.model.rule import RANGES, ConnectionLimit, Kind, Level, Match, PayloadMatch, Range, RateLimit, Rule
from fwtop.model.traffic.protocols import TCP, UDP

SHORTEST = {4: 8, 6: 16}  # broader prefixes need force, as sources and as what a limit counts by
LIMITING = frozenset({Kind.HASHLIMIT, Kind.XDP, Kind.TC})  # the kinds that heed a rule's limit
_SSH_PORT = 22
_WIDE_SHARE = 1 / 8  # of the addresses: sources beyond it are no condition
_LOGIN_SHARE = 1 / 256  # the same for a rule on a port where operators log in
_LEAST_RATE = {False: 10, True: 10_000}  # packets, bytes a second that a login needs
_LEAST_CONNECTIONS = 4
_LEAST_BITS = 8  # a payload condition on fewer is met by chance
_BANNER = b"SSH-2.0-"  # what every login begins with (RFC 4253, 4.2)
_ORDINARY_FLAGS = (0x02, 0x12, 0x10, 0x18)  # SYN, SYN+ACK, ACK, PSH+ACK
_FLAG_BITS = 0x3F  # without ECE and CWR
# What packets of ordinary clients have in these fields; a range of half of them or more is no condition.
_ORDINARY: dict[str, tuple[Sequence[int], ...]] = {
    "ip_length": (range(40, 1501),),
    "ttl": ((*range(40, 65), *range(104, 129)),),  # up to 24 hops from 64 and from 128
    "ip_id": (range(1 << 16),),
    "tcp_seq": (range(1 << 32),),
    "tcp_window": (range(1 << 16),),
    "tcp_header": (range(20, 41, 4),),
}
_SEGMENT_LENGTHS = (40, 44, 48, 52, 60, 64)  # of handshakes and acknowledgements


def why_broad(rule: Rule, allow: AllowList) -> str | None:
    """Return why a rule needs force, None if it doesn't."""
    if rule.parts:
        return next(filter(None, (why_broad(part, allow) for part in rule.parts)), None)
    if rule.protection is not None:
        at_login = rule.match.protocol == TCP and rule.match.dport in allow.session_ports | {_SSH_PORT}
        closes = at_login and rule.protection.level is Level.CLOSED
        return f"port {rule.match.dport} is where operators log in" if closes else None
    return None if rule.kind is Kind.SYSCTL else _why_wide(rule, allow)


def _why_wide(rule: Rule, allow: AllowList) -> str | None:
    wide = _wide_source(rule.match)
    if wide is not None:
        return f"{wide} is broader than /{SHORTEST[wide.family]}"
    match = narrowing(rule.match, allow)
    if rule.kind is Kind.NOTRACK:
        if match == Match(family=match.family):
            return "it has no condition: rules on connections and NAT would work for nobody"
        return None
    reason = _reason(match, allow.session_ports | {_SSH_PORT})
    return _why_still_broad(rule, match, reason)


def _why_still_broad(rule: Rule, match: Match, reason: str | None) -> str | None:
    """Return why a rule needs force whose limit leaves something; `reason` says why a drop would."""
    if rule.connections is not None:
        return _why_few_connections(rule.connections, rule.match.families, reason)
    if rule.limit is None or rule.kind not in LIMITING:
        return reason
    return _why_limit_broad(rule.limit, rule.match.families, match, reason)


def _reason(match: Match, ports: frozenset[int]) -> str | None:
    """Return what a rule that drops all it matches leaves nobody; `match` has only what narrows it."""
    at_login = match.dport in ports and match.protocol in (None, TCP)
    if match.sources and not _holds(match, _LOGIN_SHARE if at_login else _WIDE_SHARE):
        return None
    if any(getattr(match, name) is not None for name in ("sport", "icmp_type", "fragment", *RANGES)):
        return None
    if match.destinations or match.payload or _is_rare(match.tcp_flags):
        return None
    if at_login:
        return f"port {match.dport} is where operators log in"
    if match.dport is not None:
        return None
    return _of_everything(match)


def _of_everything(match: Match) -> str | None:
    whose = " from more than an eighth of all addresses" if match.sources else ""
    if match.tcp_flags is not None:
        kind = {0x02: "new TCP connections", 0x12: "answers to TCP connections"}.get(_met(match.tcp_flags)[0])
        return f"it matches all {kind or 'TCP'}{whose}"
    if match.protocol is None:
        return f"{'' if match.sources else 'it has no condition: '}every packet{whose} would match"
    name = {TCP: "TCP", UDP: "UDP"}.get(match.protocol)
    return f"it matches all {name}{whose}" if name is not None else None


def _why_limit_broad(
    limit: RateLimit, families: tuple[int, ...], match: Match, reason: str | None
) -> str | None:
    """Return why a limit needs force, None where each source can go on; `reason` says why a drop would."""
    lengths = {4: limit.prefix_v4, 6: limit.prefix_v6}
    for family in families:
        if lengths[family] < SHORTEST[family]:
            return f"all sources of a /{lengths[family]} would share one limit"
    slow = limit.per_second < _LEAST_RATE[limit.in_bytes]
    if reason is not None and slow and match.tcp_flags is None and match.protocol in (None, TCP):
        return f"{reason}, and at this rate nobody can log in"
    return None


def _why_few_connections(limit: ConnectionLimit, families: tuple[int, ...], reason: str | None) -> str | None:
    """Return the same for a limit of connections."""
    lengths = {4: limit.prefix_v4, 6: limit.prefix_v6}
    for family in families:
        if lengths[family] < SHORTEST[family]:
            return f"all sources of a /{lengths[family]} would share one limit"
    if reason is not None and limit.most < _LEAST_CONNECTIONS:
        return f"{reason}, and {limit.most} connections a source are few to log in with"
    return None


def narrowing(match: Match, allow: AllowList) -> Match:
    """Return a match with only the conditions that ordinary packets may fail."""
    ranges = {name: getattr(match, name) for name in RANGES}
    kept: dict[str, Any] = {
        name: None if _is_usual(name, span, match.protocol) else span for name, span in ranges.items()
    }
    flags = match.tcp_flags
    if flags is not None and len(_met(flags)) == len(_ORDINARY_FLAGS):
        flags = None
    destinations = () if _is_all_of(match, allow) else match.destinations
    return replace(
        match,
        protocol=TCP if match.reads_tcp else match.protocol,
        tcp_flags=flags,
        fragment=match.fragment or None,
        payload=tuple(item for item in match.payload if not _is_met_by_chance(item, match)),
        destinations=destinations,
        **kept,
    )


def _is_usual(name: str, span: Range | None, protocol: int | None) -> bool:
    if span is None:
        return False
    usual = [_part(span, values) for values in _ORDINARY[name]]
    if name == "ip_length" and protocol in (None, TCP):
        usual.append(_part(span, _SEGMENT_LENGTHS))
    return max(usual) >= 0.5


def _part(span: Range, values: Sequence[int]) -> float:
    """Return which part of some values a range holds."""
    if isinstance(values, range) and values.step == 1:
        return max(0, min(span.high, values[-1]) - max(span.low, values[0]) + 1) / len(values)
    return sum(span.low <= value <= span.high for value in values) / len(values)


def _met(flags: tuple[int, int]) -> list[int]:
    """Return the flags of ordinary segments that a condition lets through to the rule."""
    mask, value = flags[0] & _FLAG_BITS, flags[1] & _FLAG_BITS
    return [ordinary for ordinary in _ORDINARY_FLAGS if ordinary & mask == value & mask]


def _is_rare(flags: tuple[int, int] | None) -> bool:
    return flags is not None and not _met(flags)


def _is_met_by_chance(item: PayloadMatch, match: Match) -> bool:
    bits = sum(byte.bit_count() for byte in item.compared_bits)
    return bits < _LEAST_BITS or (match.dport is not None and item.data in _BANNER)


def _is_all_of(match: Match, allow: AllowList) -> bool:
    """Return whether the destinations hold every address that a family of this host is reached at."""
    if not match.destinations:
        return False
    if any(_share((match.destinations,), family) > _WIDE_SHARE for family in match.families):
        return True
    own = [entry.prefix for entry in allow.entries if entry.role is Role.OWN]
    own = [prefix for prefix in own if not prefix.network.is_link_local and not prefix.network.is_loopback]
    for family in match.families:
        mine = [prefix for prefix in own if prefix.family == family]
        mine = [prefix for prefix in mine if prefix.network.is_global] or mine
        if mine and all(any(to.contains(prefix) for to in match.destinations) for prefix in mine):
            return True
    return False


def _holds(match: Match, share: float) -> bool:
    return any(_share((match.sources,), family) > share for family in match.families)


def _share(lists: Sequence[Sequence[Prefix]], family: int) -> float:
    return covered(lists, family) / SPACE[family]


def _wide_source(match: Match) -> Prefix | None:
    broadest = [listed(match.sources).shortest(family) for family in match.families]
    return next((item for item in broadest if item is not None and item.length < SHORTEST[item.family]), None)
