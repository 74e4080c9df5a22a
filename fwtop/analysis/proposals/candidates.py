"""Rules that may help against an attack, before they are measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.context import AnalysisContext, Finding, Trait
from fwtop.analysis.proposals.constants import narrowed
from fwtop.analysis.proposals.effect import (
    harm,
    held_out,
    measured_on,
    share_of,
    share_of_sources,
    stopped,
)
from fwtop.analysis.proposals.limits import fills_table, usual_rate
from fwtop.analysis.proposals.normal import Normal
from fwtop.analysis.proposals.prefixes import Addresses, Cover, fewest_prefixes, neighbours, single_hosts
from fwtop.analysis.proposals.resolver import resolver_rule
from fwtop.analysis.proposals.signatures import Signature
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.tcp_view import ACK, FIN, RST, SYN
from fwtop.analysis.window.traffic import TCP, UDP, Rows, weighted_top
from fwtop.harden.playbook import Options as PlaybookOptions
from fwtop.harden.playbook import rule_of
from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Kind, Match, RateLimit, Rule, Setting
from fwtop.model.traffic.packets import Fragment
from fwtop.model.tunables import TUNABLES
from fwtop.render.numbers import percent, plural
from fwtop.rules.kinds import of
from fwtop.rules.words import describe, with_summary

# TCP flags that no stack sends: mask, value and the reason (RFC 9293, 3.10.7)
_IMPOSSIBLE = (
    (SYN | RST | ACK, 0, "every valid segment has one of these flags"),
    (SYN | FIN, SYN | FIN, "no connection opens and closes at once"),
    (SYN | RST, SYN | RST, "no connection opens and closes at once"),
    (FIN | RST, FIN | RST, "no connection closes both ways"),
)
_TABLE_MAX = "net.netfilter.nf_conntrack_max"
_TCP_TIMEOUTS = (
    "net.netfilter.nf_conntrack_tcp_timeout_syn_recv",
    "net.netfilter.nf_conntrack_tcp_timeout_syn_sent",
)
_ALL_TIMEOUTS = (*_TCP_TIMEOUTS, "net.netfilter.nf_conntrack_udp_timeout")
_MOST_UNTRACKED = 2  # services
_PORT, _MOSTLY = 0.05, 0.8  # of an attack: goes to a port that is worth a rule; to all of these
_MOST_BEHIND = 8  # attacked addresses that one proxy answers for
_LOGIN = (TCP, 22)  # stays tracked, as in `fwtop harden stateless`
_TRACKED = 0.5  # of an attack's packets: as many new connections show that each opens one
_TIMEOUT_SECONDS = 10  # the kernel's are 60, 120 and 30 (nf_conntrack-sysctl.rst); a handshake takes 1
_ROOM = 4  # times the present size
_ENTRY_BYTES = 320  # of a tracked connection: struct nf_conn and its extensions, Linux 6.x
USEFUL = 0.3  # share of the attack below which a rule isn't worth it
_FEW_SOURCES = 20
_SIGNATURES = 3
_BUSY = 0.5  # of a core
_ANY_SOURCE = Match(sources=(Prefix(4, 0, 0),))
_RATE_FACTORS = (2.0, 4.0, 8.0)  # times what normal sources send


class Candidate(Struct, frozen=True):
    """A rule before it is measured. `form` distinguishes it from others of its kind."""

    rule: Rule
    why: str
    form: str
    beside: bool = False  # stops a smaller share that the others miss


def candidates(
    context: AnalysisContext, finding: Finding, normal: Normal, found: Sequence[Signature]
) -> Iterator[Candidate]:
    """Yield rules by fields, payload, sources and rate, and for a full table.

    What a bridge passes on without netfilter only rules at its ports meet. Rules match IP, nothing else.
    """
    config = context.config
    if len(finding.rows) and not context.traffic.packets.family[finding.rows].any():
        return
    at_ports = _is_beside_netfilter(context, finding)
    family = _family(context, finding.rows)
    base = replace(finding.match, family=finding.match.family or family)
    forged = finding.spoof.probability > config.spoof_threshold
    # Without a baseline, requests over real connections can't be told from clients by header fields
    if not (finding.requests and normal.guess and not forged):
        yield from _by_fields(context, finding, base, guess=normal.guess)
    yield from _by_payload(base, found, config, at_ports=at_ports)
    if not forged:
        yield from _by_sources(context, finding, normal, config)
        yield from _by_rate(context, finding, base, normal, config)
    if at_ports:
        return
    yield from _proxied(context, finding, base, config)
    yield from _untracked(context, finding, base, config)
    if (rule := resolver_rule(context, finding)) is not None:
        yield Candidate(
            rule, "'fwtop harden resolver' also tells what the server itself can do", rule.playbook
        )


def _by_fields(
    context: AnalysisContext, finding: Finding, base: Match, *, guess: bool
) -> Iterator[Candidate]:
    """Drop by header fields: those of the vector, then narrowed by dominant values of others."""
    config = context.config
    if Trait.SCAN in finding.traits:
        return
    if Trait.ODD_FLAGS in finding.traits and base.tcp_flags is None:
        for (
            mask,
            value,
            why,
        ) in _IMPOSSIBLE:  # bare ACKs share the length
            match = replace(base, tcp_flags=(mask, value))
            yield Candidate(_rule(Kind.XDP, match, config), why, f"flags {mask}/{value}")
        return
    packets = context.traffic.packets
    features = Features(context.traffic, finding.rows)
    for form, match, why in narrowed(features, base, requests=finding.requests, guess=guess):
        yield Candidate(_rule(Kind.XDP, match, config), why, form)
    if base.tcp_flags == (SYN | ACK, SYN | ACK):
        yield Candidate(
            _rule(Kind.XDP, replace(base, tcp_flags=(RST, RST)), config),
            "closed ports answer the same spoofed SYNs with RST",
            "resets",
            beside=True,
        )
    fragments = packets.fragment[finding.rows] != Fragment.NONE
    if float(features.weight[fragments].sum()) > 0.5 * features.packets and not base.fragment:
        match = Match(family=base.family, protocol=base.protocol, fragment=True)
        yield Candidate(_rule(Kind.XDP, match, config), "most of its packets are fragments", "fragments")


def _by_payload(
    base: Match, found: Sequence[Signature], config: AdviseConfig, *, at_ports: bool
) -> Iterator[Candidate]:
    """Drop by what the payloads have in common; at a port, bytes are only looked for at their offset."""
    scope = Match(family=base.family, protocol=base.protocol, dport=base.dport)
    for signature in found[:_SIGNATURES]:
        match = signature.match
        if at_ports and match.offset is None:
            continue
        kind = Kind.XDP if at_ports else Kind.STRING
        rule = _rule(kind, replace(scope, payload=(match,)), config)
        what = "this name" if match.dns_name is not None else "these bytes"
        why = f"{percent(signature.attack_share)} of its payloads have {what}"
        yield Candidate(rule, why, f"{match.offset} {match.data.hex()}")


def _by_sources(
    context: AnalysisContext, finding: Finding, normal: Normal, config: AdviseConfig
) -> Iterator[Candidate]:
    """Block sources: chosen on most of the attack's packets, measured on the others."""
    traffic = context.traffic
    chooses = finding.rows
    if len(measured_on(_ANY_SOURCE, traffic, finding.rows)) < len(finding.rows):
        chooses = finding.rows[~held_out(traffic.packets, finding.rows)]
    near = neighbours(traffic.packets, chooses)
    on_link, chooses = chooses[near], chooses[~near]
    weight, attack = traffic.weight[chooses], Addresses.of(traffic.packets, chooses)
    for form, target in (("most", config.source_share), ("half", 0.5)):
        # Without a baseline, prefixes shorter than /16 would hit too many unknown clients
        cover = fewest_prefixes(
            attack,
            weight,
            normal.sources,
            target=target,
            limit=config.max_prefixes,
            shortest=16 if normal.guess else 10,
        )
        hosts = single_hosts(traffic.packets, on_link, traffic.weight[on_link], target=target)
        cover = replace(
            cover, prefixes=hosts.prefixes + cover.prefixes, sources=hosts.sources + cover.sources
        )
        match = Match(sources=cover.prefixes)
        share = share_of_sources(match, traffic, measured_on(match, traffic, finding.rows))
        if not cover.prefixes or share < USEFUL:
            continue
        kind = _where(context, finding, Kind.IPSET)
        rule = replace(_rule(kind, match, config), summary=_blocks(cover, kind))
        verb = "sends" if cover.sources == 1 else "send"
        yield Candidate(
            rule, f"{plural(cover.sources, 'source')} {verb} {percent(share)} of the attack", form
        )
        if len(cover.prefixes) <= _FEW_SOURCES:
            return


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
    return bool(families) and any(prefix.family in families for prefix in _behind(context, finding))


