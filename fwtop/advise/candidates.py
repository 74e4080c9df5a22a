"""Rules that may help against an attack, before they are measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fwtop.advise.config import AdviseConfig
from fwtop.advise.effect import Normal, share_of, stopped
from fwtop.advise.facts import Facts
from fwtop.advise.matching import limit_groups
from fwtop.advise.prefixes import Addresses, fewest_prefixes
from fwtop.advise.scene import Finding, Scene
from fwtop.advise.signature import find_signatures
from fwtop.advise.tcpview import flag_names
from fwtop.advise.traffic import TCP, UDP, Rows
from fwtop.model.packets import Fragment
from fwtop.model.rule import Kind, Match, PayloadMatch, Range, RateLimit, Rule
from fwtop.model.text import dns_name_text

USEFUL = 0.3  # of the attack: less isn't worth a rule


@dataclass(frozen=True)
class Candidate:
    """A rule that may help, before it is measured."""

    rule: Rule
    why: str


def candidates(scene: Scene, finding: Finding, normal: Normal) -> Iterator[Candidate]:
    """Yield what fits the finding: by fields, payload, sources, rate, and for a full table."""
    config = scene.config
    family = _family(scene, finding.rows)
    base = replace(finding.match, family=finding.match.family or family)
    forged = finding.spoof.probability > config.spoof_threshold
    yield from _by_fields(scene, finding, base, config)
    yield from _by_payload(scene, finding, base, normal, config)
    if not forged:
        yield from _by_sources(scene, finding, normal, config)
        yield from _by_rate(scene, finding, base, normal, config)
    yield from _untracked(scene, base, config)


def _by_fields(scene: Scene, finding: Finding, base: Match, config: AdviseConfig) -> Iterator[Candidate]:
    """Drop by header fields: the vector's own, then narrowed where one length or TTL dominates."""
    if finding.kind in ("http_flood", "tls_flood", "port_scan"):
        return
    packets = scene.traffic.packets
    facts = Facts(scene.traffic, finding.rows)
    narrow = _narrowed(facts, base)
    for match, why in narrow:
        yield Candidate(_rule(Kind.XDP, match, f"drop {describe(match)}", config), why)
    fragments = packets.fragment[finding.rows] != Fragment.NONE
    if float(facts.weight[fragments].sum()) > 0.5 * facts.packets:
        match = Match(family=base.family, protocol=base.protocol, fragment=True)
        yield Candidate(_rule(Kind.XDP, match, f"drop {describe(match)}", config), "most of it is fragmented")


def _narrowed(facts: Facts, base: Match) -> list[tuple[Match, str]]:
    ported = base.sport is not None or base.dport is not None
    found: list[tuple[Match, str]] = []
    specific = base.protocol not in (None, TCP, UDP) or ported or base.tcp_flags is not None or base.fragment
    if specific:
        found.append((base, "all of it has these fields"))
    length, ttl = facts.top("ip_length"), facts.top("ttl")
    if length.share > 0.9:
        only = replace(base, ip_length=Range(length.value, length.value))
        found.append((only, f"{length.share:.0%} have one length"))
        if ttl.share > 0.9:
            both = replace(only, ttl=Range(ttl.value, ttl.value))
            found.append((both, f"and {ttl.share:.0%} one TTL"))
    elif base.protocol == UDP and ported and facts.n >= 50:
        low = int(np.quantile(facts.traffic.packets.ip_length[facts.rows], 0.02))
        if low >= 300:
            found.append((replace(base, ip_length=Range(low, 65535)), f"98% are of {low} bytes or more"))
    if ttl.share > 0.95 and facts.sources > 20:
        found.append((replace(base, ttl=Range(ttl.value, ttl.value)), f"{ttl.share:.0%} have one TTL"))
    return found


def _by_payload(
    scene: Scene, finding: Finding, base: Match, normal: Normal, config: AdviseConfig
) -> Iterator[Candidate]:
    scope = Match(family=base.family, protocol=base.protocol, dport=base.dport)
    if base.protocol not in (TCP, UDP, 1, 58):
        return
    if finding.dns_name is not None:
        labels = _labels(finding.dns_name)
        name = PayloadMatch(finding.dns_name, None, None, dns_name_text(labels))
        if finding.kind == "dns_query_flood" or "amplification" in finding.kind:
            name = replace(name, offset=12)
        rule = _rule(
            Kind.STRING,
            replace(scope, payload=(name,)),
            f"drop packets with the DNS name {name.dns_name}",
            config,
        )
        yield Candidate(rule, "the name stands in the packets in this wire form")
    found = find_signatures(scene.traffic, finding.rows, normal.packets, config, guess=normal.guess)
    for signature in found[:2]:
        data = signature.match.data
        where = (
            f"at payload byte {signature.match.offset}" if signature.match.offset is not None else "anywhere"
        )
        rule = _rule(
            Kind.STRING,
            replace(scope, payload=(signature.match,)),
            f"drop packets with the bytes {data.hex()} {where}",
            config,
        )
        yield Candidate(rule, f"{signature.attack_share:.0%} of the attack have these bytes")


