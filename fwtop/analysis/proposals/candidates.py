"""Rules that may help against an attack, before they are measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from fwtop.analysis.context import AnalysisContext, Finding, Trait
from fwtop.analysis.proposals import effect
from fwtop.analysis.proposals.bystanders import has_return_path, others, users
from fwtop.analysis.proposals.limits import fills_table, usual_rate
from fwtop.analysis.proposals.matching import USUAL_WINDOWS, in_prefixes
from fwtop.analysis.proposals.normal import Normal
from fwtop.analysis.proposals.prefixes import Addresses, fewest_prefixes, neighbours, single_hosts
from fwtop.analysis.proposals.services import (
    Candidate,
    attacked_behind,
    drafted,
    proxied,
    resolver,
    untracked,
)
from fwtop.analysis.proposals.signatures import Signature
from fwtop.analysis.window.features import Features, Top, top_of
from fwtop.analysis.window.tcp_view import ACK, FIN, RST, SYN
from fwtop.analysis.window.traffic import TCP, UDP
from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Kind, Match, Range, RateLimit
from fwtop.model.traffic.packets import FLAG_TRUNCATED, Fragment
from fwtop.render.numbers import percent, plural
from fwtop.rules.kinds import of
from fwtop.rules.words import describe

# TCP flags that no stack sends: mask, value and the reason (RFC 9293, 3.10.7)
_IMPOSSIBLE = (
    (SYN | RST | ACK, 0, "every valid segment has one of these flags"),
    (SYN | FIN, SYN | FIN, "no connection opens and closes at once"),
    (SYN | RST, SYN | RST, "no connection opens and closes at once"),
    (FIN | RST, FIN | RST, "no connection closes both ways"),
)
USEFUL = 0.3  # share of the attack below which a rule isn't worth it
_NARROW = {4: 24, 6: 48}  # networks of one owner
_FEW_SOURCES = 20  # a list so short is enough; and few hosts may share a TTL
_SIGNATURES = 3
_BUSY = 0.5  # of a core
_ANY_SOURCE = Match(sources=(Prefix(4, 0, 0),))
_MOST = 0.9  # of the packets have the value
_OCCUPIED, _MOSTLY = 20, 0.5  # open connections to a service, and their part of all
_NEARLY_ALL = 0.95
_LARGE = 300  # bytes of IP
_WITHOUT_OPTIONS = 20  # bytes of TCP header
_KNOWN = 30  # normal packets, before their rate is known
_RATE_FACTORS = (2.0, 4.0, 8.0)  # times what normal sources send
_RATES = (  # packets a second, as a person would choose them
    10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 1_000_000,
)  # fmt: skip

Form = tuple[str, Match, str]  # an identifier, the match, the reason in words


def candidates(
    context: AnalysisContext, finding: Finding, normal: Normal, found: Sequence[Signature]
) -> Iterator[Candidate]:
    """Yield rules by fields, payload, sources and rate, and for a full table.

    What a bridge passes on without netfilter only rules at its ports meet. Rules match IP, nothing else.
    """
    families = np.unique(context.traffic.packets.family[finding.rows])
    if len(families) and not families.any():
        return
    at_ports = _is_beside_netfilter(context, finding)
    alone = int(families[0]) if len(families) == 1 else None
    base = replace(finding.match, family=finding.match.family or alone)
    forged = finding.spoof.probability > context.config.spoof_threshold
    # Without a baseline, requests over real connections can't be told from clients by header fields
    if not (finding.requests and normal.guess and not forged):
        yield from _by_fields(context, finding, base, guess=normal.guess)
    yield from _by_payload(context, base, found, at_ports=at_ports)
    if not forged:
        yield from _by_sources(context, finding, base, normal)
        yield from _by_rate(context, finding, base, normal)
    if at_ports:
        return
    yield from proxied(context, finding, base)
    yield from untracked(context, finding, base)
    yield from resolver(context, finding)


def _by_fields(
    context: AnalysisContext, finding: Finding, base: Match, *, guess: bool
) -> Iterator[Candidate]:
    """Drop by header fields: those of the vector, then narrowed by dominant values of others."""
    if Trait.SCAN in finding.traits:
        return
    if Trait.ODD_FLAGS in finding.traits and base.tcp_flags is None:
        for mask, value, why in _IMPOSSIBLE:  # bare ACKs share the length
            rule = drafted(context, Kind.XDP, replace(base, tcp_flags=(mask, value)))
            yield Candidate(rule, why, f"flags {mask}/{value}")
        return
    features = Features(context.traffic, finding.rows)
    for form, match, why in _narrowed(features, base, requests=finding.requests, guess=guess):
        yield Candidate(drafted(context, Kind.XDP, match), why, form)
    if base.tcp_flags == (SYN | ACK, SYN | ACK):
        rule = drafted(context, Kind.XDP, replace(base, tcp_flags=(RST, RST)))
        yield Candidate(rule, "closed ports answer the same spoofed SYNs with RST", "resets", beside=True)
    fragments = context.traffic.packets.fragment[finding.rows] != Fragment.NONE
    if float(features.weight[fragments].sum()) > 0.5 * features.packets and not base.fragment:
        match = Match(family=base.family, protocol=base.protocol, fragment=True)
        yield Candidate(drafted(context, Kind.XDP, match), "most of its packets are fragments", "fragments")


def _narrowed(features: Features, base: Match, *, requests: bool, guess: bool) -> Iterator[Form]:
    """Yield matches by fields: those of the vector, and narrowed by further constant fields.

    Many floods have a constant that no real host has. Without a baseline (`guess`), values that real hosts
    use are not taken as constants of an attack.
    """
    ported = base.sport is not None or base.dport is not None
    specific = base.protocol not in (None, TCP, UDP) or ported or base.tcp_flags is not None or base.fragment
    if specific and not requests:
        yield "fields", base, "all its packets have these fields"
    length, ttl = features.top("ip_length"), features.top("ttl")
    if length.share > _MOST:
        only = _constant("length", base, "ip_length", length, "length")
        yield only
        if ttl.share > _MOST:
            share = percent(min(length.share, ttl.share))
            both = replace(only[1], ttl=Range(ttl.value, ttl.value))
            yield "length and ttl", both, f"{share} of its packets have both"
    elif base.protocol == UDP and ported and features.n >= 50:
        low = int(np.quantile(features.traffic.packets.ip_length[features.rows], 0.02))
        if low >= _LARGE:
            yield "large", replace(base, ip_length=Range(low, 65535)), "98 % of its packets are that large"
    if ttl.share > _NEARLY_ALL and features.sources > _FEW_SOURCES:
        yield _constant("ttl", base, "ttl", ttl, "TTL")
    yield from _odd(features, base, guess=guess)


def _odd(features: Features, base: Match, *, guess: bool) -> Iterator[Form]:
    """Yield matches with a constant source port, IP ID, window or TCP header length."""
    packets, rows = features.traffic.packets, features.rows
    rows = rows[packets.fragment[rows] != Fragment.LATER]

    def top(column: str) -> Top:
        return top_of(getattr(packets, column)[rows], features.traffic.weight[rows])

    sport, number = top("sport"), features.top("ip_id")
    if base.protocol in (TCP, UDP) and base.sport is None and sport.share > _MOST and sport.value:
        yield "sport", replace(base, sport=sport.value), _has(sport, "source port")
    # Linux sets 0 in unfragmentable packets without a connection (any value is valid: RFC 6864, 4.1)
    if base.family == 4 and number.share > _MOST and (number.value or not guess):
        yield _constant("ip id", base, "ip_id", number, "IP id")
    if base.protocol != TCP:
        return
    rows = rows[(packets.flags[rows] & FLAG_TRUNCATED) == 0]
    opens = base.tcp_flags is not None and base.tcp_flags[0] & base.tcp_flags[1] & (SYN | ACK) == SYN
    window, sequence, header = top("tcp_window"), top("tcp_seq"), top("tcp_header")
    usual = window.value in USUAL_WINDOWS or (window.value == 0 and not opens)
    if window.share > _MOST and not (guess and usual):
        yield _constant("window", base, "tcp_window", window, "window")
    if sequence.share > _MOST:
        yield _constant("sequence", base, "tcp_seq", sequence, "sequence number")
    # Every real system sends options in SYNs (RFC 9293, 3.7.1); later segments often have none
    bare = opens and header.value == _WITHOUT_OPTIONS
    if header.share > _MOST and header.value >= _WITHOUT_OPTIONS and (bare or not guess):
        yield _constant("header", base, "tcp_header", header, "TCP header length")


def _constant(form: str, base: Match, field: str, top: Top, what: str) -> Form:
    return form, replace(base, **{field: Range(top.value, top.value)}), _has(top, what)


def _has(top: Top, what: str) -> str:
    return f"{percent(top.share)} of its packets have this {what}"


def _by_payload(
    context: AnalysisContext, base: Match, found: Sequence[Signature], *, at_ports: bool
) -> Iterator[Candidate]:
    """Drop by what the payloads have in common; at a port, bytes are only looked for at their offset."""
    scope = Match(family=base.family, protocol=base.protocol, dport=base.dport)
    for signature in found[:_SIGNATURES]:
        match = signature.match
        if at_ports and match.offset is None:
            continue
        rule = drafted(context, Kind.XDP if at_ports else Kind.STRING, replace(scope, payload=(match,)))
        what = "this name" if match.dns_name is not None else "these bytes"
        why = f"{percent(signature.attack_share)} of its payloads have {what}"
        yield Candidate(rule, why, f"{match.offset} {match.data.hex()}")


def _by_sources(
    context: AnalysisContext, finding: Finding, base: Match, normal: Normal
) -> Iterator[Candidate]:
    """Block sources: chosen on most of the attack's packets, measured on the others.

    Where nothing proves that they are who they say, also limit what they send to the service: this alone may
    be done without anybody asked.
    """
    traffic, config, chooses = context.traffic, context.config, finding.rows
    if len(effect.measured_on(_ANY_SOURCE, traffic, finding.rows)) < len(finding.rows):
        chooses = finding.rows[~effect.held_out(traffic.packets, finding.rows)]
    # Addresses are chosen of each sort of its own: of one that hardly takes part they would be clients
    sort = np.where(neighbours(traffic.packets, chooses), 0, traffic.packets.family[chooses])
    sent = np.bincount(sort, traffic.weight[chooses])
    chooses = chooses[sent[sort] >= (1 - config.source_share) * sent.sum()]
    near = neighbours(traffic.packets, chooses)
    on_link, chooses = chooses[near], chooses[~near]
    weight, attack = traffic.weight[chooses], Addresses.of(traffic.packets, chooses)
    for form, target in (("most", config.source_share), ("half", 0.5)):
        cover = fewest_prefixes(attack, weight, normal.sources, target=target, limit=config.max_prefixes)
        hosts = single_hosts(traffic.packets, on_link, traffic.weight[on_link], target=target)
        prefixes, sources = hosts.prefixes + cover.prefixes, hosts.sources + cover.sources
        match = Match(sources=prefixes)
        share = effect.share_of_sources(match, traffic, effect.measured_on(match, traffic, finding.rows))
        if not prefixes or share < USEFUL:
            continue
        kind = _where(context, finding, Kind.IPSET)
        rule = replace(drafted(context, kind, match), summary=f"block {_counted(prefixes)}{of(kind).place}")
        if _occupy(context, finding, match):
            summary = f"{rule.summary} and close the open connections"
            rule = replace(rule, close_open=True, summary=summary)
        verb = "sends" if sources == 1 else "send"
        why = f"{plural(sources, 'source')} {verb} {percent(share)} of the attack"
        yield Candidate(rule, why, form)
        is_narrow = all(one.length >= _NARROW[one.family] for one in prefixes)
        if form == "most" and is_narrow and not has_return_path(context, finding):
            scope = Match(family=base.family, protocol=base.protocol, sport=base.sport, dport=base.dport)
            prefixes = others(prefixes, users(scope, context, normal)) or prefixes
            scope = replace(scope, sources=prefixes)
            each = RateLimit(_RATES[0], _RATES[0], 32, 64)
            limited = drafted(context, _where(context, finding, Kind.HASHLIMIT), scope, each)
            summary = f"limit {_counted(prefixes)} to {_RATES[0]} packets/s each"
            yield Candidate(replace(limited, summary=summary), why, "each source")
        if len(prefixes) <= _FEW_SOURCES:
            return


def _occupy(context: AnalysisContext, finding: Finding, match: Match) -> bool:
    """Check whether those who ask too much have most of the service's connections open.

    The server would wait for them until its timeouts, and serve nobody meanwhile.
    """
    table, port = context.sockets, finding.match.dport
    if table is None or port is None or not finding.requests:
        return False
    held = table.connections.select(table.connections.port == port)
    theirs = in_prefixes(held.family, held.hi, held.lo, match.sources)
    return int(theirs.sum()) >= _OCCUPIED and float(theirs.mean()) >= _MOSTLY


def _where(context: AnalysisContext, finding: Finding, kind: Kind) -> Kind:
    """Return XDP instead of `kind` if the attack would cost more than half a core there, or passes it by."""
    if _is_beside_netfilter(context, finding):
        return Kind.XDP
    cost = context.config.cost_ns
    usual, driver = cost.get(kind.value, 0.0), cost.get(Kind.XDP.value, float("inf"))
    busy = context.traffic.pps(finding.rows) * usual * 1e-9 > _BUSY
    return Kind.XDP if busy and driver < usual else kind


def _is_beside_netfilter(context: AnalysisContext, finding: Finding) -> bool:
    """Return whether a bridge passes the attack on without showing it to netfilter."""
    families = context.config.beside_netfilter
    return bool(families) and any(prefix.family in families for prefix in attacked_behind(context, finding))


def _counted(prefixes: Sequence[Prefix]) -> str:
    """Write the number of prefixes of a list, and of the addresses in them if it is IPv4's alone."""
    count = len(prefixes)
    if count == 1:
        return str(prefixes[0])
    if all(prefix.is_address for prefix in prefixes):
        return f"{count:,} addresses"
    if any(prefix.family == 6 for prefix in prefixes):  # a /64 has more than anybody wants to read
        return f"{count:,} prefixes"
    return f"{count:,} prefixes with {sum(1 << (32 - prefix.length) for prefix in prefixes):,} addresses"


