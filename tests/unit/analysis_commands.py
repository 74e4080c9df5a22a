"""What a proposal's commands must keep to: the program takes them, and the guardian runs just that."""

from __future__ import annotations

import argparse
import re
import shlex

from msgspec.structs import replace

from fwtop.cli.main import verb_module
from fwtop.guardian.mechanisms.chains.table_raw import TableState, add_text
from fwtop.model.rule import Kind, Rule
from fwtop.model.traffic.snapshot import Proposal
from fwtop.rules import kinds
from fwtop.rules.xtables import fill_text

DROPPED_IN_NETFILTER = (Kind.IPSET, Kind.HASHLIMIT, Kind.STRING, Kind.NOTRACK)
# The allow-list: without it, rules need no chain apart from the hook's.
_ALLOW_LIST = re.compile(r"-[io] lo |-ROLES|-[gN] \S+-RULES|-[jN] \S+-SOURCES|-LISTED|-p ipv6-icmp -g")


def typed(line: str) -> Rule | None:
    """Return the rule that a command line makes; None for one that names no rule."""
    program, verb, *words = shlex.split(line)
    assert program == "fwtop"
    module = verb_module(verb)
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    module.arguments(parser)
    args = parser.parse_intermixed_args(words)
    if verb in ("apply", "harden"):  # rules that the command line finds, or makes by looking at the machine
        return None
    return module.rules_of(args)[0] if verb == "block" else module.rule_of(args)


def planned(rule: Rule) -> list[str]:
    """Return the lines that the guardian runs for a rule, where its chains are not there yet."""
    made = kinds.build(replace(rule, id="N"))
    lines = [f"ipset {line}" for spec in made.sets for line in fill_text(spec, rule.ttl_seconds).splitlines()]
    for family, program in ((4, "iptables"), (6, "ip6tables")):
        wanted = [line for line in made.lines if line.family == family]
        for line in add_text(TableState(), family, wanted).splitlines() if wanted else ():
            if line.startswith(":"):
                lines.append(f"{program} -t raw -N {line[1:].split()[0]}")
            elif line.startswith("-"):
                lines.append(f"{program} -t raw {line}")
    return [re.sub("-RULES|-SOURCES", "", line) for line in lines if not _ALLOW_LIST.search(line)]


def check_commands(proposal: Proposal) -> None:
    """Fail where a proposal's texts are not exactly its rule."""
    rule = proposal.rule
    if rule is None:
        assert proposal.kind == "upstream"
        assert not proposal.fwtop
        return
    again = typed(proposal.fwtop)
    if proposal.fwtop.startswith("fwtop harden "):
        assert rule.kind.value == "harden"
    elif again is None:
        assert proposal.fwtop == f"fwtop apply {proposal.number}"
        limited = rule.limit is not None and rule.match.sources  # no option names whom a limit is for
        assert limited or len(rule.match.sources) > 32 or any(item.dns_name for item in rule.match.payload)
    else:
        assert (again.kind, again.limit, again.settings) == (rule.kind, rule.limit, rule.settings)
        assert again.match == rule.match
        assert again.ttl_seconds == rule.ttl_seconds
    shown = [line for command in proposal.commands for line in _unrolled(command)]
    if rule.kind in DROPPED_IN_NETFILTER:
        assert sorted(shown) == sorted(planned(rule))
    kinds.build(replace(rule, id="1"))  # the guardian takes it


def _unrolled(command: str) -> list[str]:
    first, *rest = command.splitlines()
    if not rest:
        return [command]
    assert first == "ipset -exist restore <<'END'"
    assert rest[-1] == "END"
    assert len(rest) > 32
    return [f"ipset {line}" for line in rest[:-1]]