def _by_sources(scene: Scene, finding: Finding, normal: Normal, config: AdviseConfig) -> Iterator[Candidate]:
    weight = scene.traffic.weight[finding.rows]
    attack = Addresses.of(scene.traffic.packets, finding.rows)
    known = Addresses.of(normal.packets)
    for target in (config.source_share, 0.5):
        # Where little is known of normal sources, shorter prefixes than /16 would hit too many unseen ones
        cover = fewest_prefixes(
            attack,
            weight,
            known,
            target=target,
            limit=config.max_prefixes,
            shortest=16 if normal.guess else 10,
        )
        if not cover.prefixes or cover.share < USEFUL:
            continue
        count = len(cover.prefixes)
        single = all(prefix.is_address for prefix in cover.prefixes)
        what = f"{count:,} {'address' if single else 'prefix'}{'' if count == 1 else 'es'}"
        if not single:
            held = sum(1 << (32 - p.length) for p in cover.prefixes if p.family == 4)
            what += f" ({held:,} addresses)" if held else ""
        rule = _rule(Kind.IPSET, Match(sources=cover.prefixes), f"block {what}", config)
        yield Candidate(rule, f"{cover.sources:,} sources send {cover.share:.0%} of it")
        if count <= 20:
            return


def _by_rate(
    scene: Scene, finding: Finding, base: Match, normal: Normal, config: AdviseConfig
) -> Iterator[Candidate]:
    """Limit each source to twice what normal sources send on the same service."""
    traffic = scene.traffic
    scope = Match(family=base.family, protocol=base.protocol, dport=base.dport)
    for per in (32, 24):
        limit = RateLimit(1, 1, prefix_v4=per, prefix_v6=64 if per == 32 else 56)
        _, inverse = np.unique(
            limit_groups(limit, normal.packets, np.arange(len(normal.packets))), return_inverse=True
        )
        usual = float(np.quantile(np.bincount(inverse, normal.pps), 0.99)) if len(inverse) else 0.0
        rate = _round_up(max(10.0, 2 * usual))
        limit = replace(limit, per_second=rate, burst=min(10_000, max(5, rate)))
        part = stopped(scope, limit, traffic)
        if share_of(part, traffic, finding.rows) < USEFUL:
            continue
        text = f"limit each /{per} to {rate:,} packets a second of {describe(scope)}"
        yield Candidate(_rule(Kind.HASHLIMIT, scope, text, config, limit), _why_limit(normal))
        return


def _why_limit(normal: Normal) -> str:
    if len(normal.packets) < 30:
        return "how much normal sources send was not seen"
    return "normal sources send less than half of that"


def _untracked(scene: Scene, base: Match, config: AdviseConfig) -> Iterator[Candidate]:
    table = scene.counters.conntrack
    pressed = any(f.kind == "conntrack_exhaustion" for f in scene.findings)
    if table is None or not pressed or base.protocol not in (TCP, UDP) or base.dport is None:
        return
    match = Match(family=base.family, protocol=base.protocol, dport=base.dport)
    text = f"keep {describe(match)} out of the connection table"
    yield Candidate(_rule(Kind.NOTRACK, match, text, config), "they fill it; nothing is dropped by this")


def describe(match: Match) -> str:
    """Say in words which packets a match is about."""
    names = {1: "ICMP", 6: "TCP", 17: "UDP", 47: "GRE", 50: "ESP", 58: "ICMPv6"}
    words = [f"IPv{match.family}"] if match.family == 6 else []
    if match.protocol is not None:
        words.append(names.get(match.protocol, f"protocol {match.protocol}"))
    words.append("fragments" if match.fragment else "packets")
    if match.sport is not None:
        words.append(f"from port {match.sport}")
    if match.dport is not None:
        words.append(f"to port {match.dport}")
    if match.tcp_flags is not None:
        words.append(f"with flags {flag_names(match.tcp_flags[1])}")
    if match.icmp_type is not None:
        words.append(f"of type {match.icmp_type}")
    if match.ip_length is not None:
        low, high = match.ip_length.low, match.ip_length.high
        words.append(f"of {low} bytes" if low == high else f"of {low} bytes or more")
    if match.ttl is not None:
        words.append(f"with TTL {match.ttl.low}")
    return " ".join(words)


def _rule(
    kind: Kind, match: Match, summary: str, config: AdviseConfig, limit: RateLimit | None = None
) -> Rule:
    return Rule("", kind, match, summary, config.ttl_seconds, limit=limit)


def _family(scene: Scene, rows: Rows) -> int | None:
    families = np.unique(scene.traffic.packets.family[rows])
    return int(families[0]) if len(families) == 1 else None


def _labels(wire: bytes) -> list[bytes]:
    labels = []
    at = 0
    while at < len(wire) and wire[at]:
        labels.append(wire[at + 1 : at + 1 + wire[at]])
        at += 1 + wire[at]
    return labels


def _round_up(rate: float) -> int:
    """Round to a number that a person would type."""
    for step in (10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000):
        if rate <= step:
            return step
    return 1_000_000
