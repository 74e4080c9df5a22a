"""A rule as the commands that the guardian runs, or that do the same on a host without fwtop."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Rule
from fwtop.rules import kinds
from fwtop.rules.exports.xtables import PROGRAMS, Plain, connlimit_args, in_netfilter, line_text, plain
from fwtop.rules.kind import Layer
from fwtop.rules.objects import HOOK_CHAINS, KernelObjects, SetSpec
from fwtop.rules.xtables import fill_text

_ON_ONE_LINE = 32  # prefixes; longer lists are piped into ipset
_ELSEWHERE = {
    Layer.DRIVER: "compiles this into its XDP program",
    Layer.TC: "compiles this for tc ingress",
    Layer.NETDEV: "puts this into a chain at nft netdev ingress",
}
_NUMBER = "N"  # placeholder of the rule number, which the guardian assigns


def shell_commands(rule: Rule) -> tuple[str, ...]:
    """Return the commands that the guardian runs for a rule, for each address family.

    The allow-list is omitted, as only the guardian knows it.
    """
    layer = kinds.of(rule.kind).layer
    if layer in _ELSEWHERE:
        return (f"# fwtop {_ELSEWHERE[layer]}: {rule.summary}", *_by_hand(rule))
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
    if rule.parts:
        stateless = any(part.stateless for part in rule.parts)
        beside = (
            "# fwtop also puts stateless lines beside the rules on states, as 'fwtop harden stateless' shows",
        )
        return (*beside * stateless, *(line for part in rule.parts for line in shell_commands(part)))
    made = kinds.build(replace(rule, id=_NUMBER))
    return (*_set_commands(made.sets, rule.ttl_seconds), *_chain_commands(made))


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
        yield f"{PROGRAMS[family]} -I INPUT {' '.join(connlimit_args(rule, family))} -j DROP"
