"""Detect overly broad rules: those that leave hardly any clients to serve, or somebody unable to log in.

Logins and answers to this host are rehearsed (fwtop/rehearsal). Of datagrams it is judged what the conditions
leave over, because a client can add conditions that every packet meets. Rules that are narrow each may be
overly broad together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from fwtop.model.addresses.address import SPACE, Prefix, covered, listed, says_more, sizes
from fwtop.model.addresses.roles import Role
from fwtop.model.harm import Loss, Weight, Who
from fwtop.model.rule import RANGES, Kind, Level, Match, Range, Rule
from fwtop.model.traffic.protocols import TCP, UDP
from fwtop.rehearsal.host import Host, KnownPeers
from fwtop.rehearsal.segments import Met, meet, why_cut
from fwtop.rules.kinds import drops_nothing, heeds_limit, of
from fwtop.rules.overlap import is_wider

SHORTEST = {4: 16, 6: 40}  # of a block: nobody has seen all of a broader prefix attack, so it needs force
_SHORTEST_NAMED = {4: 8, 6: 16}  # the same of lists with a name or an origin, and of what limits count by
_WIDE_SHARE = 1 / 8  # of the addresses: sources beyond it are no condition
_LOGIN_SHARE = 1 / 256  # the same for a rule on a port where operators log in
_LEAST_CONNECTIONS = 4
_LEAST_BITS = 8  # a payload condition on fewer is met by chance
_ORDINARY_FLAGS = (0x02, 0x12, 0x10, 0x18)  # SYN, SYN+ACK, ACK, PSH+ACK
_FLAG_BITS = 0x3F  # without ECE and CWR
# What datagrams of ordinary clients have in these fields; a range of half of them or more is no condition.
_ORDINARY: dict[str, Sequence[int]] = {
    "ip_length": range(40, 1501),
    "ttl": (*range(40, 65), *range(104, 129)),  # up to 24 hops from 64 and from 128
    "ip_id": range(1 << 16),
}


def why_broad(rule: Rule, host: Host) -> Loss | None:
    """Return for what a rule needs force, None if it doesn't."""
    if rule.parts:
        return next(filter(None, (why_broad(part, host) for part in rule.parts)), None)
    if rule.protection is not None:
        at_login = rule.match.protocol == TCP and rule.match.dport in host.allow.login_ports
        closes = at_login and rule.protection.level is Level.CLOSED
        return _forced(Who.LOGINS, f"port {rule.match.dport} is where operators log in") if closes else None
    return None if rule.settings else _why_wide(rule, host)


def _forced(who: Who, words: str) -> Loss:
    return Loss(who, words, Weight.NEEDS_FORCE)


def _why_wide(rule: Rule, host: Host) -> Loss | None:
    match, allow = rule.match, host.allow
    if wide := _wide_source(match, _SHORTEST_NAMED):
        return _forced(Who.EVERYBODY, wide)
    if of(rule.kind).untracks:
        if _is_unconditional(match):
            words = "it has no condition: rules on connections and NAT would work for nobody"
            return _forced(Who.EVERYBODY, words)
        spares = rule.stateless or not is_from_anywhere(match, allow)
        return None if spares else host.untracked(match, allow.login_ports)
    if reason := _why_shared(rule) or (
        _why_dropping(rule, allow) if is_from_anywhere(match, allow) else None
    ):
        return reason
    unnamed = rule.origin is None and rule.limit is None and not drops_nothing(rule)
    wide = _wide_source(match, SHORTEST) if unnamed else ""
    return _forced(Who.EVERYBODY, wide) if wide else None


def _why_dropping(rule: Rule, allow: KnownPeers) -> Loss | None:
    """Return what a rule leaves nobody, whose addresses spare hardly anybody."""
    match, ports = rule.match, allow.login_ports
    if of(rule.kind).answers:
        answered = f"port {match.dport} is where operators log in, and the proxy would answer there"
        return _forced(Who.LOGINS, answered) if match.dport in ports else None
    met = meet(rule.kind, match, ports)
    reason = _why_met(met, match, ports) or _why_datagrams(rule.kind, match)
    if reason is None or (rule.connections is None and not (rule.limit and heeds_limit(rule))):
        return reason
    if rule.connections is not None:
        spares = rule.connections.most >= _LEAST_CONNECTIONS
        few = f"and {rule.connections.most} connections a source are few to log in with"
    else:
        spares = rule.limit is None or not met.slowed(rule.kind, rule.limit)
        few = "and at this rate nobody can log in"
    return None if spares else _forced(Who.LOGINS, f"{reason.words}, {few}")


