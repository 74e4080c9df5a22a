"""The lines above and below the panels: header, attack banner, status, footer. All pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fwtop.model.rule import RuleStatus, State
from fwtop.model.snapshot import Attack, Snapshot
from fwtop.ui.cells import Line, Span, fit, spread, width_of
from fwtop.ui.format import bits, cut, duration, number, percent, sparkline, wrap
from fwtop.ui.keys import footer_keys
from fwtop.ui.palette import (
    ACCENT,
    ALARM,
    BAD,
    BRAND,
    CALM,
    DIM,
    GOOD,
    NOTICE,
    STRONG,
    TEXT,
    TITLE,
    WARN,
)
from fwtop.ui.verdict_panels import gauge_line

HISTORY_SECONDS = 60


@dataclass(slots=True)
class History:
    """The packet rate of the last seconds, one value a second."""

    values: list[float] = field(default_factory=list)
    second: int = 0

    def add(self, pps: float, now: float) -> None:
        """Note a rate; within a second the greatest counts, missed seconds repeat the last."""
        second = int(now)
        if self.values and second <= self.second:
            self.values[-1] = max(self.values[-1], pps)
            return
        if self.values:
            missed = min(second - self.second - 1, HISTORY_SECONDS)
            self.values += [self.values[-1]] * missed
        self.values.append(pps)
        del self.values[:-HISTORY_SECONDS]
        self.second = second


@dataclass(frozen=True, slots=True)
class Mood:
    """What the lines say beside the snapshot."""

    now: float
    paused: bool = False
    readonly: str = ""
    slow: bool = False


def header_lines(snapshot: Snapshot, history: History, mood: Mood, width: int) -> list[Line]:
    """Write who is watched, by what, and the figures that matter most."""
    return [_who(snapshot, mood, width), _figures(snapshot, history, mood, width)]


def _who(snapshot: Snapshot, mood: Mood, width: int) -> Line:
    origin = snapshot.origin
    left: Line = [(" fwtop ", BRAND), (f" {snapshot.host}", STRONG)]
    where = ", ".join(origin.interfaces) if origin.kind == "live" else origin.file or origin.kind
    left.append((f"  {where}", TEXT))
    if origin.netns:
        left.append((f"  netns {origin.netns}", DIM))
    right = [*_sampling(snapshot), *_guardian(snapshot, mood)]
    if width_of(left) + width_of(right) + 2 > width:
        right = _guardian(snapshot, mood)
    return spread(left, [*right, (" ", TEXT)], width)


def _sampling(snapshot: Snapshot) -> Line:
    sampling = snapshot.tables.sampling
    words = "every packet" if sampling.one_in <= 1 else f"1 in {number(sampling.one_in)}"
    line: Line = [(f"seen {words}" if sampling.one_in <= 1 else f"sampled {words}", DIM)]
    if sampling.watched < 1:
        line.append((", drops estimated", DIM))
    if sampling.lost:
        line.append((f", {number(sampling.lost)} lost", WARN))
    return [*line, ("   ", TEXT)]


def _guardian(snapshot: Snapshot, mood: Mood) -> Line:
    line: Line = []
    if mood.paused:
        line += [(" PAUSED ", NOTICE), ("  ", TEXT)]
    if snapshot.guardian.startswith("lost"):
        return [*line, (" GUARDIAN LOST ", ALARM)]
    if mood.readonly:
        return [*line, ("read-only", WARN)]
    return [*line, (f"guardian {snapshot.guardian}", GOOD)] if snapshot.guardian else line


def _figures(snapshot: Snapshot, history: History, mood: Mood, width: int) -> Line:
    """Write the figures in the order of their weight, as many as fit."""
    totals, conntrack = snapshot.tables.totals, snapshot.conntrack
    dropped = totals.dropped / totals.packets if totals.packets else 0.0
    wide = width >= 120
    line: Line = [(" ", TEXT)]
    if not mood.slow:
        line += [(sparkline(history.values, HISTORY_SECONDS, 40 if wide else 12), ACCENT), ("  ", TEXT)]
    line += [(f"{number(totals.pps):>5}", STRONG), (" pps  ", TEXT), (f"{bits(totals.bps):>11}", TEXT)]
    parts: list[Line] = [[("dropped ", DIM), (f"{percent(dropped):>6}", BAD if dropped >= 0.05 else TEXT)]]
    if conntrack is not None and conntrack.max:
        fill = conntrack.fill
        style = BAD if fill >= 0.8 else TEXT
        gauge: Line = [
            ("conntrack ", DIM),
            *gauge_line(fill, 10 if wide else 6),
            (f" {percent(fill)}", style),
        ]
        if conntrack.seconds_to_full is not None and fill < 0.995:
            to_full = (f", full in {duration(conntrack.seconds_to_full)}", WARN)
            gauge += [to_full] if width_of(line) + width_of([*parts[0], *gauge, to_full]) + 6 <= width else []
        parts.append(gauge)
    ours = sum(row.packets for row in snapshot.tables.ledger if row.rule)
    if ours and totals.packets:
        parts.append([("by rules ", DIM), (percent(min(ours / totals.packets, 1.0)), GOOD)])
    if snapshot.softirq_share is not None:
        parts.append([("softirq ", DIM), (f"{percent(snapshot.softirq_share)} of CPU", TEXT)])
    for part in parts:
        if width_of(line) + width_of(part) + 3 <= width:
            line += [("   ", TEXT), *part]
    return line


def banner_lines(snapshot: Snapshot, now: float, width: int, height: int) -> list[Line]:
    """Name the attacks in plain words, the greatest first, with the evidence where there is room."""
    attacks = snapshot.judgement.attacks
    if not attacks:
        return [[(" CALM ", CALM), ("  no attack in what arrives", TEXT), *_notes(snapshot)]]
    if height == 1:
        return [_attack(attacks[0], now, len(attacks) - 1, width)]
    lines = [_attack(attack, now, 0, width) for attack in attacks[: height - 1]]
    hidden = len(attacks) - len(lines)
    if hidden:
        lines[-1] = _attack(attacks[len(lines) - 1], now, hidden, width)
    room = height - len(lines)
    if room <= 0:
        return lines
    rows = wrap("; ".join(attacks[0].evidence), width - 12)
    if len(rows) > room:
        rows[room - 1 :] = [cut(" ".join(rows[room - 1 :]), width - 12)]
    return lines + [[(" " * 10, TEXT), (row, DIM)] for row in rows]


def _notes(snapshot: Snapshot) -> Line:
    return [(f"   {snapshot.notes[0]}", WARN)] if snapshot.notes else []


def _attack(attack: Attack, now: float, more: int, width: int) -> Line:
    """Write an attack on one line; what matters least is left out where there is no room."""
    line: Line = [(" ATTACK ", ALARM), ("  ", TEXT), (attack.title, STRONG)]
    tail: Line = [(f"  +{more} more: ", WARN), ("a", TITLE), (" ", TEXT)] if more else []
    parts: list[Span] = [(f"{percent(attack.share)} of traffic", TEXT)]
    parts += [("sources forged", WARN)] if attack.spoofed else []
    parts += [(f"{number(attack.pps)} pps", TEXT), (f"{attack.confidence * 100:.0f} % sure", DIM)]
    parts.append((f"since {duration(now - attack.since)}", DIM))
    for part in parts:
        if width_of([*line, part, *tail]) + 2 <= width:
            line += [("  ", TEXT), part]
    return spread(fit(line, min(width_of(line), width - width_of(tail))), tail, width)


def pending(mitigations: Sequence[RuleStatus]) -> list[RuleStatus]:
    """Return the unconfirmed rules, the most urgent first."""
    found = [status for status in mitigations if status.state is State.PROVISIONAL]
    return sorted(found, key=lambda status: status.confirm_by or 0.0)


def status_line(snapshot: Snapshot | None, message: Line, now: float, width: int) -> Line:
    """Say what just happened, and what waits for the operator."""
    if snapshot is None:
        return message or [(" waiting for the first numbers …", DIM)]
    if snapshot.guardian.startswith("lost") and not message:
        why = snapshot.guardian.removeprefix("lost").removeprefix(":").strip() or "no answer"
        return [(" rules expire by themselves; q, then start fwtop again", BAD), (f"   ({why})", DIM)]
    waiting = pending(snapshot.mitigations)
    if not waiting:
        return message or [(f" {note}", DIM) for note in snapshot.notes[:1]]
    first = waiting[0]
    left = duration((first.confirm_by or now) - now)
    prompt: Line = [(f" rule {first.rule.id} is taken back in {left} ", NOTICE)]
    prompt += [("  y", TITLE), (" keeps it  ", TEXT), ("u", TITLE), (" undoes it now", TEXT)]
    if message and width_of(prompt) + width_of(message) + 3 <= width:
        return [*prompt, ("  ", TEXT), *message]
    return message or prompt


def footer_line(width: int, *, waiting: bool, rules: bool = False) -> Line:
    """List the keys that matter most; on the screen of rules those that count there."""
    line: Line = []
    for row, word in footer_keys(width, pending=waiting, rules=rules):
        style = NOTICE if row.action == "confirm" else TITLE
        line += [(" ", TEXT), (row.label, style), (f" {word}", TEXT), (" ", TEXT)]
    return line
