"""Rules that may help against an attack, before they are measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fwtop.advise.config import AdviseConfig
from fwtop.advise.constants import narrowed
from fwtop.advise.effect import Normal, harm, share_of, stopped
from fwtop.advise.facts import Facts
from fwtop.advise.limits import usual_rate
from fwtop.advise.prefixes import Addresses, Cover, fewest_prefixes
from fwtop.advise.scene import Finding, Scene, plural
from fwtop.advise.signature import Signature
from fwtop.advise.tcpview import ACK, FIN, RST, SYN
from fwtop.advise.traffic import TCP, UDP, Rows
from fwtop.model.packets import Fragment
from fwtop.model.percent import percent
from fwtop.model.rule import Kind, Match, RateLimit, Rule, Setting
from fwtop.model.tunables import TUNABLES
from fwtop.model.wording import describe, summarised

# TCP flags that no stack sends: mask, value and the reason (RFC 9293, 3.10.7)
_IMPOSSIBLE = (
    (SYN | RST | ACK, 0, "every real segment has one of these flags"),
    (SYN | FIN, SYN | FIN, "no connection opens and ends at once"),
    (SYN | RST, SYN | RST, "no connection opens and ends at once"),
    (FIN | RST, FIN | RST, "no connection ends in both ways"),
)
_TABLE_MAX = "net.netfilter.nf_conntrack_max"
_TCP_TIMEOUTS = (
    "net.netfilter.nf_conntrack_tcp_timeout_syn_recv",
    "net.netfilter.nf_conntrack_tcp_timeout_syn_sent",
)
_TIMEOUT_SECONDS = 10  # the kernel's are 60, 120 and 30 (nf_conntrack-sysctl.rst); a handshake takes 1
_ROOM = 4  # times the table
_ENTRY_BYTES = 320  # of a tracked connection: struct nf_conn and its extensions, Linux 6.x
USEFUL = 0.3  # of the attack: less isn't worth a rule
_FEW_SOURCES = 20
_SIGNATURES = 3
_BUSY = 0.5  # of a core
_PLACES = {Kind.XDP: " in the driver"}
_RATE_FACTORS = (2.0, 4.0, 8.0)  # times what normal sources send


@dataclass(frozen=True)
class Candidate:
    """A rule that may help, before it is measured. `form` tells it from others of its kind."""

    rule: Rule
    why: str
    form: str
    beside: bool = False  # stops a smaller part that the others leave


def candidates(
    scene: Scene, finding: Finding, normal: Normal, found: Sequence[Signature]
) -> Iterator[Candidate]:
    """Yield what fits the finding: by fields, payload, sources, rate, and for a full table."""
    config = scene.config
    family = _family(scene, finding.rows)
    base = replace(finding.match, family=finding.match.family or family)
    forged = finding.spoof.probability > config.spoof_threshold
    # Of requests over real connections the fields are those of real clients, too, where these were not seen
    if not (finding.requests and normal.guess and not forged):
        yield from _by_fields(scene, finding, base, guess=normal.guess)
    yield from _by_payload(base, found, config)
    if not forged:
        yield from _by_sources(scene, finding, normal, config)
        yield from _by_rate(scene, finding, base, normal, config)
    yield from _proxied(scene, finding, base, config)
    yield from _untracked(scene, base, config)


def _by_fields(scene: Scene, finding: Finding, base: Match, *, guess: bool) -> Iterator[Candidate]:
    """Drop by header fields: the vector's own, then narrowed where one value of another dominates."""
    config = scene.config
    if finding.kind == "port_scan":
        return
    if finding.kind == "tcp_anomaly" and base.tcp_flags is None:
        for (
            mask,
            value,
            why,
        ) in _IMPOSSIBLE:  # a length alone is that of bare ACKs, too
            match = replace(base, tcp_flags=(mask, value))
            yield Candidate(_rule(Kind.XDP, match, config), why, f"flags {mask}/{value}")
        return
    packets = scene.traffic.packets
    facts = Facts(scene.traffic, finding.rows)
    for form, match, why in narrowed(facts, base, requests=finding.requests, guess=guess):
        yield Candidate(_rule(Kind.XDP, match, config), why, form)
    if base.tcp_flags == (SYN | ACK, SYN | ACK):
        yield Candidate(
            _rule(Kind.XDP, replace(base, tcp_flags=(RST, RST)), config),
            "closed ports answer the same forged SYNs with it",
            "resets",
            beside=True,
        )
    fragments = packets.fragment[finding.rows] != Fragment.NONE
    if float(facts.weight[fragments].sum()) > 0.5 * facts.packets and not base.fragment:
        match = Match(family=base.family, protocol=base.protocol, fragment=True)
        yield Candidate(_rule(Kind.XDP, match, config), "most of it is fragmented", "fragments")


def _by_payload(base: Match, found: Sequence[Signature], config: AdviseConfig) -> Iterator[Candidate]:
    """Drop by what the payloads have in common."""
    scope = Match(family=base.family, protocol=base.protocol, dport=base.dport)
    for signature in found[:_SIGNATURES]:
        match = signature.match
        rule = _rule(Kind.STRING, replace(scope, payload=(match,)), config)
        what = "this name" if match.dns_name is not None else "these bytes"
        why = f"{percent(signature.attack_share)} of its payloads have {what}"
        yield Candidate(rule, why, f"{match.offset} {match.data.hex()}")


