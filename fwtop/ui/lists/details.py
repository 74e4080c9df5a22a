"""Everything known about a row of a list, or an attack, as lines of a dialog."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from string import Formatter
from typing import assert_never, cast

from msgspec import Struct

from fwtop.analysis.rule_readings import RatedRule
from fwtop.model.rule import RuleStatus
from fwtop.model.ruleset import ListedSet
from fwtop.model.traffic.session import Event
from fwtop.model.traffic.snapshot import (
    Destination,
    Incident,
    LedgerRow,
    PacketSignature,
    Payload,
    Port,
    Proposal,
    ServiceUse,
    Snapshot,
    Source,
)
from fwtop.render.numbers import DAY_AND_TIME, utc
from fwtop.render.rows import ROW_TYPES
from fwtop.render.rows.defence import holding, severity_words
from fwtop.render.rows.field import Field, RowType, Unit
from fwtop.rules.costs import CALIBRATE
from fwtop.ui.format import duration, hex_dump, nanoseconds, number, percent
from fwtop.ui.lists.attacks import NO_BASELINE, harm_lines
from fwtop.ui.lists.history import TrendItem
from fwtop.ui.lists.packet_rows import PacketRow, clock_text
from fwtop.ui.lists.packets import packet_details
from fwtop.ui.lists.panels import entry_details
from fwtop.ui.lists.path import stage_details
from fwtop.ui.lists.proposals import drops
from fwtop.ui.lists.rows import LogEntry
from fwtop.ui.lists.rules import listed_rule_details, rule_details, set_details
from fwtop.ui.lists.stages import Figure, Stage, share_of_all
from fwtop.ui.lists.table import WRITTEN
from fwtop.ui.lists.traffic import spared, trend_details
from fwtop.ui.style import (
    ACCENT,
    DIM,
    GOOD,
    STRONG,
    TEXT,
    WARN,
    Line,
    detail,
    facts,
    labelled,
    listed,
    wrapped,
)

Details = tuple[str, list[Line]]  # title and lines
Item = (
    Source
    | Destination
    | Port
    | Payload
    | PacketSignature
    | LedgerRow
    | Figure
    | RuleStatus
    | Proposal
    | Incident
    | Stage
    | LogEntry
    | PacketRow
    | RatedRule
    | ServiceUse
    | ListedSet
    | TrendItem
)  # all types of rows


def details_of(row: Struct, now: float, snapshot: Snapshot | None = None) -> Details:  # noqa: PLR0911, PLR0912, C901 - a type a case
    """Return the title and lines for a selected row; with a snapshot also what its rules and attacks say.

    The type checker refuses a type of row that has no case here.
    """
    # Only clocks run on while the screen is paused: what is told of the traffic keeps its age.
    seen = snapshot.at if snapshot is not None else now
    item = cast(Item, row)
    match item:
        case Source():
            stale = snapshot.tables.sources.stale if snapshot is not None else ""
            old = f"{item.country}, by data of {stale} (fwtop geoip update)" if item.country and stale else ""
            return _declared(item, *_source_rules(item, snapshot), country=old)
        case Port() | Destination() | ServiceUse():
            return _declared(item)
        case Payload():
            return _declared(item, *_hex("bytes", item.data))
        case PacketSignature():
            parts = (_hex("first bytes", one.data) for one in item.match.payload)
            return _declared(item, *chain.from_iterable(parts))
        case LedgerRow():
            share = f" ({percent(share_of_all(item, snapshot))} of all packets)" if snapshot else ""
            return _declared(item, packets=f"{item.packets:,}{share}")
        case Incident():
            return item.title, attack_lines(item, seen, snapshot)
        case Proposal():
            return f"proposal {item.number}", _proposal(item)
        case RuleStatus():
            return rule_details(item, now)
        case Figure():
            return f"conntrack {item.name}", [detail(item.name, item.value), *wrapped("", item.meaning)]
        case Stage():
            return stage_details(item, now)
        case LogEntry():
            title, lines = entry_details(item, seen)
            known = list(item.details) or subject_details(item, [snapshot] if snapshot else [])
            return title, [*lines, *([[], *known] if known else [])]
        case PacketRow():
            return f"packet of {clock_text(item.unix_ns)}", packet_details(item)
        case RatedRule():
            return listed_rule_details(item, now)
        case ListedSet():
            return set_details(item, now)
        case TrendItem():
            return trend_details(item, now)
    assert_never(item)


_EXACT = WRITTEN | {Unit.COUNT: "{:,}".format}


def _declared(item: Item, *others: Line, **instead: str) -> Details:
    """Write the details of a row as declared, with `instead` of fields by their names, and what follows."""
    row = ROW_TYPES[type(item)]
    lines: list[Line] = []
    for field in map(row.field, row.details.split()):
        if text := instead.get(field.name) or _text(row, field, item):
            lines += wrapped(field.label or field.heading or field.name, text)
    return (row.title or row.key)(item), [*lines, *others]


def _text(row: RowType, field: Field, item: Item) -> str:
    """Write what is known of a field; "" where that is nothing."""
    value = field.of(item)
    if value is None or value == "":
        return field.unknown
    if not field.words:
        return _EXACT[field.unit](value)
    named = (row.field(name) for _, name, *_ in Formatter().parse(field.words) if name)
    return field.words.format(**{part.name: _EXACT[part.unit](part.of(item)) for part in named})


def subject_details(about: Event | LogEntry, shots: Iterable[Snapshot]) -> list[Line]:
    """Describe the attack or the rule that an event is about, as it was in the first snapshot that has it."""
    for shot in shots:
        attack = shot.judgement.incident(about.incident)
        if attack is not None:
            return attack_lines(attack, shot.at, shot)
        for status in shot.mitigations:
            if status.rule.id == about.subject:
                return rule_details(status, shot.at)[1][:40]  # lines are kept with an event
    return []


def attack_details(snapshot: Snapshot) -> list[Line]:
    """Write every attack with its evidence, and what the baseline was measured on."""
    lines: list[Line] = []
    for attack in snapshot.judgement.attacks:
        lines += [[]] if lines else []
        lines += attack_lines(attack, snapshot.at, snapshot)
    if not lines:
        lines.append([("no attack", GOOD)])
    if snapshot.judgement.baseline:
        lines += [[], *wrapped("normal", snapshot.judgement.baseline)]
    for note in snapshot.notes:
        lines += wrapped("note", note)
    return lines


def attack_lines(attack: Incident, now: float, snapshot: Snapshot | None) -> list[Line]:
    """Describe an attack with its evidence."""
    rate = attack.pps if snapshot is None else min(attack.pps, snapshot.tables.totals.pps)
    details = f"{percent(attack.share)} of all packets, {number(rate)} pps"
    if attack.holds:
        details = holding(attack)
    elif attack.share <= 0:
        details = "no packets of its own: others fill the table"
    real = "whether they are real can't be told" if attack.uncertain else "look real"
    sources = "forged: blocking them won't help" if attack.spoofed else real
    lines = facts(
        ("severity", severity_words(attack.severity)),
        ("size" if attack.holds else "share", f"{details}, {attack.confidence * 100:.0f} % sure"),
        ("since", f"{utc(attack.since, DAY_AND_TIME)} ({duration(now - attack.since)} ago)"),
        ("sources", sources if attack.share > 0 or attack.holds else ""),  # a full table has no senders
    )
    return [[(attack.title, STRONG)], *lines, *listed("evidence", attack.evidence)]


def _source_rules(item: Source, snapshot: Snapshot | None) -> list[Line]:
    """Say which rule drops a source's packets: one that names it, or one that matches them otherwise."""
    lines: list[Line] = []
    attacks = snapshot.judgement.attacks if snapshot is not None else ()
    if any(attack.spoofed for attack in attacks) and not spared(item):
        text = "sources of an attack are forged: this address need not be the sender"
        lines += wrapped("beware", text)
    if item.active_rule:
        return [*lines, detail("rule", f"rule {item.active_rule} covers it")]
    rules = snapshot.mitigations if snapshot is not None else ()
    others = [
        status.rule.id
        for status in rules
        if status.stops and status.pps > 0 and not status.rule.match.sources and status.rule.origin is None
    ]
    dropped = percent(item.dropped_share)
    text = f"none by its address; rules {', '.join(others[:8])} match other fields, {dropped} is dropped"
    if not others or item.dropped_share < 0.005:
        text = "none drops it"
    elif len(others) == 1:
        text = f"rule {others[0]} drops {dropped} of it, not by its address"
    return [*lines, *wrapped("rule", text)]


def _hex(title: str, data: bytes) -> list[Line]:
    rows = (
        [(f"{offset}  ", DIM), (pairs, TEXT), (f"  {text}", ACCENT)] for offset, pairs, text in hex_dump(data)
    )
    return [[], [(title, DIM)], *rows]


def _proposal(item: Proposal) -> list[Line]:
    stops = f"{percent(item.attack_share)} of the attack, {number(item.stopped_pps)} pps"
    already = f"active rules stop {percent(item.already_share)} of it already"
    where = "measured on this machine" if item.cost_measured else f"a default; '{CALIBRATE}' measures"
    return [
        *facts(
            ("does", item.summary),
            ("stops", stops if drops(item) else ""),
            ("", already if item.already_share else ""),
        ),
        *(harm_lines(item) if drops(item) else ()),
        *facts(("needs force", item.needs_force), ("bystanders", item.bystanders)),
        *([labelled("", [(NO_BASELINE, WARN)])] if item.guess else []),
        *listed("such as", item.collateral_examples),
        *facts(
            ("costs", "" if item.cost_ns is None else f"{nanoseconds(item.cost_ns)} a packet ({where})"),
            ("the same", item.fwtop),
        ),
        *listed("by hand", item.commands),
    ]
