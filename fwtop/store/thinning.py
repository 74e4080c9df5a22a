"""Keeping snapshots few and small: older ones are thinned out, long rules are cut."""

from __future__ import annotations

import sqlite3

from msgspec.structs import replace

from fwtop.model.rule import Rule, RuleStatus
from fwtop.model.traffic.snapshot import Proposal, Snapshot

PINNED_EVENT, PINNED_PEAK = 1, 2  # snapshots that thinning keeps
FULL_SECONDS = 600.0

# (minimum age, spacing) in seconds, youngest first
_TIERS = ((FULL_SECONDS, 10.0), (7_200.0, 60.0), (86_400.0, 600.0), (864_000.0, 3_600.0))


def thin(database: sqlite3.Connection, now: float) -> None:
    """Thin out snapshots by age: of each interval the first stays; `now` is the time of the last one."""
    for older, spacing in _TIERS:
        database.execute(
            "DELETE FROM snapshot WHERE at < ?1 AND pinned = 0 AND n NOT IN (SELECT min(n) FROM snapshot "
            "WHERE at < ?1 AND pinned = 0 GROUP BY CAST(at / ?2 AS INTEGER))",
            (now - older, spacing),
        )


def halve(database: sqlite3.Connection, before: float) -> None:
    """Delete every second snapshot before a time, except the peak."""
    halve_rows(database, "snapshot", "at < ? AND pinned <> ?", before, PINNED_PEAK)


def halve_rows(database: sqlite3.Connection, table: str, where: str, *values: object) -> None:
    """Delete every second row of those that meet a condition."""
    database.execute(
        f"DELETE FROM {table} WHERE n IN (SELECT n FROM (SELECT n, row_number() OVER (ORDER BY n) "  # noqa: S608
        f"AS place FROM {table} WHERE {where}) WHERE place % 2 = 0)",
        values,
    )


_PREFIXES = 256  # kept of a rule
COMMANDS = 64
COMMAND_CHARACTERS = 2_000


def truncated(snapshot: Snapshot, *, installable: bool = False) -> Snapshot:
    """Return the snapshot with long rules truncated, or itself if none is.

    If it shall be `installable`, the rules of proposals stay whole: `fwtop apply` takes them from there.
    """
    proposals = tuple(_proposal(one, installable=installable) for one in snapshot.judgement.proposals)
    mitigations = tuple(_status(status) for status in snapshot.mitigations)
    if proposals != snapshot.judgement.proposals:
        snapshot = replace(snapshot, judgement=replace(snapshot.judgement, proposals=proposals))
    if mitigations != snapshot.mitigations:
        snapshot = replace(snapshot, mitigations=mitigations)
    return snapshot


def _rule(rule: Rule) -> Rule:
    match = rule.match
    if len(match.sources) <= _PREFIXES and len(match.destinations) <= _PREFIXES:
        return rule
    cut = replace(match, sources=match.sources[:_PREFIXES], destinations=match.destinations[:_PREFIXES])
    return replace(rule, match=cut)


def _status(status: RuleStatus) -> RuleStatus:
    entries = status.entries
    if len(entries) > _PREFIXES:
        top = sorted(entries.items(), key=lambda item: item[1], reverse=True)[:_PREFIXES]
        entries = dict(top)
    rule = _rule(status.rule)
    return (
        status
        if rule is status.rule and entries is status.entries
        else replace(status, rule=rule, entries=entries)
    )


def _proposal(proposal: Proposal, *, installable: bool) -> Proposal:
    commands = tuple(command[:COMMAND_CHARACTERS] for command in proposal.commands[:COMMANDS])
    rule = _rule(proposal.rule) if proposal.rule and not installable else proposal.rule
    line = proposal.fwtop[:COMMAND_CHARACTERS]
    if rule is proposal.rule and commands == proposal.commands and line == proposal.fwtop:
        return proposal
    return replace(proposal, rule=rule, commands=commands, fwtop=line)