def _blocks(cover: Cover, kind: Kind) -> str:
    """Write the number of prefixes of a list and of the IPv4 addresses in them."""
    count, place = len(cover.prefixes), of(kind).place
    if count == 1:
        return f"block {cover.prefixes[0]}{place}"
    if all(prefix.is_address for prefix in cover.prefixes):
        return f"block {count:,} addresses{place}"
    held = sum(1 << (32 - prefix.length) for prefix in cover.prefixes if prefix.family == 4)
    return f"block {count:,} prefixes{f' with {held:,} addresses' if held else ''}{place}"


def _by_rate(
    context: AnalysisContext, finding: Finding, base: Match, normal: Normal, config: AdviseConfig
) -> Iterator[Candidate]:
    """Limit each source to twice the rate of normal sources of the service, or more if that harms."""
    traffic = context.traffic
    scope = Match(family=base.family, protocol=base.protocol, dport=base.dport)
    for per in (32, 24):
        # For a rule of one family, the other prefix length is the default of the command line
        lengths = (32 if base.family == 6 else per, 64 if per == 32 or base.family == 4 else 56)
        limit = RateLimit(1, 1, *lengths)
        amount = normal.pps * normal.seconds
        usual = usual_rate(limit, normal.packets, amount, normal.seconds)
        for factor in _RATE_FACTORS:
            rate = _round_up(max(10.0, factor * usual))
            limit = replace(limit, per_second=rate, burst=rate)
            if share_of(stopped(scope, limit, traffic), traffic, finding.rows) < USEFUL:
                break
            harmless = harm(scope, limit, normal, traffic).share <= config.collateral_limit
            if not harmless and factor != _RATE_FACTORS[-1]:
                continue
            length = limit.prefix_v6 if base.family == 6 else limit.prefix_v4
            rule = _rule(_where(context, finding, Kind.HASHLIMIT), scope, config, limit)
            if fills_table(rule, traffic):  # the table of XDP evicts the oldest entry instead
                rule = _rule(Kind.XDP, scope, config, limit)
            place = of(rule.kind).place
            summary = f"limit {describe(scope)} to {rate:,} packets/s per /{length}{place}"
            rule = replace(rule, summary=summary)
            yield Candidate(rule, _why_limit(normal), f"/{per}")
            return


