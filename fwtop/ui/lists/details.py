"""Everything known about a row, an attack or a rule, as lines of a dialog."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fwtop.model.costs import CALIBRATE
from fwtop.model.rule import ACTIVE_STATES, Preview, Rule, RuleStatus
from fwtop.model.text import safe_text
from fwtop.model.traffic.counters import TcpService
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
from fwtop.render.observation import rfc3339
from fwtop.render.wording import describe
from fwtop.ui.drawing.format import duration, hex_dump, nanoseconds, number, octets, percent, wrap
from fwtop.ui.drawing.style import ACCENT, DIM, GOOD, STRONG, TEXT, TITLE, WARN, Line
from fwtop.ui.drawing.text import DETAILS_WIDTH, LABEL, detail, labelled, paragraph, wrapped
from fwtop.ui.lists.log_view import entry_details
from fwtop.ui.lists.packet_pane import packet_details
from fwtop.ui.lists.packet_view import clock_text
from fwtop.ui.lists.panels import harm, rule_state
from fwtop.ui.lists.path import stage_details
from fwtop.ui.lists.table import Figure, Item, LedgerLine, LogEntry
from fwtop.ui.lists.traffic import payload_name, port_name, signature_words, spared
from fwtop.ui.state.packet_row import PacketRow
from fwtop.ui.state.stages import Stage


def details_of(item: Item, now: float, snapshot: Snapshot | None = None) -> tuple[str, list[Line]]:
    """Return the title and lines for a selected row; with a snapshot also what its rules and attacks say."""
    title, lines = _WRITERS[type(item)](item, now)
    if isinstance(item, Source):
        lines += _source_rules(item, snapshot)
    if isinstance(item, LogEntry):
        known = list(item.details) or subject_details(item.subject, [snapshot] if snapshot else [])
        lines += [[], *known] if known else []
    return title, lines


def subject_details(subject: str, shots: Iterable[Snapshot]) -> list[Line]:
    """Describe the attack or the rule that an event is about, as it was in the first snapshot that has it."""
    for shot in shots:
        now = shot.started + shot.seconds
        for attack in shot.judgement.attacks:
            if subject in (attack.kind, attack.key):
                return attack_lines(attack, shot, now)
        for status in shot.mitigations:
            if status.rule.id == subject:
                return rule_details(status, now)[1][:_EVENT_LINES]
    return []


def attack_details(snapshot: Snapshot, now: float) -> list[Line]:
    """Write every attack with its evidence, and what the baseline was measured on."""
    lines: list[Line] = []
    for attack in snapshot.judgement.attacks:
        lines += [[]] if lines else []
        lines += attack_lines(attack, snapshot, now)
    if not lines:
        lines.append([("no attack", GOOD)])
    if snapshot.judgement.baseline:
        lines += [[], *wrapped("normal", snapshot.judgement.baseline)]
    for note in snapshot.notes:
        lines += wrapped("note", note)
    return lines


def attack_lines(attack: Attack, snapshot: Snapshot, now: float) -> list[Line]:
    """Describe an attack with its evidence."""
    rate = min(attack.pps, snapshot.tables.totals.pps)
    details = (
        f"{percent(attack.share)} of all packets, {number(rate)} pps, {attack.confidence * 100:.0f} % sure"
    )
    lines: list[Line] = [[(attack.title, STRONG)], detail("share", details)]
    lines.append(detail("since", f"{rfc3339(attack.since)}, {duration(now - attack.since)} ago"))
    forged = "forged: blocking them won't help" if attack.spoofed else "look real"
    if attack.share > 0:  # a full table has no packets of its own, nor senders
        lines.append(detail("sources", forged))
    for number_of, sentence in enumerate(attack.evidence):
        lines += wrapped("evidence" if number_of == 0 else "", sentence)
    return lines


def _source(item: Source, _: float) -> tuple[str, list[Line]]:
    lines = [detail("source", item.key)]
    if item.who:
        lines.append(detail("who", WHO.get(item.who, item.who)))
    lines.append(detail("country", item.country or "not known"))
    network = f"AS{item.asn} {item.as_name or ''}" if item.asn is not None else "not known"
    lines.append(detail("network", network.strip()))
    lines += _share(item.share)
    lines.append(detail("dropped", f"{percent(item.dropped_share)} of its own packets"))
    return item.key, lines


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


def _port(item: Port, _: float) -> tuple[str, list[Line]]:
    side = "destination" if item.side == "dst" else "source"
    lines = [detail("port", f"{item.protocol} {side} port {item.port}")]
    lines.append(detail("service", item.service or "not known"))
    return port_name(item), [*lines, *_share(item.share)]


def _payload(item: Payload, _: float) -> tuple[str, list[Line]]:
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


def _destination(item: Destination, _: float) -> tuple[str, list[Line]]:
    lines = [detail("address", item.key), *_share(item.share)]
    lines.append(detail("dropped", f"{percent(item.dropped_share)} of its own packets"))
    return f"destination {item.key}", lines


def _signature(item: PacketSignature, _: float) -> tuple[str, list[Line]]:
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


def _ledger(item: LedgerLine, _: float) -> tuple[str, list[Line]]:
    row = item.row
    lines = [detail("layer", row.layer), *wrapped("reason", row.reason)]
    lines.append(detail("rule", f"fwtop rule {row.rule}" if row.rule else "not one of fwtop's"))
    if row.mostly is not None:
        lines.append(detail("mostly", f"{describe(row.mostly)}: {percent(row.mostly_share)} of the samples"))
    lines.append(detail("packets", f"{row.packets:,} ({percent(item.share)} of all packets)"))
    lines.append(detail("rate", f"{number(row.pps)} packets a second"))
    return f"{row.layer}: {row.reason}", lines


def _figure(item: Figure, _: float) -> tuple[str, list[Line]]:
    return f"conntrack {item.name}", [detail(item.name, item.value), *wrapped("", item.meaning)]


def _proposal(item: Proposal, _: float) -> tuple[str, list[Line]]:
    lines = wrapped("does", item.summary)
    lines.append(
        detail("stops", f"{percent(item.attack_share)} of the attack, {number(item.stopped_pps)} pps")
    )
    harmed: Line = [*harm(item.collateral_share, guess=item.guess), (" of normal traffic", TEXT)]
    lines.append(labelled("harms", harmed, width=LABEL))
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


@dataclass(frozen=True, slots=True)
class MachineFigures:
    """Load figures of one snapshot: rates in packets per second, shares 0 to 1."""

    arrived_pps: float
    delivered_pps: float
    other_drops_pps: float  # dropped further down, or by others' rules
    conntrack_fill: float | None
    softirq_share: float | None
    tcp: TcpService | None


def machine_figures(snapshot: Snapshot) -> MachineFigures:
    """Extract the load figures of a snapshot."""
    ledger, conntrack = snapshot.tables.ledger, snapshot.conntrack
    counted = [row for row in ledger if row.layer not in ("delivered", "unexplained")]
    return MachineFigures(
        snapshot.tables.totals.pps,
        sum(row.pps for row in ledger if row.layer == "delivered"),
        sum(row.pps for row in counted if not row.rule),
        conntrack.fill if conntrack is not None and conntrack.max else None,
        snapshot.softirq_share,
        snapshot.tcp,
    )


_BEFORE_SECONDS = 10.0  # figures older than that at a rule's installation aren't those before it


@dataclass(slots=True)
class RuleEffects:
    """For each active rule, the load figures of the last snapshot without it."""

    before: dict[str, MachineFigures] = field(default_factory=dict)
    now: MachineFigures | None = None
    _at: float = 0.0  # the end of the window that `now` is of
    _known: frozenset[str] = frozenset()

    def take(self, snapshot: Snapshot) -> None:
        """Record a snapshot's figures; rules active in the first snapshot have no "before".

        Nor have those that were installed long after the last one: a pause, or a jump in a recording.
        """
        rules = {item.rule.id: item.rule for item in snapshot.mitigations if item.state in ACTIVE_STATES}
        active = frozenset(rules)
        if self.now is not None:
            for rule_id in active - self._known:
                if rules[rule_id].created - self._at <= _BEFORE_SECONDS:
                    self.before[rule_id] = self.now
        for rule_id in self.before.keys() - active:
            del self.before[rule_id]
        self._known = active
        self.now, self._at = machine_figures(snapshot), snapshot.started + snapshot.seconds


_SHOWN_SOURCES = 200
_EVENT_LINES = 40  # kept of a rule with an event


def rule_details(item: RuleStatus, now: float) -> tuple[str, list[Line]]:
    """Return the title and the lines of the details dialog."""
    rule = item.rule
    lines = [*wrapped("rule", rule.summary), labelled("state", rule_state(item, now), width=LABEL)]
    if item.note:
        lines += wrapped("note", item.note)
    lines.append(labelled("now", [*rate_line(item), *_ask_why(item)], width=LABEL))
    return f"rule {rule.id}", [*lines, *_prediction(rule), *rule_facts(item, now)]


def rule_facts(item: RuleStatus, now: float) -> list[Line]:
    """Write a rule's kind, what it has matched, when it ends, and its sources with their counts."""
    rule = item.rule
    lines = [detail("kind", f"{rule.kind.value}, created by {rule.created_by or 'unknown'}")]
    lines.append(detail("matched", f"{item.packets:,} packets, {octets(item.bytes)}"))
    if item.expires is not None:
        left = duration(item.expires - now)
        lines.append(detail("expires", f"{_clock(item.expires)}, in {left}, without any process"))
    for number_of, prefix in enumerate(rule.match.sources[:_SHOWN_SOURCES]):
        hits = item.entries.get(str(prefix))
        counted = f"{prefix}" if hits is None else f"{prefix}  {number(hits)} packets"
        lines.append(detail("sources" if number_of == 0 else "", counted))
    if len(rule.match.sources) > _SHOWN_SOURCES:
        lines.append(detail("", f"… and {len(rule.match.sources) - _SHOWN_SOURCES:,} more"))
    return lines


