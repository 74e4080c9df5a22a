"""Keeping a session small: older snapshots are thinned out, long rules cut, and series rolled up.

Ticks become seconds, minutes, hours and days. A rolled-up row holds the averages of its span and the peak
within it; its `at` is the end of the span. Only whole spans are rolled up, and a row is touched once a tier,
so that the cost follows what was recorded since.
"""

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
        f"DELETE FROM {table} WHERE n IN (SELECT n FROM (SELECT n, row_number() OVER (ORDER BY n) "
        f"AS place FROM {table} WHERE {where}) WHERE place % 2 = 0)",
        values,
    )


PREFIXES = 256  # kept of a rule
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
    if len(match.sources) <= PREFIXES and len(match.destinations) <= PREFIXES:
        return rule
    cut = replace(match, sources=match.sources[:PREFIXES], destinations=match.destinations[:PREFIXES])
    return replace(rule, match=cut)


def _status(status: RuleStatus) -> RuleStatus:
    entries = status.entries
    if len(entries) > PREFIXES:
        entries = dict(sorted(entries.items(), key=lambda item: item[1], reverse=True)[:PREFIXES])
    return replace(status, rule=_rule(status.rule), entries=entries)


def _proposal(proposal: Proposal, *, installable: bool) -> Proposal:
    commands = tuple(command[:COMMAND_CHARACTERS] for command in proposal.commands[:COMMANDS])
    rule = _rule(proposal.rule) if proposal.rule and not installable else proposal.rule
    line = proposal.fwtop[:COMMAND_CHARACTERS]
    return replace(proposal, rule=rule, commands=commands, fwtop=line)


# (minimum age, span) in seconds, youngest first
TIERS = ((600.0, 1), (86_400.0, 60), (864_000.0, 3_600), (8_640_000.0, 86_400))
_MAX_WIDTH = 60.0  # of a single tick, in seconds: a longer gap was not observed
_AVERAGED = (
    "pps", "bps", "dropped_pps", "accepted_pps", "lost_per_s", "conntrack_new_per_s", "softirq_share",
    "tcp_handshakes_per_s", "tcp_acknowledged_per_s", "mine_pps", "other_pps", "kernel_pps",
)  # fmt: skip
_GREATEST = ("one_in", "conntrack", "conntrack_max")
# The number of the span that ends at or after `at`
_SLOT = "(CAST(at / :span AS INTEGER) - (CAST(at / :span AS INTEGER) * :span = at))"


def roll_up(database: sqlite3.Connection, now: float, *, pressure: int = 0) -> None:
    """Roll up what is old enough; each step of `pressure` halves the ages, to save space."""
    for age, span in TIERS:
        before = (now - age / 2**pressure) // span * span
        _tell_seconds(database, before)
        _rule_ticks(database, before, span)
        _attacks(database, before, span)
        _ticks(database, before, span)


def _tell_seconds(database: sqlite3.Connection, before: float) -> None:
    """Write down what ticks speak for, the time since the one before, up to the first that remains.

    Of a tick that was rolled up nobody knows when it was: its row has the time at which the span ends.
    """
    former = "(SELECT max(older.at) FROM tick AS older WHERE older.at < tick.at)"
    database.execute(
        f"UPDATE tick SET seconds = min(max(at - coalesce({former}, at - 1), 0.001), {_MAX_WIDTH}) "
        "WHERE seconds IS NULL AND at <= coalesce((SELECT min(at) FROM tick WHERE at > :before), :before)",
        {"before": before},
    )


def _ticks(database: sqlite3.Connection, before: float, span: int) -> None:
    sums = ", ".join(f"sum({name} * seconds) / sum(CASE WHEN {name} IS NULL THEN NULL ELSE seconds END)"
                     for name in _AVERAGED)  # fmt: skip
    most = ", ".join(f"max({name})" for name in _GREATEST)
    # All names are constants of this file.
    _replace(
        database,
        "tick",
        f"(at, span, seconds, peak_pps, peak_bps, {', '.join((*_AVERAGED, *_GREATEST))}) "
        "SELECT (slot + 1) * :span, :span, sum(seconds), max(coalesce(peak_pps, pps)), "
        f"max(coalesce(peak_bps, bps)), {sums}, {most} FROM ("
        f"SELECT *, {_SLOT} AS slot FROM tick WHERE span < :span AND at <= :before) GROUP BY slot",
        before,
        span,
    )


def _attacks(database: sqlite3.Connection, before: float, span: int) -> None:
    # Over the observed time of the span, as ticks are averaged: an attack is not in all of them.
    whole = (
        "max(sum(weight), (SELECT sum(seconds) FROM tick WHERE tick.span < :span "
        "AND tick.at > slot * :span AND tick.at <= (slot + 1) * :span))"
    )
    # Of the attack's packets, not of its rows: a pulse's edges have few.
    shares = ", ".join(
        f"sum({name} * pps * weight) / "
        f"nullif(sum(CASE WHEN {name} IS NULL THEN NULL ELSE pps * weight END), 0)"
        for name in ("mine_share", "other_share", "kernel_share")
    )
    _replace(
        database,
        "attack",
        "(at, span, incident, kind, target, pps, share, confidence, peak_pps, mine_share, other_share, "
        "kernel_share) "
        "SELECT (slot + 1) * :span, :span, incident, max(kind), max(target), "
        f"sum(pps * weight) / {whole}, sum(share * weight) / {whole}, "
        f"max(confidence), max(coalesce(peak_pps, pps)), {shares} "
        f"FROM (SELECT *, {_SLOT} AS slot, coalesce((SELECT tick.seconds FROM tick "
        "WHERE tick.at = attack.at AND tick.span = attack.span), 1.0) AS weight "
        "FROM attack WHERE span < :span AND at <= :before) GROUP BY slot, incident",
        before,
        span,
    )


def _rule_ticks(database: sqlite3.Connection, before: float, span: int) -> None:
    # SQLite takes bare columns from the row of max(): counters and state as they were last.
    _replace(
        database,
        "rule_tick",
        "(at, span, rule_id, state, packets, bytes, pps) SELECT ends, :span, rule_id, state, packets, bytes, "
        "rate FROM (SELECT (slot + 1) * :span AS ends, rule_id, state, packets, bytes, avg(pps) AS rate, "
        "max(at) FROM ("
        f"SELECT *, {_SLOT} AS slot FROM rule_tick "
        "WHERE span < :span AND at <= :before) GROUP BY slot, rule_id)",
        before,
        span,
    )


def _replace(database: sqlite3.Connection, table: str, insert: str, before: float, span: int) -> None:
    """Insert the rolled-up rows, and delete those that they stand for."""
    last = database.execute(f"SELECT max(n) FROM {table}").fetchone()[0] or 0
    values = {"before": before, "span": span}
    database.execute(f"INSERT INTO {table}{insert}", values)
    values["last"] = last
    database.execute(
        f"DELETE FROM {table} WHERE span < :span AND at <= :before AND n <= :last",
        values,
    )
