"""A policy as ipset and iptables-restore read it, in three files or as one shell script.

The lines are those that the guardian installs, without the sets whose timeouts end a rule.
"""

from __future__ import annotations

from collections.abc import Iterator

from fwtop.model.rule import Rule
from fwtop.policy.exports import ALLOW, FAMILIES, Exported, comment, heading, texts
from fwtop.rules.exports.xtables import PROGRAMS, Plain, line_text, plain, set_lines
from fwtop.rules.objects import OUTPUT
from fwtop.rules.xtables import create_line

_CHAIN, _PORTS, _OUT, _OPEN = "POLICY", "POLICY-PORTS", "POLICY-OUT", "POLICY-OPEN"
_NEW = "policy-"  # begins the names of sets; fwtop takes what has its own names out
_NEIGHBOURS = (134, 135, 136)


def ipset_lines(policy: Exported, name: str) -> Iterator[str]:
    """Yield the input of `ipset restore`."""
    yield from heading(name, "Load it first: ipset -exist restore < policy.ipset")
    yield from _set_lines(policy)


def xtables_lines(policy: Exported, family: int, name: str) -> Iterator[str]:
    """Yield the input of `iptables-restore --noflush`, or of ip6tables-restore."""
    program = PROGRAMS[family]
    yield from heading(name, f"Load it once, after the sets: {program}-restore --noflush < policy.{program}")
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
        yield from (line for spec in _plain(policy, rule).sets if not spec.shared for line in set_lines(spec))


def _list_name(name: str, family: int) -> str:
    return f"{_NEW}{name}-{family}"


def _plain(policy: Exported, rule: Rule) -> Plain:
    return plain(rule, _NEW, policy.lists)


def _tables(policy: Exported, family: int) -> Iterator[str]:
    made = {
        rule.id: [line for line in _plain(policy, rule).lines if line.family == family]
        for rule in policy.rules
    }
    has_answers = any(line.hook == OUTPUT for lines in made.values() for line in lines)
    is_listed = f"-m set --match-set {_list_name(ALLOW, family)} src -j RETURN"
    yield "*raw"
    yield from (f":{chain} - [0:0]" for chain in (_CHAIN, _PORTS, *[_OUT] * has_answers))
    yield f"-I PREROUTING 1 -j {_CHAIN}"
    yield f"-A {_CHAIN} -i lo -j RETURN"
    if family == 6:  # without neighbour discovery there is no network
        for kind in _NEIGHBOURS:
            yield f"-A {_CHAIN} -p ipv6-icmp -m hl --hl-eq 255 --icmpv6-type {kind} -j RETURN"
    yield f"-A {_CHAIN} {is_listed}"
    yield f"-A {_CHAIN} -j {_PORTS}"
    if has_answers:
        yield f"-I OUTPUT 1 -j {_OUT}"
        yield f"-A {_OUT} -o lo -j RETURN"
    for rule in policy.rules:
        if rule.connections is None:
            own = _CHAIN if rule.protection is None else _PORTS
            yield comment(rule)
            yield from (line_text(_OUT if line.hook == OUTPUT else own, line) for line in made[rule.id])
    yield "COMMIT"
    limits = [rule for rule in policy.others if rule.connections is not None]
    if not limits:
        return
    yield "*mangle"
    yield f":{_OPEN} - [0:0]"
    yield f"-I PREROUTING 1 -j {_OPEN}"
    yield f"-A {_OPEN} -i lo -j RETURN"
    yield f"-A {_OPEN} {is_listed}"
    for rule in limits:
        if made[rule.id]:
            yield comment(rule)
            yield from (line_text(_OPEN, line) for line in made[rule.id])
    yield "COMMIT"
