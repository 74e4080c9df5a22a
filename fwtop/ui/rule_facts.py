"""What is known about a rule: what was foreseen, what it does, and what changed for the machine."""

from __future__ import annotations

import time

from fwtop.model.counters import TcpService
from fwtop.model.rule import Rule, RuleStatus
from fwtop.ui.cells import Line
from fwtop.ui.effects import Effects, Machine
from fwtop.ui.format import duration, number, octets, percent
from fwtop.ui.palette import DIM, STRONG, TEXT, TITLE, WARN
from fwtop.ui.sheet import LABEL, fact, labelled, wrapped
from fwtop.ui.verdict_panels import rule_state

_SHOWN_SOURCES = 200


def rule_facts(item: RuleStatus, now: float) -> tuple[str, list[Line]]:
    """Return the title and the lines of the details dialog."""
    rule = item.rule
    lines = [*wrapped("rule", rule.summary), labelled("state", rule_state(item, now), width=LABEL)]
    if item.note:
        lines += wrapped("note", item.note)
    lines.append(fact("way", f"{rule.kind.value}, made by {rule.created_by or 'unknown'}"))
    lines.append(fact("matched", f"{item.packets:,} packets, {octets(item.bytes)}"))
    lines.append(labelled("now", [*rate_line(item), *_ask_why(item)], width=LABEL))
    lines += _foreseen(rule)
    if item.expires is not None:
        left = duration(item.expires - now)
        lines.append(fact("expires", f"{_clock(item.expires)}, in {left}, without any process"))
    for number_of, prefix in enumerate(rule.match.sources[:_SHOWN_SOURCES]):
        hits = item.entries.get(str(prefix))
        counted = f"{prefix}" if hits is None else f"{prefix}  {number(hits)} packets"
        lines.append(fact("sources" if number_of == 0 else "", counted))
    if len(rule.match.sources) > _SHOWN_SOURCES:
        lines.append(fact("", f"… and {len(rule.match.sources) - _SHOWN_SOURCES:,} more"))
    return f"rule {rule.id}", lines


def effect_lines(item: RuleStatus, effects: Effects, now: float) -> list[Line]:
    """Write for the screen of rules what the selected rule does and what changed with it."""
    rule = item.rule
    lines: list[Line] = [[(f" rule {rule.id}  ", STRONG), (rule.summary, TEXT)]]
    lines.append(_indented(labelled("matches", [*rate_line(item), *_ask_why(item)], width=LABEL)))
    lines += [_indented(line) for line in _foreseen(rule)]
    if item.note:
        lines += [_indented(line) for line in wrapped("note", item.note)]
    before, after = effects.before.get(rule.id), effects.now
    age = f"{duration(now - rule.created)} ago" if rule.created else "at a time not known"
    if before is None or after is None:
        lines.append(_indented(fact("machine", f"it went in {age}, before this screen was opened")))
        return lines
    lines += [[], [(f" what changed since it went in {age}", DIM)]]
    return lines + [_indented(line) for line in _changes(before, after)]


def rate_line(item: RuleStatus) -> Line:
    """Write the present rate against the one foreseen where there is one."""
    line: Line = [(f"{number(item.pps)} packets a second", WARN if idle(item) else STRONG)]
    if item.rule.predicted_pps is not None:
        line.append((f"; {number(item.rule.predicted_pps)} were foreseen", DIM))
    return line


def idle(item: RuleStatus) -> bool:
    """Whether a rule does next to nothing of what was foreseen."""
    predicted = item.rule.predicted_pps
    return predicted is not None and predicted >= 1 and item.pps < predicted / 100


def _ask_why(item: RuleStatus) -> Line:
    return [("   w", TITLE), (" says why", WARN)] if idle(item) else []


def _foreseen(rule: Rule) -> list[Line]:
    if rule.predicted_attack_share is None:
        return []
    text = f"to stop {percent(rule.predicted_attack_share)} of the attack"
    if rule.predicted_collateral_share is not None:
        text += f" and to hit {percent(rule.predicted_collateral_share)} of normal traffic"
    return [fact("foreseen", text)]


def _changes(before: Machine, after: Machine) -> list[Line]:
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
    """Write whether real clients are better off: only they finish handshakes and acknowledge."""
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