def _why_limit(normal: Normal) -> str:
    if len(normal.packets) < 30:
        return "the rate of normal sources is not known"
    return "normal sources send less than half that rate"


def _proxied(
    context: AnalysisContext, finding: Finding, base: Match, config: AdviseConfig
) -> Iterator[Candidate]:
    """Answer handshakes with SYN cookies if SYNs flood a port that real clients use.

    Of several ports each has a rule of its own: a proxy where there are clients, else one that drops.
    """
    if Trait.OPENINGS not in finding.traits:
        return
    whole, behind = base.dport is not None, _behind(context, finding)
    for port in (base.dport,) if base.dport is not None else _main_ports(context, finding):
        if _has_clients(context, port):
            match = Match(destinations=behind, family=base.family, protocol=TCP, dport=port)
            why = "real clients finish the handshake, these sources do not"
            yield Candidate(_rule(Kind.SYNPROXY, match, config), why, "" if whole else str(port), not whole)
        elif not whole:
            rule = _rule(Kind.XDP, replace(base, dport=port, tcp_flags=(SYN | ACK, SYN)), config)
            yield Candidate(rule, "no client uses this port", f"dport={port}", beside=True)


def _main_ports(context: AnalysisContext, finding: Finding) -> list[int]:
    """Return the ports that a good part of an attack goes to, the most frequent first; none if it goes on."""
    traffic, rows = context.traffic, finding.rows
    weight = traffic.weight[rows]
    ports, shares = weighted_top(traffic.packets.dport[rows], weight, _PORT * float(weight.sum()))
    return [int(port) for port in ports] if shares.sum() > _MOSTLY * weight.sum() else []


def _has_clients(context: AnalysisContext, port: int) -> bool:
    """Check whether real connections go to a TCP port, now or usually."""
    before = context.baseline.rows
    used = context.tcp.real & (context.traffic.packets.dport == port)
    return bool(used.any() or ((before.protocol == TCP) & (before.dport == port)).any())


def _behind(context: AnalysisContext, finding: Finding) -> tuple[Prefix, ...]:
    """Return the attacked addresses behind this machine, the most frequent first; none if its own are.

    A proxy without destinations answers for this machine's own addresses only.
    """
    packets, traffic = context.traffic.packets, context.traffic
    _, first, at = np.unique(traffic.dest_key[finding.rows], return_index=True, return_inverse=True)
    weight = np.bincount(at, traffic.weight[finding.rows])
    found = []
    for one in np.argsort(-weight):
        row = finding.rows[first[one]]
        family, hi, lo = (int(getattr(packets, name)[row]) for name in ("family", "dst_hi", "dst_lo"))
        found.append(Prefix.of_columns(family, hi, lo))
        if len(found) == _MOST_BEHIND:
            break
    own = set(context.own)
    return () if not own or own & set(found) else tuple(found)


