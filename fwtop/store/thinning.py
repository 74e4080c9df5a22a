"""Keeping sessions small: long rules are cut, and older rows are thinned out."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

from fwtop.model.rule import Rule, RuleStatus
from fwtop.model.traffic.snapshot import Proposal, Snapshot

PINNED_EVENT, PINNED_PEAK = 1, 2  # snapshots that thinning keeps
FULL_SECONDS = 600.0

# (minimum age, spacing) in seconds, youngest first
_SNAPSHOT_TIERS = ((FULL_SECONDS, 10.0), (7_200.0, 60.0), (86_400.0, 600.0))
_SERIES_TIERS = ((FULL_SECONDS, 1.0), (86_400.0, 10.0), (864_000.0, 60.0))
_SERIES = {"tick": "", "attack": ", kind", "rule_tick": ", rule_id"}


def thin(database: sqlite3.Connection, now: float) -> None:
    """Thin out rows by age; `now` is the time of the last snapshot."""
    for older, spacing in _SNAPSHOT_TIERS:
        _thin_table(database, "snapshot", before=now - older, spacing=spacing, which="AND pinned = 0")
    for older, spacing in _SERIES_TIERS:
        for table, group in _SERIES.items():
            _thin_table(database, table, before=now - older, spacing=spacing, group=group)


def halve(database: sqlite3.Connection, before: float) -> None:
    """Delete every second row before a time, except the peak."""
    for table in ("snapshot", *_SERIES):
        spare = f"AND pinned <> {PINNED_PEAK}" if table == "snapshot" else ""
        database.execute(
            f"DELETE FROM {table} WHERE n IN (SELECT n FROM (SELECT n, row_number() OVER (ORDER BY n) "  # noqa: S608
            f"AS place FROM {table} WHERE at < ? {spare}) WHERE place % 2 = 0)",
            (before,),
        )


def _thin_table(
    database: sqlite3.Connection,
    table: str,
    *,
    before: float,
    spacing: float,
    which: str = "",
    group: str = "",
) -> None:
    # Names and clauses are constants of this file. The first row of each interval stays.
    database.execute(
        f"DELETE FROM {table} WHERE at < ?1 {which} AND n NOT IN "  # noqa: S608
        f"(SELECT min(n) FROM {table} WHERE at < ?1 {which} GROUP BY CAST(at / ?2 AS INTEGER){group})",
        (before, spacing),
    )


_PREFIXES = 256  # kept of a rule
_COMMANDS = 64
_COMMAND_CHARACTERS = 2_000


def truncated(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with long rules truncated, or itself if none is."""
    proposals = tuple(_proposal(proposal) for proposal in snapshot.judgement.proposals)
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


def _proposal(proposal: Proposal) -> Proposal:
    commands = tuple(command[:_COMMAND_CHARACTERS] for command in proposal.commands[:_COMMANDS])
    rule = _rule(proposal.rule) if proposal.rule else None
    line = proposal.fwtop[:_COMMAND_CHARACTERS]
    if rule is proposal.rule and commands == proposal.commands and line == proposal.fwtop:
        return proposal
    return replace(proposal, rule=rule, commands=commands, fwtop=line)