def effect_and_facts(item: RuleStatus, effects: RuleEffects, now: float) -> list[Line]:
    """Write what the selected rule does, what changed since it was installed, and the rest about it."""
    facts = [_indented(line) for line in rule_facts(item, now)]
    return [*effect_lines(item, effects, now), [], *facts]


def effect_lines(item: RuleStatus, effects: RuleEffects, now: float) -> list[Line]:
    """Write what the selected rule does and what changed since it was installed."""
    rule = item.rule
    lines: list[Line] = [[(f" rule {rule.id}  ", STRONG), (rule.summary, TEXT)]]
    lines.append(_indented(labelled("matches", [*rate_line(item), *_ask_why(item)], width=LABEL)))
    lines += [_indented(line) for line in _prediction(rule)]
    if item.note:
        lines += [_indented(line) for line in wrapped("note", item.note)]
    before, after = effects.before.get(rule.id), effects.now
    age = f"{duration(now - rule.created)} ago" if rule.created else "at a time not known"
    if before is None or after is None:
        lines.append(_indented(detail("machine", f"it was installed {age}; no figures from before that")))
        return lines
    lines += [[], [(f" what changed since it was installed {age}", DIM)]]
    return lines + [_indented(line) for line in _changes(before, after)]


def rate_line(item: RuleStatus) -> Line:
    """Write the present rate against the predicted one, if any."""
    line: Line = [(f"{number(item.pps)} packets a second", WARN if ineffective(item) else STRONG)]
    if item.rule.predicted_pps is not None:
        line.append((f"; {number(item.rule.predicted_pps)} were predicted", DIM))
    return line