def _by_sources(scene: Scene, finding: Finding, normal: Normal, config: AdviseConfig) -> Iterator[Candidate]:
    weight = scene.traffic.weight[finding.rows]
    attack = Addresses.of(scene.traffic.packets, finding.rows)
    known = Addresses.of(normal.packets)
    for form, target in (("most", config.source_share), ("half", 0.5)):
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
        kind = _where(scene, finding, Kind.IPSET)
        rule = replace(_rule(kind, Match(sources=cover.prefixes), config), summary=_blocks(cover, kind))
        verb = "sends" if cover.sources == 1 else "send"
        yield Candidate(rule, f"{plural(cover.sources, 'source')} {verb} {percent(cover.share)} of it", form)
        if len(cover.prefixes) <= _FEW_SOURCES:
            return


def _where(scene: Scene, finding: Finding, kind: Kind) -> Kind:
    """Return the driver's program instead of netfilter where the attack would take half a core there."""
    cost = scene.config.cost_ns
    usual, driver = cost.get(kind.value, 0.0), cost.get(Kind.XDP.value, float("inf"))
    busy = scene.traffic.pps(finding.rows) * usual * 1e-9 > _BUSY
    return Kind.XDP if busy and driver < usual else kind


def _blocks(cover: Cover, kind: Kind) -> str:
    """Say how many prefixes a list has and how many IPv4 addresses lie in them."""
    count, place = len(cover.prefixes), _PLACES.get(kind, "")
    if count == 1:
        return f"block {cover.prefixes[0]}{place}"
    if all(prefix.is_address for prefix in cover.prefixes):
        return f"block {count:,} addresses{place}"
    held = sum(1 << (32 - prefix.length) for prefix in cover.prefixes if prefix.family == 4)
    return f"block {count:,} prefixes{f' with {held:,} addresses' if held else ''}{place}"


def _by_rate(
    scene: Scene, finding: Finding, base: Match, normal: Normal, config: AdviseConfig
) -> Iterator[Candidate]:
    """Limit each source to twice what normal sources send on the same service, and more where that harms."""
    traffic = scene.traffic
    scope = Match(family=base.family, protocol=base.protocol, dport=base.dport)
    for per in (32, 24):
        # Of a rule for one family the other's length is the command line's default
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
            kind = _where(scene, finding, Kind.HASHLIMIT)
            place = _PLACES.get(kind, "")
            summary = f"limit {describe(scope)} to {rate:,} packets a second per /{length}{place}"
            rule = replace(_rule(kind, scope, config, limit), summary=summary)
            yield Candidate(rule, _why_limit(normal), f"/{per}")
            return


def _why_limit(normal: Normal) -> str:
    if len(normal.packets) < 30:
        return "how much normal sources send was not seen"
    return "normal sources send less than half of that"


def _proxied(scene: Scene, finding: Finding, base: Match, config: AdviseConfig) -> Iterator[Candidate]:
    """Answer handshakes with cookies where SYNs flood a port that real clients use."""
    if finding.kind != "syn_flood" or base.dport is None:
        return
    packets = scene.traffic.packets
    used = scene.tcp.real & (packets.dport == base.dport)
    before = (scene.baseline.rows.protocol == TCP) & (scene.baseline.rows.dport == base.dport)
    if not used.any() and not before.any():
        return
    match = Match(family=base.family, protocol=TCP, dport=base.dport)
    rule = _rule(Kind.SYNPROXY, match, config)
    yield Candidate(rule, "real clients finish their handshakes, these senders do not", "")


def _untracked(scene: Scene, base: Match, config: AdviseConfig) -> Iterator[Candidate]:
    table = scene.counters.conntrack
    pressed = any(f.kind == "conntrack_exhaustion" for f in scene.findings)
    if table is None or not pressed or base.protocol not in (TCP, UDP) or base.dport is None:
        return
    match = Match(family=base.family, protocol=base.protocol, dport=base.dport)
    rule = replace(
        _rule(Kind.NOTRACK, match, config), summary=f"keep {describe(match)} out of the connection table"
    )
    yield Candidate(rule, "they fill it; nothing is dropped by this", "")


def for_table(scene: Scene) -> Iterator[Candidate]:
    """Yield what keeps a full connection table going: entries that end sooner, and room for more of them."""
    table = scene.counters.conntrack
    if table is None:
        return
    protocols = {finding.match.protocol for finding in scene.findings if not finding.state}
    names = [*_TCP_TIMEOUTS] if TCP in protocols or not protocols else []
    names += ["net.netfilter.nf_conntrack_udp_timeout"] if UDP in protocols or not protocols else []
    if names:
        rule = _settings(scene, tuple(Setting(name, _TIMEOUT_SECONDS) for name in names))
        summary = f"let unanswered connections leave the table after {_TIMEOUT_SECONDS} s"
        yield Candidate(replace(rule, summary=summary), "nothing is dropped by this", "timeouts")
    most = min(_ROOM * table.max, TUNABLES[_TABLE_MAX].high)
    if most > table.max:
        rule = replace(
            _settings(scene, (Setting(_TABLE_MAX, most),)),
            summary=f"make room for {most:,} connections instead of {table.max:,}",
        )
        memory = most * _ENTRY_BYTES / 1e6
        yield Candidate(rule, f"{memory:,.0f} MB of memory when full; nothing is dropped by this", "room")


def _settings(scene: Scene, settings: tuple[Setting, ...]) -> Rule:
    return Rule("", Kind.SYSCTL, Match(), "", scene.config.ttl_seconds, settings=settings)


def _rule(kind: Kind, match: Match, config: AdviseConfig, limit: RateLimit | None = None) -> Rule:
    return summarised(Rule("", kind, match, "", config.ttl_seconds, limit=limit))


def _family(scene: Scene, rows: Rows) -> int | None:
    families = np.unique(scene.traffic.packets.family[rows])
    return int(families[0]) if len(families) == 1 else None


def _round_up(rate: float) -> int:
    """Round to a number that a person would type."""
    for step in (10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000):
        if rate <= step:
            return step
    return 1_000_000
