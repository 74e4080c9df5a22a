"""Which rules need connection tracking, which a notrack rule takes away.

An untracked packet has no entry: NAT never sees it, and matches on its state see UNTRACKED, which
`--ctstate ESTABLISHED` is not (iptables-extensions(8), conntrack and CT).
"""

from __future__ import annotations

import re
from pathlib import Path

from msgspec.structs import replace

from fwtop.kernel.programs import CommandError, run
from fwtop.model.rule import Match
from fwtop.model.text import safe_text
from fwtop.netfilter.arguments import Packets, may_be_about
from fwtop.netfilter.iptables import NFT, Variant
from fwtop.netfilter.saved import Line

_STATEFUL = ("conntrack", "state", "connmark", "connlimit", "connbytes", "connlabel", "helper")  # matches
_STATEFUL_TARGETS = frozenset({"CONNMARK", "CONNSECMARK", "SYNPROXY"})
TRANSLATES = frozenset({"DNAT", "SNAT", "MASQUERADE", "REDIRECT", "NETMAP"})
_NFT_NEEDS = re.compile(r"(^|\s)(ct (state|mark|status|count|helper|direction|original|reply|zone|label|bytes"
                        r"|packets|expiration|avgpkt|id)|dnat|snat|masquerade|redirect)\b")  # fmt: skip
_IPTABLES_TABLES = frozenset({"raw", "mangle", "nat", "filter", "security"})
_SHOWN = 5
_CLIENT_PORT = 40_000  # as clients choose them; a rule that names it is about answers


def packets_of(match: Match, *, incoming: bool) -> Packets:
    """Return what is known of a service's packets, or (not `incoming`) of its answers."""
    ports = (match.sport, match.dport) if incoming else (match.dport, match.sport)
    return Packets(match.protocol, *ports, match.families)


def notrack_warnings(variant: Variant, match: Match) -> tuple[str, ...]:
    """Name the rules that would stop working for the packets that a match exempts from tracking."""
    found = tracking_rules(variant, match)
    warnings = [f"{what}: untracked packets won't get this" for what in found[:_SHOWN]]
    if len(found) > _SHOWN:
        warnings.append(f"and {len(found) - _SHOWN} more rules need connection tracking")
    return (*warnings, *forwarding(match))


def tracking_rules(variant: Variant, match: Match) -> list[str]:
    """Name the rules of iptables and nftables that need connection tracking of what a match is about."""
    found: list[str] = []
    for family in match.families:
        lines = variant.read(family).lines
        found += [_named(line) for line in lines if needs_tracking(line) and may_meet(line, match)]
    return found + native_rules(variant, match)


def needs_tracking(line: Line) -> bool:
    """Return whether a rule of iptables works on tracked packets only."""
    rule = line.arguments
    if rule.target_name in TRANSLATES | _STATEFUL_TARGETS or rule.named(*_STATEFUL):
        return True
    return rule.target_name == "CT" and "--helper" in rule.target


def may_meet(line: Line, match: Match) -> bool:
    """Return whether a rule can be about packets of a match or their answers; unclear counts as yes."""
    answers = packets_of(match, incoming=False)
    if answers.sport is not None and answers.dport is None:
        answers = replace(answers, dport=_CLIENT_PORT)
    return any(may_be_about(line.arguments, some) for some in (packets_of(match, incoming=True), answers))


def _named(line: Line) -> str:
    kind = "NAT" if line.target in TRANSLATES else "a stateful rule"
    text = safe_text(f"-A {line.chain} {line.text}", limit=140)
    return f"{kind} in {line.table} of IPv{line.family}, '{text}'"


def native_rules(variant: Variant, match: Match) -> list[str]:
    """Name the rules of foreign nftables tables; iptables-nft's own tables were read as iptables."""
    try:
        listed = run(["nft", "-t", "list", "ruleset"], timeout=20)
    except CommandError:
        return []
    found, table, chain = [], "", ""
    for line in listed.splitlines():
        words = line.split()
        if line.startswith("table ") and len(words) > 2:
            table = f"{words[1]} {words[2]}"
        elif words[:1] == ["chain"] and len(words) > 1:
            chain = words[1]
        elif _NFT_NEEDS.search(line) and is_foreign(table, variant) and _in_families(table, match):
            text = safe_text(line.strip(), limit=140)
            found.append(f"nftables rule in {safe_text(table)} {safe_text(chain)}, '{text}'")
    return found


def is_foreign(table: str, variant: Variant) -> bool:
    """Whether an nftables table, "FAMILY NAME", is neither fwtop's nor one that iptables lists."""
    family, _, name = table.partition(" ")
    if name.startswith("fwtop"):
        return False
    return not (variant.name == NFT and family in ("ip", "ip6") and name in _IPTABLES_TABLES)


def _in_families(table: str, match: Match) -> bool:
    number = {"ip": 4, "ip6": 6}.get(table.partition(" ")[0])
    return number is None or number in match.families


def forwarding(match: Match) -> tuple[str, ...]:
    """Answers to forwarded packets come in by PREROUTING, where nothing tells them from requests."""
    switches = {4: "/proc/sys/net/ipv4/ip_forward", 6: "/proc/sys/net/ipv6/conf/all/forwarding"}
    try:
        routing = [family for family in match.families if Path(switches[family]).read_text().strip() == "1"]
    except OSError:
        return ()
    if not routing:
        return ()
    which = " and ".join(f"IPv{family}" for family in routing)
    return (f"this host forwards {which}: answers to forwarded packets stay tracked, and appear as INVALID",)