def ineffective(item: RuleStatus) -> bool:
    """Whether a rule does less than 1 % of what was predicted."""
    predicted = item.rule.predicted_pps
    return predicted is not None and predicted >= 1 and item.pps < predicted / 100


def _ask_why(item: RuleStatus) -> Line:
    return [("   w", TITLE), (" says why", WARN)] if ineffective(item) else []


def _prediction(rule: Rule) -> list[Line]:
    if rule.predicted_attack_share is None:
        return []
    text = f"to stop {percent(rule.predicted_attack_share)} of the attack"
    if rule.predicted_collateral_share is not None:
        guess = " (estimated: no baseline)" if rule.predicted_guess else ""
        text += f" and to hit {percent(rule.predicted_collateral_share)} of normal traffic{guess}"
    return [detail("expected", text)]


def _changes(before: MachineFigures, after: MachineFigures) -> list[Line]:
    rates = (
        ("arrives", before.arrived_pps, after.arrived_pps),
        ("delivered", before.delivered_pps, after.delivered_pps),
        ("other drops", before.other_drops_pps, after.other_drops_pps),
    )
    shares = (
        ("conntrack", before.conntrack_fill, after.conntrack_fill, "full"),
        ("softirq", before.softirq_share, after.softirq_share, "of the CPU"),
    )
    lines = [_change(name, number(old), number(new), "packets a second") for name, old, new in rates]
    if before.tcp is not None and after.tcp is not None:
        lines += _service_changes(before.tcp, after.tcp)
    for name, was, share, unit in shares:
        if was is not None and share is not None:
            lines.append(_change(name, percent(was), percent(share), unit))
    return lines


def _service_changes(before: TcpService, after: TcpService) -> list[Line]:
    """Write how real clients fare: only they finish handshakes and acknowledge segments."""
    figures = (
        ("handshakes", before.handshakes_per_s, after.handshakes_per_s, "finished by clients a second"),
        ("clients", before.acknowledged_per_s, after.acknowledged_per_s, "segments acknowledged a second"),
    )
    return [_change(name, number(old), number(new), unit) for name, old, new, unit in figures if old or new]


