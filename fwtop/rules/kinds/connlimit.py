"""Limit the connections that each source prefix has open: nftables' `ct count`, behind connection tracking.

Only SYNs are compared with the limit, so that no open connection is cut; a set that is full counts nobody new
and lets their connections pass. Source: nft(8), net/netfilter/nf_conncount.c.
"""

from __future__ import annotations

from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import ConnectionLimit, Kind, Match, Rule
from fwtop.model.traffic.protocols import TCP
from fwtop.rules.fields import per_words, scope_words
from fwtop.rules.kind import KernelObjects, Layer, RuleKind, Surroundings
from fwtop.rules.nft_objects import CONNECTIONS, NftLine, NftRule, NftSet, set_of

_BITS = {4: 32, 6: 128}
_COUNTED = 65_535  # source prefixes; nft_connlimit frees those without a connection
_NEW_ONLY = "connections that are open already are not counted: the limit sees those opened from now on"


def build(rule: Rule, _: Surroundings) -> KernelObjects:
    """Return the sets and lines; raises FwtopError (code 2) on other conditions."""
    match, limit = rule.match, rule.connections
    if limit is None or match != Match(family=match.family, protocol=TCP, dport=match.dport):
        raise FwtopError(
            "a limit of connections takes a TCP port and a family only; nothing was installed", 2
        )
    sets, lines = [], []
    for family in match.families:
        ip, bits = ("ip", limit.prefix_v4) if family == 4 else ("ip6", limit.prefix_v6)
        name = f"open{family}"
        sets.append(NftSet(name, f"ipv{family}_addr", f"size {_COUNTED}; flags dynamic", ()))
        to_port = f"tcp dport {match.dport} " if match.dport is not None else ""
        counted = f"{ip} saddr{mask_words(family, bits)} ct count over {limit.most}"
        opening = f"{to_port}tcp flags & (fin | syn | rst | ack) == syn"
        # A set that counts is no condition: a rule whose time is over must count nobody. The family again:
        # nft 1.1 (Debian 13) does not know it behind the enable set, and refuses the address.
        above = f"{CONNECTIONS.only(family)} add @{set_of(rule.id, name)} {{ {counted} }} counter drop"
        lines.append(NftLine("new", family, opening, above))
    notes = () if rule.close_open else (_NEW_ONLY,)
    return KernelObjects((), (), notes, instead=NftRule(CONNECTIONS, tuple(sets), tuple(lines)))


def mask_words(family: int, bits: int) -> str:
    """Return the expression that cuts an address to its prefix; "" for whole addresses."""
    if bits >= _BITS[family]:
        return ""
    whole = (1 << _BITS[family]) - 1
    mask = Prefix(family, whole ^ (whole >> bits), _BITS[family])
    return f" & {str(mask).partition('/')[0]}"


def connections_text(limit: ConnectionLimit) -> str:
    """Describe a limit of connections: 20 connections per /32 (IPv6 /64)."""
    noun = "connection" if limit.most == 1 else "connections"
    return f"{limit.most:,} {noun} per /{limit.prefix_v4} (IPv6 /{limit.prefix_v6})"


def _phrase(rule: Rule, what: str) -> str:
    return f"limit {what} to {connections_text(rule.connections)}" if rule.connections else f"limit {what}"


def _brief(rule: Rule, what: str) -> str:
    limit = rule.connections
    return f"limit {what} to {limit.most:,} connections each" if limit is not None else f"limit {what}"


def _words(rule: Rule) -> list[str] | None:
    match, limit = rule.match, rule.connections
    if limit is None or match != Match(family=match.family, protocol=TCP, dport=match.dport):
        return None
    words = ["limit", *scope_words(match), *per_words(match, limit)]
    return [*words, "--connections", str(limit.most), *(["--close-open"] * rule.close_open)]


KIND = RuleKind(
    Kind.CONNLIMIT, Layer.TRACKED, build, _words,
    own={"connections": "a connlimit rule's"}, optional=("close_open",),
    phrase=_phrase, brief=_brief, is_part=True,
    fixed="its set keeps the limit that it was made with, and with it the connections that it counted",
    evaded="evaded by: more sources", ladder="by open connections (nftables ct count)",
    verbs=("limit",), cost_ns=900.0,
)  # fmt: skip
