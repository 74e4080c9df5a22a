"""Everything known about a row of a list, or an attack, as lines of a dialog."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import assert_never

from fwtop.analysis.rule_rates import RatedRule
from fwtop.model.costs import CALIBRATE
from fwtop.model.rule import ACTIVE_STATES, RuleStatus
from fwtop.model.ruleset import ListedSet
from fwtop.model.traffic.snapshot import (
    Attack,
    Destination,
    PacketSignature,
    Payload,
    Port,
    Proposal,
    Share,
    Snapshot,
    Source,
)
from fwtop.rules.words import describe
from fwtop.ui.drawing.format import duration, hex_dump, nanoseconds, number, octets, percent
from fwtop.ui.drawing.style import ACCENT, DIM, GOOD, STRONG, TEXT, WARN, Line
from fwtop.ui.drawing.text import LABEL, detail, labelled, wrapped
from fwtop.ui.lists.log_view import entry_details
from fwtop.ui.lists.machine_rules import rule_details as machine_rule_details
from fwtop.ui.lists.machine_rules import set_details
from fwtop.ui.lists.packets.columns import clock_text
from fwtop.ui.lists.packets.pane import packet_details
from fwtop.ui.lists.panels import NO_BASELINE, harm
from fwtop.ui.lists.path import stage_details
from fwtop.ui.lists.rows import Item, LogEntry
from fwtop.ui.lists.rule_details import rule_details
from fwtop.ui.lists.traffic import part_text, payload_name, port_name, signature_words, spared
from fwtop.ui.lists.trends_view import trend_details
from fwtop.ui.state.figures import Figure, LedgerLine
from fwtop.ui.state.history_rows import TrendItem
from fwtop.ui.state.packet_row import PacketRow
from fwtop.ui.state.stages import Stage

_EVENT_LINES = 40  # kept of a rule with an event
Details = tuple[str, list[Line]]  # title and lines


def details_of(item: Item, now: float, snapshot: Snapshot | None = None) -> Details:  # noqa: PLR0911, PLR0912, C901 - a line a type
    """Return the title and lines for a selected row; with a snapshot also what its rules and attacks say.

    The type checker refuses a type of row that has no case here.
    """
    # Only clocks run on while the screen is paused: what is told of the traffic keeps its age.
    seen = snapshot.started + snapshot.seconds if snapshot is not None else now
    match item:
        case Source():
            return _source(item, snapshot)
        case Port():
            return _port(item)
        case Payload():
            return _payload(item)
        case Destination():
            return _destination(item)
        case PacketSignature():
            return _signature(item)
        case Attack():
            return item.title, attack_lines(item, seen, snapshot)
        case Proposal():
            return _proposal(item)
        case RuleStatus():
            return rule_details(item, now)
        case LedgerLine():
            return _ledger(item)
        case Figure():
            return _figure(item)
        case Stage():
            return stage_details(item, now)
        case LogEntry():
            return _log_entry(item, seen, snapshot)
        case PacketRow():
            return f"packet of {clock_text(item.unix_ns)}", packet_details(item)
        case RatedRule():
            return machine_rule_details(item, now)
        case ListedSet():
            return set_details(item, now)
        case TrendItem():
            return trend_details(item, now)
    assert_never(item)


def subject_details(subject: str, shots: Iterable[Snapshot]) -> list[Line]:
    """Describe the attack or the rule that an event is about, as it was in the first snapshot that has it."""
    for shot in shots:
        now = shot.started + shot.seconds
        for attack in shot.judgement.attacks:
            if subject in (attack.kind, attack.key):
                return attack_lines(attack, now, shot)
        for status in shot.mitigations:
            if status.rule.id == subject:
                return rule_details(status, now)[1][:_EVENT_LINES]
    return []


def attack_details(snapshot: Snapshot) -> list[Line]:
    """Write every attack with its evidence, and what the baseline was measured on."""
    lines: list[Line] = []
    for attack in snapshot.judgement.attacks:
        lines += [[]] if lines else []
        lines += attack_lines(attack, snapshot.started + snapshot.seconds, snapshot)
    if not lines:
        lines.append([("no attack", GOOD)])
    if snapshot.judgement.baseline:
        lines += [[], *wrapped("normal", snapshot.judgement.baseline)]
    for note in snapshot.notes:
        lines += wrapped("note", note)
    return lines


def attack_lines(attack: Attack, now: float, snapshot: Snapshot | None) -> list[Line]:
    """Describe an attack with its evidence."""
    rate = attack.pps if snapshot is None else min(attack.pps, snapshot.tables.totals.pps)
    details = f"{percent(attack.share)} of all packets, {number(rate)} pps"
    if attack.share <= 0:
        details = "no packets of its own: others fill the table"
    lines: list[Line] = [[(attack.title, STRONG)]]
    lines.append(detail("share", f"{details}, {attack.confidence * 100:.0f} % sure"))
    lines.append(detail("since", f"{_moment(attack.since)} ({duration(now - attack.since)} ago)"))
    if attack.share > 0:  # a full table has no packets of its own, nor senders
        lines.append(detail("sources", _origin(attack)))
    for number_of, sentence in enumerate(attack.evidence):
        lines += wrapped("evidence" if number_of == 0 else "", sentence)
    return lines


def _origin(attack: Attack) -> str:
    if attack.spoofed:
        return "forged: blocking them won't help"
    return "whether they are real can't be told" if attack.uncertain else "look real"


def _moment(unix_seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(unix_seconds))


def _log_entry(item: LogEntry, now: float, snapshot: Snapshot | None) -> Details:
    title, lines = entry_details(item, now)
    known = list(item.details) or subject_details(item.subject, [snapshot] if snapshot else [])
    return title, [*lines, *([[], *known] if known else [])]


def _source(item: Source, snapshot: Snapshot | None) -> Details:
    lines = [detail("source", item.key)]
    if item.who:
        lines.append(detail("who", WHO.get(item.who, item.who)))
    stale = snapshot.tables.sources.stale if snapshot is not None else ""
    old = f", by data of {stale} (fwtop geoip update)" if item.country and stale else ""
    lines.append(detail("country", (item.country or "not known") + old))
    network = f"AS{item.asn} {item.as_name or ''}" if item.asn is not None else "not known"
    lines.append(detail("network", network.strip()))
    lines += _share(item.share)
    low, high = percent(item.dropped_low), percent(item.dropped_high)
    lines.append(
        detail("dropped", f"{percent(item.dropped_share)} of its own packets, {low} to {high} by samples")
    )
    return item.key, lines + _source_rules(item, snapshot)


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
    others = [status for status in rules if status.state in ACTIVE_STATES and _drops(status)]
    if not others or item.dropped_share < _DROPPED_BY_RULE:
        return [*lines, detail("rule", "none drops it")]
    if len(others) == 1:
        text = f"rule {others[0].rule.id} drops {percent(item.dropped_share)} of it, not by its address"
    else:
        names = ", ".join(status.rule.id for status in others[:8])
        text = (
            f"none by its address; rules {names} match other fields, {percent(item.dropped_share)} is dropped"
        )
    return [*lines, *wrapped("rule", text)]


def _drops(status: RuleStatus) -> bool:
    """Whether a rule drops packets now, chosen by something other than their source."""
    return not status.rule.match.sources and status.rule.origin is None and status.pps > 0


def _port(item: Port) -> Details:
    side = "destination" if item.side == "dst" else "source"
    lines = [detail("port", f"{item.protocol} {side} port {item.port}")]
    lines.append(detail("service", item.service or "not known"))
    return port_name(item), [*lines, *_share(item.share)]


def _payload(item: Payload) -> Details:
    where = "anywhere in the payload" if item.offset is None else f"at byte {item.offset} of the payload"
    lines = [detail("place", where), detail("length", f"{len(item.data)} bytes")]
    if item.dns_name is not None:
        lines += wrapped("DNS name", item.dns_name)
    lines += _share(item.share)
    lines.append(detail("normal", f"{percent(item.baseline_share)} of normal packets contain it too"))
    lines += [[], [("bytes", DIM)]]
    for offset, pairs, text in hex_dump(item.data):
        lines.append([(f"{offset}  ", DIM), (pairs, TEXT), (f"  {text}", ACCENT)])
    return f"payload {payload_name(item)}", lines


def _destination(item: Destination) -> Details:
    lines = [detail("address", item.key), *_share(item.share)]
    lines.append(detail("dropped", f"{percent(item.dropped_share)} of its own packets"))
    if item.part:
        lines.append(detail("part", part_text(item)))
    return f"destination {item.key}", lines


def _signature(item: PacketSignature) -> Details:
    lines = [*wrapped("matches", describe(item.match)), *_share(item.share)]
    lines.append(detail("dropped", f"{percent(item.dropped_share)} of its own packets"))
    lines.append(detail("normal", f"{percent(item.baseline_share)} of normal packets match it too"))
    if item.attack:
        lines += wrapped("attack", f"{percent(item.attack_share)} of its packets, mostly {item.attack}")
    for one in item.match.payload:
        lines += [[], [("first bytes", DIM)]]
        for offset, pairs, text in hex_dump(one.data):
            lines.append([(f"{offset}  ", DIM), (pairs, TEXT), (f"  {text}", ACCENT)])
    return f"signature {' '.join(signature_words(item.match))}", lines


def _ledger(item: LedgerLine) -> Details:
    row = item.row
    lines = [detail("layer", row.layer), *wrapped("reason", row.reason)]
    lines.append(detail("rule", f"fwtop rule {row.rule}" if row.rule else "not one of fwtop's"))
    if row.mostly is not None:
        lines.append(detail("mostly", f"{describe(row.mostly)}: {percent(row.mostly_share)} of the samples"))
    lines.append(detail("packets", f"{row.packets:,} ({percent(item.share)} of all packets)"))
    lines.append(detail("rate", f"{number(row.pps)} packets a second"))
    return f"{row.layer}: {row.reason}", lines


def _figure(item: Figure) -> Details:
    return f"conntrack {item.name}", [detail(item.name, item.value), *wrapped("", item.meaning)]


def _proposal(item: Proposal) -> Details:
    lines = wrapped("does", item.summary)
    lines.append(
        detail("stops", f"{percent(item.attack_share)} of the attack, {number(item.stopped_pps)} pps")
    )
    if item.already_share:
        lines += wrapped("", f"active rules stop {percent(item.already_share)} of it already")
    harmed: Line = [*harm(item.collateral_share, guess=item.guess), (" of client-like packets", TEXT)]
    lines.append(labelled("clients hit", harmed, width=LABEL))
    if item.guess:
        lines.append(labelled("", [(NO_BASELINE, WARN)], width=LABEL))
    for number_of, example in enumerate(item.collateral_examples):
        lines += wrapped("such as" if number_of == 0 else "", example)
    if item.cost_ns is not None:
        where = "measured on this machine" if item.cost_measured else f"a default; '{CALIBRATE}' measures"
        lines += wrapped("costs", f"{nanoseconds(item.cost_ns)} a packet ({where})")
    if item.fwtop:
        lines += wrapped("the same", item.fwtop)
    for number_of, command in enumerate(item.commands):
        lines += wrapped("runs" if number_of == 0 else "", command)
    return f"proposal {item.number}", lines


def _share(share: Share) -> list[Line]:
    low, high = percent(share.share_low), percent(share.share_high)
    return [
        detail("share", f"{percent(share.share)} of all packets; 95 % CI {low} to {high}"),
        detail("packets", f"{share.packets:,}, {number(share.pps)} pps"),
        detail("bytes", octets(share.bytes)),
    ]


WHO = {
    "you": "you: an SSH session to this host comes from it",
    "allowed": "on the allow-list: no rule drops it",
    "resolver": "a resolver of this host or of one behind it: its answers pass every rule",
    "time server": "a time server of this host or of one behind it: its answers pass every rule",
    "gateway": "a gateway of this host",
    "ssh client": "has an SSH session with a host behind this machine: that passes every rule",
    "router": "a router behind this machine: what it says to another router passes every rule",
    "this host": "an address of this host: packets from outside that bear it are forged",
    "attack": "attacks explain most of its packets",
    "client": "finishes handshakes or exchanged packets before the attack",
}
_DROPPED_BY_RULE = 0.005
