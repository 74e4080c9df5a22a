"""A rule as commands: those that the guardian runs, and the equivalent fwtop command line."""

from __future__ import annotations

from collections.abc import Sequence

from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, Rule
from fwtop.rules.command_line import command_line
from fwtop.rules.xtables import (
    TIMED_ELEMENTS,
    UNLISTED,
    create_line,
    field_args,
    halves,
    limit_args,
    match_protocols,
    quote,
    set_name,
    with_payload,
)

_ON_ONE_LINE = 32  # prefixes; longer lists are piped into ipset
_ELSEWHERE = {
    Kind.XDP: "compiles this into its XDP program",
    Kind.TC: "compiles this for tc ingress",
    Kind.NFTABLES: "puts this into a chain at nft netdev ingress",
}
_NUMBER = "N"  # placeholder of the rule number, which the guardian assigns


def shell_commands(rule: Rule) -> tuple[str, ...]:
    """Return the commands that the guardian runs for a rule, for each address family.

    The allow-list is omitted, as only the guardian knows it.
    """
    if rule.kind in _ELSEWHERE:
        return (f"# fwtop {_ELSEWHERE[rule.kind]}: {rule.summary}", *_by_hand(rule))
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
    if rule.kind is Kind.SYSCTL:
        return tuple(f"sysctl -w {item.name}={item.value}" for item in rule.settings)
    if rule.parts:
        stateless = any(part.stateless for part in rule.parts)
        beside = (
            "# fwtop also puts stateless lines beside the rules on states, as 'fwtop harden stateless' shows",
        )
        return (*beside * stateless, *(line for part in rule.parts for line in shell_commands(part)))
    answers = _answer_lines(rule) if rule.kind is Kind.NOTRACK else ()
    target = ("-j", "CT", "--notrack") if rule.kind is Kind.NOTRACK else ("-j", "DROP")
    return (*_set_lines(rule), *_chain_lines(rule, target), *answers)


def _proxy_lines(rule: Rule) -> list[str]:
    """Return a SYN proxy as iptables-extensions(8) has it, with the options of an Ethernet server."""
    lines = []
    for family in rule.match.families:
        program, mss = _program(family), 1460 if family == 4 else 1440
        to = ",".join(str(prefix) for prefix in rule.match.destinations if prefix.family == family)
        to_port, chain = f"-p tcp --dport {rule.match.dport}", "FORWARD" if to else "INPUT"
        to_port = f"-d {to} {to_port}" if to else to_port
        lines += [
            f"{program} -t raw -I PREROUTING {to_port} --syn -j CT --notrack",
            f"{program} -I {chain} {to_port} -m conntrack --ctstate INVALID,UNTRACKED "
            f"-j SYNPROXY --sack-perm --timestamp --wscale 7 --mss {mss}",
        ]
    return [*lines, "sysctl -w net.netfilter.nf_conntrack_tcp_loose=0"]


def _connlimit_lines(rule: Rule) -> list[str]:
    """Return the limit as iptables-extensions(8) has it, for hosts without fwtop."""
    limit = rule.connections
    if limit is None:
        return []
    port = f" --dport {rule.match.dport}" if rule.match.dport is not None else ""
    return [
        f"{_program(family)} -I INPUT -p tcp --syn{port} -m connlimit --connlimit-above {limit.most} "
        f"--connlimit-mask {limit.prefix_v4 if family == 4 else limit.prefix_v6} -j DROP"
        for family in rule.match.families
    ]


def _by_hand(rule: Rule) -> list[str]:
    """Return equivalent netfilter commands without expiry, for hosts without fwtop; may be empty."""
    try:
        lines = [*_set_lines(rule)] if rule.match.sources else []
        lines += _chain_lines(rule, ("-j", "DROP"))
    except FwtopError:
        return []
    plain = [line.replace("-A FWTOP", "-I PREROUTING", 1) for line in lines]
    return [f"# the same in netfilter: {line}" for command in plain for line in command.splitlines()]


