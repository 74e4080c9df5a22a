"""Rules for ipset and iptables: as the guardian installs them, but without clock and allow-list.

What it has in XDP, at tc ingress or at netdev ingress stands in table raw here: the same packets are dropped
there, only later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Rule
from fwtop.rules import kinds
from fwtop.rules.kind import HOOK_CHAINS, ChainLine, KernelObjects, Layer, SetSpec, Surroundings
from fwtop.rules.kinds import protect
from fwtop.rules.kinds.common import DROP
from fwtop.rules.xtables import create_line, fill_text, halves, quote, set_name

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
        verdict = () if rule.counts_only else DROP
        limits = (
            ChainLine(one, tuple(connlimit_args(rule, one)), verdict, OPENING) for one in rule.match.families
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
        negated = match[at + 2 : at + 3] == ("!",)
        is_set = match[at : at + 2] == ("-m", "set")
        name = match[at + 3 + negated] if is_set else ""
        if name in acting:
            if acting[name] is negated:
                return None
            at += 5 + negated
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


_ON_ONE_LINE = 32  # prefixes; longer lists are piped into ipset
_NUMBER = "N"  # placeholder of the rule number, which the guardian assigns


def shell_commands(rule: Rule) -> tuple[str, ...]:
    """Return commands that do by hand what a rule does, for each address family, without fwtop's chains.

    The allow-list is omitted, as only the guardian knows it: what it would run, it plans.
    """
    if elsewhere := kinds.of(rule.kind).elsewhere:
        return (f"# fwtop {elsewhere}: {rule.summary}", *_by_hand(rule))
    if rule.kind is Kind.SYNPROXY:
        return (
            f"# fwtop does this with nft and the machine's own MSS and window scale: {rule.summary}",
            *(f"# with iptables: {line}" for line in _proxy_lines(rule)),
        )
    if rule.kind is Kind.CONNLIMIT:
        return (
            f"# fwtop does this with nft ct count: {rule.summary}",
            *(f"# with iptables: {line}" for line in _connlimit_lines(rule)),
        )
    if rule.settings:
        return tuple(f"sysctl -w {item.name}={item.value}" for item in rule.settings)
    special = [part for part in rule.parts if _is_special(part)]
    rest = tuple(part for part in rule.parts if part not in special)
    lines = [line for part in special for line in shell_commands(part)]
    if any(part.stateless for part in rule.parts):
        lines.insert(0, "# fwtop also puts stateless lines beside rules on states ('fwtop harden stateless')")
    if rest or not special:
        made = kinds.build(replace(rule, id=_NUMBER, parts=rest))
        lines += (*_set_commands(made.sets, rule.ttl_seconds), *_chain_commands(made))
    return tuple(lines)


def _is_special(rule: Rule) -> bool:
    """Say whether a rule is no sets and lines of table raw, or not only."""
    return bool(kinds.of(rule.kind).elsewhere or rule.settings) or rule.kind in (
        Kind.SYNPROXY,
        Kind.CONNLIMIT,
    )


def _set_commands(sets: tuple[SetSpec, ...], ttl_seconds: int) -> Iterator[str]:
    for spec in sets:
        text = fill_text(spec, ttl_seconds).rstrip("\n")
        if len(spec.elements) > _ON_ONE_LINE:
            yield f"ipset -exist restore <<'END'\n{text}\nEND"
        else:
            yield from (f"ipset {line}" for line in text.split("\n"))


def _chain_commands(made: KernelObjects) -> Iterator[str]:
    """Yield the commands that add lines, and before the first of a hook those that make its chain."""
    begun = set()
    for line in made.lines:
        if line.listed:  # of the allow-list
            continue
        chain, iptables = HOOK_CHAINS[line.hook], f"{PROGRAMS[line.family]} -t raw"
        if (line.family, chain) not in begun:
            begun.add((line.family, chain))
            yield f"{iptables} -N {chain}"
            yield f"{iptables} -I {line.hook} 1 -j {chain}"
        yield f"{iptables} {line_text(chain, line)}"


def _by_hand(rule: Rule) -> Iterator[str]:
    """Yield equivalent netfilter commands, for hosts without fwtop; none where netfilter can't do it.

    Only sets end by themselves, so rules without sources stay.
    """
    made: KernelObjects | Plain
    rule = replace(in_netfilter(rule), id=_NUMBER)
    try:
        made = kinds.build(rule) if rule.match.sources else plain(rule)
    except FwtopError:
        return
    for command in _set_commands(made.sets, rule.ttl_seconds):
        yield from (f"# the same in netfilter: {line}" for line in command.split("\n"))
    for line in made.lines:
        text = line_text(line.hook, line).replace("-A", "-I", 1)
        yield f"# the same in netfilter: {PROGRAMS[line.family]} -t raw {text}"


def _proxy_lines(rule: Rule) -> list[str]:
    """Return a SYN proxy as iptables-extensions(8) has it, with the options of an Ethernet server."""
    lines = []
    for family in rule.match.families:
        program, mss = PROGRAMS[family], 1460 if family == 4 else 1440
        to = ",".join(str(prefix) for prefix in rule.match.destinations if prefix.family == family)
        to_port, chain = f"-p tcp --dport {rule.match.dport}", "FORWARD" if to else "INPUT"
        to_port = f"-d {to} {to_port}" if to else to_port
        lines += [
            f"{program} -t raw -I PREROUTING {to_port} --syn -j CT --notrack",
            f"{program} -I {chain} {to_port} -m conntrack --ctstate INVALID,UNTRACKED "
            f"-j SYNPROXY --sack-perm --timestamp --wscale 7 --mss {mss}",
        ]
    return [*lines, "sysctl -w net.netfilter.nf_conntrack_tcp_loose=0"]


def _connlimit_lines(rule: Rule) -> Iterator[str]:
    for family in rule.match.families:
        verdict = "" if rule.counts_only else " -j DROP"
        yield f"{PROGRAMS[family]} -I INPUT {' '.join(connlimit_args(rule, family))}{verdict}"
