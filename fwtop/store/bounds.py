"""A snapshot cut to what is worth storing every tick: a rule of 50,000 prefixes is stored but once."""

from __future__ import annotations

from dataclasses import replace

from fwtop.model.rule import Rule, RuleStatus
from fwtop.model.snapshot import Proposal, Snapshot

MAX_PREFIXES = 256
MAX_COMMANDS = 64
MAX_COMMAND_CHARACTERS = 2_000


def bounded(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with over-long rules cut, or itself when there is nothing to cut."""
    proposals = tuple(_proposal(proposal) for proposal in snapshot.judgement.proposals)
    mitigations = tuple(_status(status) for status in snapshot.mitigations)
    if proposals != snapshot.judgement.proposals:
        snapshot = replace(snapshot, judgement=replace(snapshot.judgement, proposals=proposals))
    if mitigations != snapshot.mitigations:
        snapshot = replace(snapshot, mitigations=mitigations)
    return snapshot


def _rule(rule: Rule) -> Rule:
    match = rule.match
    if len(match.sources) <= MAX_PREFIXES and len(match.destinations) <= MAX_PREFIXES:
        return rule
    cut = replace(match, sources=match.sources[:MAX_PREFIXES], destinations=match.destinations[:MAX_PREFIXES])
    return replace(rule, match=cut)


def _status(status: RuleStatus) -> RuleStatus:
    entries = status.entries
    if len(entries) > MAX_PREFIXES:
        top = sorted(entries.items(), key=lambda item: item[1], reverse=True)[:MAX_PREFIXES]
        entries = dict(top)
    rule = _rule(status.rule)
    return (
        status
        if rule is status.rule and entries is status.entries
        else replace(status, rule=rule, entries=entries)
    )


def _proposal(proposal: Proposal) -> Proposal:
    commands = tuple(command[:MAX_COMMAND_CHARACTERS] for command in proposal.commands[:MAX_COMMANDS])
    rule = _rule(proposal.rule) if proposal.rule else None
    line = proposal.fwtop[:MAX_COMMAND_CHARACTERS]
    if rule is proposal.rule and commands == proposal.commands and line == proposal.fwtop:
        return proposal
    return replace(proposal, rule=rule, commands=commands, fwtop=line)