def _by_rate(context: AnalysisContext, finding: Finding, base: Match, normal: Normal) -> Iterator[Candidate]:
    """Limit each source to twice the rate of normal sources of the service, or more if that harms."""
    traffic = context.traffic
    scope = Match(family=base.family, protocol=base.protocol, dport=base.dport)
    why = "normal sources send less than half that rate"
    if len(normal.packets) < _KNOWN:
        why = "the rate of normal sources is not known"
    for per in (32, 24):
        # For a rule of one family, the other prefix length is the default of the command line
        lengths = (32 if base.family == 6 else per, 64 if per == 32 or base.family == 4 else 56)
        limit = RateLimit(1, 1, *lengths)
        usual = usual_rate(limit, normal.packets, normal.pps * normal.seconds, normal.seconds)
        for factor in _RATE_FACTORS:
            rate = next((step for step in _RATES if max(10.0, factor * usual) <= step), _RATES[-1])
            limit = replace(limit, per_second=rate, burst=rate)
            if effect.share_of(effect.stopped(scope, limit, traffic), traffic, finding.rows) < USEFUL:
                break
            harmless = effect.harm(scope, limit, normal, traffic).share <= context.config.collateral_limit
            if not harmless and factor != _RATE_FACTORS[-1]:
                continue
            length = limit.prefix_v6 if base.family == 6 else limit.prefix_v4
            rule = drafted(context, _where(context, finding, Kind.HASHLIMIT), scope, limit)
            if fills_table(rule, traffic):  # the table of XDP evicts the oldest entry instead
                rule = drafted(context, Kind.XDP, scope, limit)
            summary = f"limit {describe(scope)} to {rate:,} packets/s per /{length}{of(rule.kind).place}"
            yield Candidate(replace(rule, summary=summary), why, f"/{per}")
            return
