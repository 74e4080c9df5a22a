"""Rules for ipset and iptables: as the guardian installs them, but without clock and allow-list.

What it has in XDP, at tc ingress or at netdev ingress stands in table raw here: the same packets are dropped
there, only later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Kind, Rule
from fwtop.rules import kinds
from fwtop.rules.kind import Layer
from fwtop.rules.kinds import protect
from fwtop.rules.kinds.common import DROP
from fwtop.rules.objects import ChainLine, SetSpec
from fwtop.rules.surroundings import Surroundings
from fwtop.rules.xtables import create_line, halves, quote, set_name

PROGRAMS = {4: "iptables", 6: "ip6tables"}
OPENING = "opening"  # hook of lines that come behind connection tracking: PREROUTING of table mangle
_OWN = "fwtop-"  # begins the names of fwtop's sets; fwtop takes what has its own names out
_PEERS = "hash:ip,port"
_PEER_SECONDS, _MOST_PEERS = 180, 65_536


class Plain(Struct, frozen=True):
    """Sets and lines that act until somebody takes them out: of table raw, or behind connection tracking."""

    sets: tuple[SetSpec, ...]
    lines: tuple[ChainLine, ...]


def plain(rule: Rule, own: str = _OWN, lists: Mapping[str, Sequence[Prefix]] = {}) -> Plain:
    """Return a rule without its clock; `own` begins the names of its sets. Raises FwtopError (code 2)."""
    if rule.connections is not None:
        limits = (
            ChainLine(one, tuple(connlimit_args(rule, one)), DROP, OPENING) for one in rule.match.families
        )
        return Plain((), tuple(limits))
    made = kinds.build(in_netfilter(rule), Surroundings(lists=lists))
    acting = {spec.name: bool(spec.elements) for spec in made.sets if _is_clock(spec)}
    lines = []
    for family in rule.match.families:
        decides = {set_name(rule.id, family, role) for role in (protect.SHUT, protect.PASS)}
        for line in made.lines:
            if line.family != family or line.listed:  # who is listed has passed
                continue
            kept = _without_clock(line.match, acting)
            if kept is not None:
                words = tuple(_renamed(word, own) for word in kept)
                target = tuple(_renamed(word, own) for word in line.target)
                lines.append(replace(line, match=words, target=target))
                if decides & {*line.match}:
                    break  # what comes after it is for other levels
    sets = (replace(spec, name=_renamed(spec.name, own)) for spec in made.sets if spec.name not in acting)
    return Plain(tuple(sets), tuple(lines))


def in_netfilter(rule: Rule) -> Rule:
    """Return the rule of table raw that drops the same packets."""
    if kinds.of(rule.kind).layer >= Layer.RAW:
        return rule
    if rule.limit is not None:
        return replace(rule, kind=Kind.HASHLIMIT)
    return replace(rule, kind=Kind.STRING if rule.match.payload else Kind.IPSET)


def _is_clock(spec: SetSpec) -> bool:
    """Say whether a set only tells whether a rule acts: it holds every address, or none."""
    timed = spec.timed and spec.seeds is None and len(spec.elements) <= 2
    return timed and tuple(spec.elements) in ((), halves(spec.family))


def _without_clock(match: tuple[str, ...], acting: Mapping[str, bool]) -> tuple[str, ...] | None:
    """Leave out the matches of enable sets; None where an empty one keeps the line from matching."""
    kept: list[str] = []
    at = 0
    while at < len(match):
        is_set = match[at : at + 3] == ("-m", "set", "--match-set")
        if is_set and match[at + 3] in acting:
            if not acting[match[at + 3]]:
                return None
            at += 5
        else:
            kept.append(match[at])
            at += 1
    return tuple(kept)


def _renamed(word: str, own: str) -> str:
    return word.replace(f"{_OWN}list-", own, 1).replace(_OWN, own, 1) if word.startswith(_OWN) else word


def line_text(chain: str, line: ChainLine) -> str:
    """Return a line as `iptables-restore` reads it."""
    return " ".join(map(quote, ("-A", chain, *line.match, *line.target)))


def set_lines(spec: SetSpec) -> Iterator[str]:
    """Yield the lines of a set for `ipset restore`; hash:net can't store /0."""
    if spec.seeds is not None:
        yield f"{create_line(spec.name, spec.family, _MOST_PEERS, _PEER_SECONDS, _PEERS)} forceadd"
        return
    has_all = any(prefix.length == 0 for prefix in spec.elements)
    elements = halves(spec.family) if has_all else spec.elements
    yield create_line(spec.name, spec.family, len(elements), None)
    yield from (f"add {spec.name} {prefix}" for prefix in elements)


def connlimit_args(rule: Rule, family: int) -> Iterator[str]:
    """Yield the match on connections above a limit, for chains behind connection tracking."""
    limit = rule.connections
    if limit is None:
        return
    yield from ("-p", "tcp")
    if rule.match.dport is not None:
        yield from ("--dport", str(rule.match.dport))
    yield from ("--syn", "-m", "connlimit", "--connlimit-above", str(limit.most))
    yield from ("--connlimit-mask", str(limit.prefix_v4 if family == 4 else limit.prefix_v6))
    yield "--connlimit-saddr"