def _untracked(
    context: AnalysisContext, finding: Finding, base: Match, config: AdviseConfig
) -> Iterator[Candidate]:
    """Yield what keeps the flooded service out of the connection table, if the flood fills it."""
    table, traffic = context.counters.conntrack, context.traffic
    if table is None or base.protocol not in (TCP, UDP) or base.dport is None:
        return
    match = Match(family=base.family, protocol=base.protocol, dport=base.dport)
    rule = _rule(Kind.NOTRACK, match, config)
    if any(Trait.FULL_TABLE in one.traits for one in context.findings):
        rule = replace(rule, summary=f"don't track {describe(match)} (NOTRACK)")
        yield Candidate(rule, "it fills the connection table; drops nothing", "")
    elif (
        base.protocol,
        base.dport,
    ) != _LOGIN and table.new_per_s * traffic.seconds >= _TRACKED * traffic.weight[finding.rows].sum():
        playbook = rule_of(
            "stateless",
            f"stateless playbook: don't track {describe(match)}, put stateless lines beside rules on states",
            (replace(rule, match=replace(match, family=None), stateless=True, forget=True),),
            PlaybookOptions(config.ttl_seconds, "proposal"),
        )
        if playbook is not None:
            yield Candidate(playbook, "most of its packets open a connection; drops nothing", "stateless")


def for_table(context: AnalysisContext) -> Iterator[Candidate]:
    """Yield rules for a full connection table: the playbook, shorter timeouts, and a larger maximum."""
    table = context.counters.conntrack
    if table is None:
        return
    yield from _playbook(context)
    protocols = {finding.match.protocol for finding in context.findings if not finding.state}
    names = [*_TCP_TIMEOUTS] if TCP in protocols or not protocols else []
    names += ["net.netfilter.nf_conntrack_udp_timeout"] if UDP in protocols or not protocols else []
    if names:
        rule = _settings(context, tuple(Setting(name, _TIMEOUT_SECONDS) for name in names))
        summary = f"shorten the conntrack timeouts of unanswered connections to {_TIMEOUT_SECONDS} s"
        yield Candidate(replace(rule, summary=summary), "drops nothing", "timeouts")
    most = min(_ROOM * table.max, TUNABLES[_TABLE_MAX].high)
    if most > table.max:
        rule = replace(
            _settings(context, (Setting(_TABLE_MAX, most),)),
            summary=f"raise conntrack max from {table.max:,} to {most:,}",
        )
        memory = most * _ENTRY_BYTES / 1e6
        yield Candidate(rule, f"{memory:,.0f} MB of memory when full; drops nothing", "room")


def _playbook(context: AnalysisContext) -> Iterator[Candidate]:
    """Yield what `fwtop harden conntrack` does at once: flooded services leave the table."""
    aims = {
        (finding.match.protocol, finding.match.dport) for finding in context.findings if not finding.state
    }
    services = sorted(
        (protocol, dport) for protocol, dport in aims if protocol in (TCP, UDP) and dport is not None
    )
    if not services:
        return
    parts = [_settings(context, tuple(Setting(name, _TIMEOUT_SECONDS) for name in _ALL_TIMEOUTS))]
    for protocol, dport in services[:_MOST_UNTRACKED]:
        match = Match(protocol=protocol, dport=dport)
        parts.append(replace(_rule(Kind.NOTRACK, match, context.config), stateless=True, forget=True))
    names = " and ".join(describe(part.match) for part in parts[1:])
    rule = rule_of(
        "conntrack",
        f"conntrack playbook: don't track {names}, delete its entries, shorten timeouts",
        tuple(parts),
        PlaybookOptions(context.config.ttl_seconds, "proposal"),
    )
    if rule is not None:
        yield Candidate(rule, "new clients get in at once; drops nothing", "playbook")


def _settings(context: AnalysisContext, settings: tuple[Setting, ...]) -> Rule:
    return Rule("", Kind.SYSCTL, Match(), "", context.config.ttl_seconds, settings=settings)


def _rule(kind: Kind, match: Match, config: AdviseConfig, limit: RateLimit | None = None) -> Rule:
    return with_summary(Rule("", kind, match, "", config.ttl_seconds, limit=limit))


def _family(context: AnalysisContext, rows: Rows) -> int | None:
    families = np.unique(context.traffic.packets.family[rows])
    return int(families[0]) if len(families) == 1 else None


def _round_up(rate: float) -> int:
    """Round up to a human-friendly number."""
    for step in (10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000):
        if rate <= step:
            return step
    return 1_000_000
