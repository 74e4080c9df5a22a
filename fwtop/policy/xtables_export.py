"""A policy as ipset and iptables-restore read it, in three files or as one shell script.

The lines are those that the guardian installs, without the sets whose timeouts end a rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fwtop.model.rule import Rule
from fwtop.policy.exports import ALLOW, FAMILIES, Exported, comment, heading, texts
from fwtop.rules import kinds
from fwtop.rules.kinds import protect
from fwtop.rules.objects import OUTPUT, ChainLine, KernelObjects
from fwtop.rules.surroundings import Surroundings
from fwtop.rules.xtables import create_line, quote, set_name

_CHAIN, _PORTS, _OUT, _OPEN = "POLICY", "POLICY-PORTS", "POLICY-OUT", "POLICY-OPEN"
_OWN, _NEW = "fwtop-", "policy-"  # fwtop takes what has its own names out
_PEERS = "hash:ip,port"
_PEER_SECONDS, _MOST_PEERS = 180, 65_536
_NEIGHBOURS = (134, 135, 136)
PROGRAMS = {4: "iptables", 6: "ip6tables"}
SUFFIXES = {4: "iptables", 6: "ip6tables"}


def ipset_lines(policy: Exported, name: str) -> Iterator[str]:
    """Yield the input of `ipset restore`."""
    yield from heading(name, "Load it first: ipset -exist restore < policy.ipset")
    yield from _set_lines(policy)


def xtables_lines(policy: Exported, family: int, name: str) -> Iterator[str]:
    """Yield the input of `iptables-restore --noflush`, or of ip6tables-restore."""
    program, suffix = PROGRAMS[family], SUFFIXES[family]
    yield from heading(name, f"Load it once, after the sets: {program}-restore --noflush < policy.{suffix}")
    yield from _tables(policy, family)


def script_lines(policy: Exported, name: str) -> Iterator[str]:
    """Yield a shell script that puts the policy in, again if it is there, or takes it out."""
    yield "#!/bin/sh"
    yield from heading(name, "Run it as root; with the argument 'remove' it takes the policy out.")
    yield "set -eu"
    yield ""
    yield "# It needs these programs, and changes nothing without one of them."
    yield "for program in ipset iptables iptables-restore ip6tables ip6tables-restore; do"
    yield '  command -v "$program" >/dev/null || { echo "$program is not installed" >&2; exit 1; }'
    yield "done"
    yield ""
    yield "# Chains and sets have names of their own; nothing else is touched."
    yield "take_out() {"
    yield "  for program in iptables ip6tables; do"
    for table, hook, chain in _hooks():
        yield f"    while $program -t {table} -D {hook} -j {chain} 2>/dev/null; do :; done"
    for command in ("-F", "-X"):
        for table, chain in (("raw", _CHAIN), ("raw", _PORTS), ("raw", _OUT), ("mangle", _OPEN)):
            yield f"    $program -t {table} {command} {chain} 2>/dev/null || :"
    yield "  done"
    yield "  for set in $(ipset list -n); do"
    yield f'    case $set in {_NEW}*) ipset destroy "$set" ;; esac'
    yield "  done"
    yield "}"
    yield ""
    yield "take_out"
    yield '[ "${1:-}" != remove ] || exit 0'
    yield ""
    yield "ipset restore <<'END'"
    yield from _set_lines(policy)
    yield "END"
    for family, program in PROGRAMS.items():
        yield ""
        yield f"{program}-restore --noflush <<'END'"
        yield from _tables(policy, family)
        yield "END"


def _hooks() -> tuple[tuple[str, str, str], ...]:
    return (("raw", "PREROUTING", _CHAIN), ("raw", "OUTPUT", _OUT), ("mangle", "PREROUTING", _OPEN))


def _set_lines(policy: Exported) -> Iterator[str]:
    for name in policy.lists:
        for family in FAMILIES:
            entries = policy.entries(name, family)
            own = _list_name(name, family)
            yield create_line(own, family, len(entries), None)
            for text in texts(entries):
                yield f"add {own} {text}"
    for rule in policy.ports:
        for spec in _objects(policy, rule).sets:
            if spec.seeds is not None:
                line = create_line(_renamed(spec.name), spec.family, _MOST_PEERS, _PEER_SECONDS, _PEERS)
                yield f"{line} forceadd"


def _list_name(name: str, family: int) -> str:
    return f"{_NEW}{name}-{family}"


def _objects(policy: Exported, rule: Rule) -> KernelObjects:
    return kinds.build(rule, Surroundings(lists=policy.lists))


def _tables(policy: Exported, family: int) -> Iterator[str]:
    ports = [*_rule_lines(policy, policy.ports, family)]
    others = [*_rule_lines(policy, [rule for rule in policy.others if rule.connections is None], family)]
    out = [line for line in ports if isinstance(line, ChainLine) and line.hook == OUTPUT]
    yield "*raw"
    yield from (f":{chain} - [0:0]" for chain in (_CHAIN, _PORTS, *([_OUT] if out else [])))
    yield f"-I PREROUTING 1 -j {_CHAIN}"
    yield f"-A {_CHAIN} -i lo -j RETURN"
    if family == 6:  # without neighbour discovery there is no network
        for kind in _NEIGHBOURS:
            yield f"-A {_CHAIN} -p ipv6-icmp -m hl --hl-eq 255 --icmpv6-type {kind} -j RETURN"
    yield f"-A {_CHAIN} -m set --match-set {_list_name(ALLOW, family)} src -j RETURN"
    yield f"-A {_CHAIN} -j {_PORTS}"
    if out:
        yield f"-I OUTPUT 1 -j {_OUT}"
        yield f"-A {_OUT} -o lo -j RETURN"
    for chain, lines in ((_PORTS, ports), (_CHAIN, others)):
        for line in lines:
            if isinstance(line, str):
                yield line
            else:
                yield _text(_OUT if line.hook == OUTPUT else chain, line)
    yield "COMMIT"
    if limits := [rule for rule in policy.others if rule.connections is not None]:
        yield from _open_limits(limits, family)


def _rule_lines(policy: Exported, rules: Sequence[Rule], family: int) -> Iterator[ChainLine | str]:
    """Yield the lines of rules as they are in effect, each rule's after a comment."""
    for rule in rules:
        objects = _objects(policy, rule)
        acting = {
            spec.name: bool(spec.elements) for spec in objects.sets if spec.timed and spec.seeds is None
        }
        yield comment(rule)
        decides = {set_name(rule.id, family, role) for role in (protect.SHUT, protect.PASS)}
        for line in objects.lines:
            if line.family != family or line.listed:  # who is listed has passed
                continue
            kept = _without_clock(line.match, acting)
            if kept is not None:
                yield ChainLine(family, kept, line.target, line.hook)
                if decides & {*line.match}:
                    break  # what comes after it is for other levels


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