def _is_unconditional(match: Match) -> bool:
    """Return whether ordinary packets of a family meet all conditions that a notrack rule heeds."""
    if match.sources or match.destinations or match.dport is not None or match.sport is not None:
        return False
    is_plain = match.protocol is None and match.icmp_type is None and not match.reads_tcp
    return is_plain and not match.fragment and _is_usual(match)


def _why_shared(rule: Rule) -> Loss | None:
    limit = rule.connections or (rule.limit if heeds_limit(rule) else None)
    if limit is None:
        return None
    for family, length in ((4, limit.prefix_v4), (6, limit.prefix_v6)):
        if family in rule.match.families and length < _SHORTEST_NAMED[family]:
            return _forced(Who.EVERYBODY, f"all sources of a /{length} would share one limit")
    return None


def is_from_anywhere(match: Match, allow: KnownPeers) -> bool:
    """Return whether a match's addresses spare hardly anybody."""
    at_login = match.dport in allow.login_ports and match.protocol in (None, TCP)
    least = _LOGIN_SHARE if at_login else _WIDE_SHARE
    if match.sources and all(_share(match.sources, family) <= least for family in match.families):
        return False
    return not match.destinations or is_all_of(match, allow)


def _why_met(met: Met, match: Match, ports: frozenset[int]) -> Loss | None:
    """Return what a rule that drops all it matches does to logins and to what this host asks."""
    reason = why_cut(met, match)
    if reason is not None and match.dport in ports:
        return replace(reason, words=f"port {match.dport} is where operators log in: {reason.words}")
    return _of_everything(match) if met.whole else reason


def _why_datagrams(kind: Kind, match: Match) -> Loss | None:
    """Return what a rule leaves of UDP."""
    if match.protocol != UDP or match.fragment or match.icmp_type is not None or match.reads_tcp:
        return None
    if match.dport is not None or match.sport is not None or not _is_usual(match):
        return None
    bits = [sum(byte.bit_count() for byte in item.compared_bits) for item in match.payload]
    met_by_chance = all(number < _LEAST_BITS for number in bits) or not of(kind).reads_payload
    return _of_everything(match) if met_by_chance else None


def _of_everything(match: Match) -> Loss | None:
    whose = " from more than an eighth of all addresses" if match.sources else ""
    flags = _met(match.tcp_flags) if match.tcp_flags is not None else []
    named = {TCP: "TCP", UDP: "UDP"}.get(match.protocol or 0, "")
    if match.reads_tcp:
        opening = {0x02: "new TCP connections", 0x12: "answers to TCP connections"}
        named = opening.get(flags[0], "TCP") if flags and len(flags) < len(_ORDINARY_FLAGS) else "TCP"
    elif match.protocol is None:
        words = f"{'' if match.sources else 'it has no condition: '}every packet{whose} would match"
        return _forced(Who.EVERYBODY, words)
    return _forced(Who.EVERYBODY, f"it matches all {named}{whose}") if named else None


def _is_usual(match: Match) -> bool:
    spans = {name: getattr(match, name) for name in _ORDINARY}
    return all(span is None or _part(span, _ORDINARY[name]) >= 0.5 for name, span in spans.items())


def _part(span: Range, values: Sequence[int]) -> float:
    if isinstance(values, range):
        return max(0, min(span.high, values[-1]) - max(span.low, values[0]) + 1) / len(values)
    return sum(span.low <= value <= span.high for value in values) / len(values)


def _met(flags: tuple[int, int]) -> list[int]:
    """Return the flags of ordinary segments that a condition lets through to the rule."""
    mask, value = flags[0] & _FLAG_BITS, flags[1] & _FLAG_BITS
    return [ordinary for ordinary in _ORDINARY_FLAGS if ordinary & mask == value & mask]