def _sets(rule: Rule, family: int) -> list[tuple[str, Sequence[Prefix], int | None]]:
    """Return the sets of the rule with elements and timeout: its sources, and an enable set.

    The enable set expires rules without sources, and lists too long for timeouts per element.
    """
    listed = tuple(prefix for prefix in rule.match.sources if prefix.family == family)
    spares = not rule.match.sources and rule.kind is not Kind.NOTRACK
    switch = (set_name(_NUMBER, family, UNLISTED if spares else "on"), halves(family), rule.ttl_seconds)
    if not rule.match.sources:
        return [switch]
    is_long = len(listed) > TIMED_ELEMENTS
    sources = (set_name(_NUMBER, family), listed, None if is_long else rule.ttl_seconds)
    return [sources, switch] if is_long else [sources]


def _set_lines(rule: Rule) -> list[str]:
    return [line for family in _families(rule) for one in _sets(rule, family) for line in _fill(family, *one)]


def _families(rule: Rule) -> list[int]:
    sources = rule.match.sources
    return [
        family
        for family in rule.match.families
        if not sources or any(prefix.family == family for prefix in sources)
    ]


def _fill(family: int, name: str, elements: Sequence[Prefix], ttl: int | None) -> list[str]:
    create = create_line(name, family, len(elements), ttl, counted=name == set_name(_NUMBER, family))
    clock = f" timeout {ttl}" if ttl is not None else ""
    adds = [f"add {name} {prefix}{clock}" for prefix in elements]
    if len(elements) <= _ON_ONE_LINE:
        return [f"ipset {line}" for line in (create, *adds)]
    members = "\n".join((create, *adds))
    return [f"ipset -exist restore <<'END'\n{members}\nEND"]


def _chain_lines(rule: Rule, target: tuple[str, ...]) -> list[str]:
    lines = []
    for family in _families(rule):
        lines += _hook(family, "PREROUTING", "FWTOP") if rule.kind not in _ELSEWHERE else []
        for protocol in match_protocols(rule):
            asks = with_payload(rule, family, protocol, _ask(rule, family, "src"))
            words = [*field_args(rule.match, family, protocol), *asks]
            if rule.limit is not None:
                words += limit_args(_NUMBER, rule.limit, family)
            lines.append(_line(family, "FWTOP", (*words, *target)))
    return lines


def _answer_lines(rule: Rule) -> list[str]:
    """Return the lines that exempt the answers to untracked packets from tracking, too."""
    match = rule.match
    answer = Match(family=match.family, protocol=match.protocol, sport=match.dport, dport=match.sport)
    lines = []
    for family in match.families:
        words = (*field_args(answer, family), *_ask(rule, family, "dst"))
        lines += _hook(family, "OUTPUT", "FWTOP-OUT")
        lines.append(_line(family, "FWTOP-OUT", (*words, "-j", "CT", "--notrack")))
    return lines


def _hook(family: int, hook: str, chain: str) -> list[str]:
    program = _program(family)
    return [f"{program} -t raw -N {chain}", f"{program} -t raw -I {hook} 1 -j {chain}"]


def _ask(rule: Rule, family: int, side: str) -> list[str]:
    if rule.kind in _ELSEWHERE and not rule.match.sources:
        return []
    asked = [("-m", "set", "--match-set", name, side) for name, _, _ in _sets(rule, family)]
    return [word for words in asked for word in words]


def _line(family: int, chain: str, words: tuple[str, ...]) -> str:
    return f"{_program(family)} -t raw -A {chain} {' '.join(map(quote, words))}"


def _program(family: int) -> str:
    return "iptables" if family == 4 else "ip6tables"


def fwtop_line(rule: Rule, number: int) -> str:
    """Return the fwtop command line that makes the same rule; `fwtop apply N` if none can."""
    return command_line(rule) or f"fwtop apply {number}"