def _change(name: str, old: str, new: str, unit: str) -> Line:
    return labelled(name, [(f"{old:>7} → ", DIM), (f"{new:>7}", STRONG), (f"  {unit}", DIM)], width=LABEL)


def _indented(line: Line) -> Line:
    return [(" ", TEXT), *line]


def _clock(unix_seconds: float) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(unix_seconds))


_ATTACKS = 3  # listed by name in a preview
NO_BASELINE = "No baseline yet: client impact is estimated"


def preview_lines(preview: Preview) -> list[Line]:
    """Write what must be read before installing: the share stopped, and the harm."""
    several = len(preview.attacks) > 1
    whole = f" of the {safe_text(preview.attack or 'attack')}, " if several else " of the attack, "
    stops: Line = [(percent(preview.attack_share), STRONG), (whole, TEXT)]
    of_all = " packets/s of all attacks" if several else " packets a second"
    stops += [(number(preview.attack_pps), STRONG), (of_all, TEXT)]
    harms: Line = [*harm(preview.collateral_share, guess=preview.guess), (" of normal traffic, ", TEXT)]
    harms += [(f"{number(preview.collateral_pps)} packets a second", TEXT)]
    lines = [labelled("stops", stops)]
    if several:
        each = (f"{safe_text(title)} {percent(share)}" for title, share in preview.attacks[:_ATTACKS])
        lines.append(labelled("", [(", ".join(each), DIM)]))
    lines.append(labelled("harms", harms))
    warned = any("baseline" in warning or "guess" in warning for warning in preview.warnings)
    if preview.guess and not warned:
        lines.append(labelled("", [(NO_BASELINE, WARN)]))
    return lines


def example_lines(preview: Preview) -> list[Line]:
    """Write who would be hit, and all that matches."""
    lines: list[Line] = []
    for number_of, example in enumerate(preview.examples):
        lines.append(labelled("such as" if number_of == 0 else "", [(safe_text(example), TEXT)]))
    if not preview.examples and preview.collateral_share == 0:
        unhit = "no normal packet seen would be hit"
        if preview.guess:
            unhit = "none of what looks normal now would be hit"
        lines.append(labelled("", [(unhit, DIM if preview.guess else GOOD)]))
    matches = f"{number(preview.total_pps)} packets a second match now"
    return [*lines, labelled("total", [(matches, DIM)])]


def text_lines(text: str, width: int) -> list[Line]:
    """Wrap a text of several lines, such as a script; each line is made safe on its own."""
    return [row for line in text.splitlines() for row in paragraph(safe_text(line, limit=2000), width)]


def notrack_lines() -> list[Line]:
    """Describe the effect of a rule that drops nothing."""
    return [labelled("effect", [("drops nothing: its packets stay out of the connection table", TEXT)])]


def why_details(status: RuleStatus, sentences: Sequence[str]) -> list[Line]:
    """Write the guardian's sentences under what the rule does now."""
    lines: list[Line] = [[(row, STRONG)] for row in wrap(safe_text(status.rule.summary), DETAILS_WIDTH)]
    lines.append([("matches ", DIM), *rate_line(status)])
    for sentence in sentences:
        first, *rest = wrap(safe_text(sentence, limit=600), DETAILS_WIDTH - 2)
        lines += [[], [("▪ ", WARN), (first, TEXT)], *([("  " + row, TEXT)] for row in rest)]
    return lines


WHO = {
    "you": "you: an SSH session to this host comes from it",
    "allowed": "on the allow-list: no rule drops it",
    "resolver": "a resolver of this host: its answers pass every rule",
    "time server": "a time server of this host: its answers pass every rule",
    "gateway": "a gateway of this host",
    "this host": "an address of this host: packets from outside that bear it are forged",
    "attack": "attacks explain most of its packets",
    "client": "finishes handshakes or exchanged packets before the attack",
}
_DROPPED_BY_RULE = 0.005


def _packet(item: PacketRow, now: float) -> tuple[str, list[Line]]:  # noqa: ARG001 - all writers have it
    return f"packet of {clock_text(item.unix_ns)}", packet_details(item)


_WRITERS: dict[type, Callable[[Any, float], tuple[str, list[Line]]]] = {
    Source: _source,
    Port: _port,
    Payload: _payload,
    Destination: _destination,
    PacketSignature: _signature,
    LedgerLine: _ledger,
    Figure: _figure,
    RuleStatus: rule_details,
    Proposal: _proposal,
    Stage: stage_details,
    LogEntry: entry_details,
    PacketRow: _packet,
}