def is_all_of(match: Match, allow: KnownPeers) -> bool:
    """Return whether the destinations hold every address that a family of this host is reached at."""
    if not match.destinations:
        return False
    if any(_share(match.destinations, family) > _WIDE_SHARE for family in match.families):
        return True
    own = [entry.prefix for entry in allow.entries if entry.role is Role.OWN]
    own = [prefix for prefix in own if not prefix.network.is_link_local and not prefix.network.is_loopback]
    for family in match.families:
        mine = [prefix for prefix in own if prefix.family == family]
        mine = [prefix for prefix in mine if prefix.network.is_global] or mine
        if mine and all(any(to.contains(prefix) for to in match.destinations) for prefix in mine):
            return True
    return False


def _share(prefixes: Sequence[Prefix], family: int) -> float:
    """Return the part of all addresses that a list covers, or more where that is next to nothing."""
    most = sizes(prefixes, family) / SPACE[family]
    return most if most <= _LOGIN_SHARE else covered((prefixes,), family) / SPACE[family]


def _wide_source(match: Match, shortest: Mapping[int, int]) -> str:
    index = listed(match.sources)
    broadest = [index.shortest(family) for family in match.families]
    found = (item for item in broadest if item is not None and item.length < shortest[item.family])
    return next((f"{item} is broader than /{shortest[item.family]}" for item in found), "")


def why_broad_together(rule: Rule, others: Sequence[Rule], host: Host) -> Loss | None:
    """Return why rules that act together need force, as one rule that does what they do would.

    What the others do without `rule` was judged before.
    """
    parts = [part for other in others for part in other.parts or (other,)]
    for own in rule.parts or (rule,):
        for whole in _joined(own, parts):
            if why := why_broad(whole, host):
                return replace(why, words=f"together with the active rules of screens, {why.words}")
    return None


def _joined(rule: Rule, others: Sequence[Rule]) -> Iterator[Rule]:
    """Yield what a rule is part of: rules with the sources, or the range in one field, of several."""
    for base in (rule, *others):
        if not base.match.sources or not _drops_as(rule, base):
            continue
        alike = [item for item in (rule, *others) if _drops_as(item, base)]
        lists = [item.match.sources for item in alike if not says_more(item.match.sources)]
        named = next((item.origin for item in alike if item.origin), None)
        yield replace(base, match=replace(base.match, sources=_union(lists)), origin=named)
    for name in RANGES:
        spans = [span for item in (rule, *others) if (span := _span_in(item, rule, name)) is not None]
        if len(spans) > 1 and (hull := _hull(spans)) is not None:
            yield replace(rule, match=_with(rule.match, name, hull))


def _drops_as(rule: Rule, base: Rule) -> bool:
    """Whether a rule does to its sources at least what a base does to its own."""
    limits = ((rule.limit, base.limit), (rule.connections, base.connections))
    alike = drops_nothing(rule) == drops_nothing(base) and all(own in (None, its) for own, its in limits)
    return alike and bool(rule.match.sources) and is_wider(rule.match, base.match)


def _span_in(item: Rule, rule: Rule, name: str) -> Range | None:
    """Return a rule's range in a field that alone tells it from another one."""
    same = item.limit == rule.limit and _with(item.match, name, None) == _with(rule.match, name, None)
    span: Range | None = getattr(item.match, name) if same else None
    return span


def _hull(spans: Sequence[Range]) -> Range | None:
    low, high = min(span.low for span in spans), max(span.high for span in spans)
    held, end = 0, low - 1
    for span in sorted(spans, key=lambda item: item.low):
        held += max(0, span.high - max(end, span.low - 1))
        end = max(end, span.high)
    return Range(low, high) if 2 * held >= high - low + 1 else None


def _with(match: Match, name: str, span: Range | None) -> Match:
    changes: dict[str, Any] = {name: span}
    return replace(match, **changes)


def _union(lists: Sequence[Sequence[Prefix]]) -> Sequence[Prefix]:
    if all(isinstance(item, tuple) for item in lists):
        return tuple(prefix for item in lists for prefix in item)
    from fwtop.model.addresses.prefix_rows import PrefixRows  # for long lists

    return PrefixRows.union(lists)
