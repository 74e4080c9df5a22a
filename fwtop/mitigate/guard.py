"""What may be installed: never against the allow-list, and nothing broad without a typed word."""

from __future__ import annotations

from dataclasses import dataclass

from fwtop.mitigate.allowlist import AllowList
from fwtop.mitigate.listed import listed
from fwtop.model.address import Prefix
from fwtop.model.rule import RANGES, Kind, Match, Rule

TCP = 6
SHORTEST = {4: 8, 6: 16}  # broader source prefixes need force
MAX_RULES = 256  # active at once: every line costs each packet that passes the chain
MAX_SOURCES = 1_000_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """The guard's answer: refused with a reason, or let through, perhaps only with force."""

    refused: str | None = None
    broad: str | None = None  # why force is needed
    warnings: tuple[str, ...] = ()


def judge(rule: Rule, allow: AllowList, active_rules: int) -> Verdict:
    """Say whether a rule may be installed now."""
    refused = _too_many(rule, active_rules) or _hits_allowed(rule, allow)
    return Verdict(refused, _broad(rule, allow), allow.warnings)


def _too_many(rule: Rule, active_rules: int) -> str | None:
    if active_rules >= MAX_RULES:
        return f"{active_rules} rules are active already; undo some first"
    if len(rule.match.sources) > MAX_SOURCES:
        return f"more than {MAX_SOURCES:,} prefixes in one rule"
    return None


def _hits_allowed(rule: Rule, allow: AllowList) -> str | None:
    """Refuse sources that share addresses with the allow-list.

    Lists that somebody else compiled (asn:, country:, @file) are cut around it instead: see
    `exceptions`. Rules that name no source can't reach it, as the allow-list returns before them.
    """
    broadest = [listed(rule.match.sources).shortest(family) for family in rule.match.families]
    if any(prefix is not None and prefix.length == 0 for prefix in broadest):
        return "a source of /0 is everybody; nothing was installed"
    if rule.origin is not None or rule.kind is Kind.NOTRACK:
        return None
    index = listed(rule.match.sources)
    for entry in allow.entries:
        hit = index.overlapping(entry.prefix)
        if hit is not None:
            return f"{hit} would match {entry.prefix}, which is allow-listed: {entry.why}"
    return None


def exceptions(rule: Rule, allow: AllowList) -> tuple[Prefix, ...]:
    """Return the allow-listed prefixes that a compiled list must be cut around."""
    if rule.origin is None:
        return ()
    index = listed(rule.match.sources)
    return tuple(entry.prefix for entry in allow.entries if index.overlapping(entry.prefix) is not None)


def _broad(rule: Rule, allow: AllowList) -> str | None:
    match = rule.match
    broadest = [listed(match.sources).shortest(family) for family in match.families]
    wide = next((p for p in broadest if p is not None and p.length < SHORTEST[p.family]), None)
    if wide is not None:
        return f"{wide} is broader than /{SHORTEST[wide.family]}"
    if rule.kind is Kind.NOTRACK and match == Match(family=match.family):
        return "it has no condition: rules on connections and NAT would work for nobody"
    if match.sources or rule.limit is not None or rule.kind in (Kind.NOTRACK, Kind.SYSCTL) or match.payload:
        return None
    if match.dport is not None and match.dport in allow.session_ports | {22}:
        return f"port {match.dport} is where operators log in"
    return _of_everything(match)


def _of_everything(match: Match) -> str | None:
    narrow = ("sport", "dport", "tcp_flags", "icmp_type", "fragment", *RANGES)
    if any(getattr(match, name) is not None for name in narrow) or match.destinations:
        return None
    if match.protocol is None:
        return "it has no condition: every packet would match"
    return "it matches all TCP" if match.protocol == TCP else None