def _text(chain: str, line: ChainLine) -> str:
    return " ".join(map(quote, ("-A", chain, *map(_renamed, line.match), *map(_renamed, line.target))))


def _renamed(word: str) -> str:
    """Give a set or a table of limits a name that fwtop doesn't take for its own."""
    return word.replace(f"{_OWN}list-", _NEW, 1).replace(_OWN, _NEW, 1) if word.startswith(_OWN) else word


def _open_limits(rules: list[Rule], family: int) -> Iterator[str]:
    """Yield the limits of connections, which come after connection tracking."""
    yield "*mangle"
    yield f":{_OPEN} - [0:0]"
    yield f"-I PREROUTING 1 -j {_OPEN}"
    yield f"-A {_OPEN} -i lo -j RETURN"
    yield f"-A {_OPEN} -m set --match-set {_list_name(ALLOW, family)} src -j RETURN"
    for rule in rules:
        limit = rule.connections
        if limit is None or family not in rule.match.families:
            continue
        bits = limit.prefix_v4 if family == 4 else limit.prefix_v6
        port = f" --dport {rule.match.dport}" if rule.match.dport is not None else ""
        yield comment(rule)
        yield (
            f"-A {_OPEN} -p tcp{port} --syn -m connlimit --connlimit-above {limit.most} "
            f"--connlimit-mask {bits} --connlimit-saddr -j DROP"
        )
    yield "COMMIT"
