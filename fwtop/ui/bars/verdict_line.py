"""The verdict line: a badge that says how protected this machine is, and why."""

from __future__ import annotations

from rich.style import Style

from fwtop.model.traffic.flow import NOTICED, STOPPED
from fwtop.model.traffic.snapshot import Attack, Snapshot
from fwtop.rules.kinds import drops_nothing
from fwtop.ui.drawing.format import duration, number, percent
from fwtop.ui.drawing.style import (
    ALARM,
    CALM,
    DIM,
    FOREIGN,
    NOTICE,
    STRONG,
    TEXT,
    WARN,
    Line,
    Span,
    fit,
    spread,
    width_of,
)
from fwtop.ui.state.verdict import Badge, Verdict, attack_pps, attacks_of, verdict_of

_STYLES: dict[Badge, Style] = {
    Badge.UNPROTECTED: ALARM,
    Badge.TRIAL: NOTICE,
    Badge.PARTLY: ALARM,
    Badge.PROTECTED: CALM,
    Badge.ALREADY: FOREIGN,
    Badge.CALM: CALM,
    Badge.NOT_JUDGED: NOTICE,
    Badge.RECORDED: ALARM,
}
_FULFILLED = 0.9  # of what was expected of a rule


def verdict_line(snapshot: Snapshot, now: float, width: int, alarm: Line, *, slow: bool = False) -> Line:
    """Write badge and reason; `alarm` stands at the right edge. The least important parts give way first."""
    verdict = verdict_of(snapshot, now)
    right: Line = [("  ", TEXT), *alarm, (" ", TEXT)] if alarm else []
    room = width - width_of(right) - 1
    reasons = _reasons(verdict, snapshot, attacks_of(snapshot))
    line = _badge(verdict, bar=not slow and width >= 100)
    if reasons and width_of(line) + width_of(reasons[0]) + 2 > room:
        line = _badge(verdict, bar=False)
    for place, part in enumerate(reasons):
        if width_of(line) + width_of(part) + 2 <= room:
            line += [("  ", TEXT), *part]
        elif place == 0:
            line = fit([*line, ("  ", TEXT), *part], room)
    return spread(line, right, width)


def _badge(verdict: Verdict, *, bar: bool) -> Line:
    style = _STYLES[verdict.badge]
    if verdict.badge is Badge.PARTLY:
        return [(f" PARTLY {verdict.stopped * 100:.0f} % ", style)]
    if verdict.badge is not Badge.TRIAL:
        return [(f" {verdict.badge} ", style)]
    line: Line = [(f" TRIAL {verdict.seconds_left:.0f} s ", style)]
    if bar:
        full = round(verdict.left * 20)
        line += [(" " + "█" * full + "░" * (20 - full), WARN)]
    return line


def _reasons(verdict: Verdict, snapshot: Snapshot, attacks: tuple[Attack, ...]) -> list[Line]:
    missing: list[Line] = [[(line, WARN)] for line in (snapshot.judgement.not_judged,) if line]
    if verdict.badge is Badge.TRIAL:
        of_trial = _of_trial(verdict, attacks)
        return [*of_trial[:1], *missing, *of_trial[1:]]
    if verdict.badge is Badge.CALM:
        notes: list[Line] = [[(note, WARN)] for note in snapshot.notes[:1]]
        return [[("no attack", TEXT)], *notes]
    if verdict.badge is Badge.NOT_JUDGED and not attacks:
        return missing
    whose = "it" if len(attacks) == 1 else "them"
    named = _of_attack(attacks[0], snapshot) if len(attacks) == 1 else _of_several(attacks, snapshot)
    if verdict.badge is Badge.RECORDED:
        return named
    if verdict.badge is Badge.NOT_JUDGED:
        return [*missing, [("before: ", DIM), *named[0]], *named[1:]]
    return [named[0], *_of_drops(verdict, whose), *named[1:]]


def _of_trial(verdict: Verdict, attacks: tuple[Attack, ...]) -> list[Line]:
    status = verdict.rule
    if status is None:
        return []
    rule = status.rule
    if drops_nothing(rule) and len(verdict.trials) == 1:
        return [[(f"rule {rule.id} drops nothing by itself: ", TEXT), (rule.summary, STRONG)]]
    several = len(verdict.trials) > 1
    who = f"rules {', '.join(verdict.trials)} drop" if several else f"rule {rule.id} drops"
    drops: Line = [(f"{who} {number(verdict.trial_pps)} pps", STRONG)]
    if not attacks or verdict.attack_pps <= 0:
        return [drops, [("no attack now", DIM)]]
    part = verdict.trial_share
    of = "the attack" if len(attacks) == 1 else "all attacks"
    drops += [(f" = {percent(part)} of {of}", TEXT)]
    wanted = rule.predicted_attack_share
    if wanted is None or several or len(attacks) > 1:  # it was a share of one attack
        return [[*drops, (" ✔", STRONG)] if part >= STOPPED else drops]
    fulfilled: Span = ("✔", STRONG) if part >= wanted * _FULFILLED else ("not yet", WARN)
    return [drops, [(f"expected {percent(wanted)} ", DIM), fulfilled]]


def _of_drops(verdict: Verdict, whose: str) -> list[Line]:
    """Write who drops which share of the attacks' packets."""
    parts = (("my rules", verdict.mine), ("other firewall", verdict.other), ("kernel", verdict.kernel))
    seen = [(name, percent(part)) for name, part in parts if part >= NOTICED]
    if len(seen) == 1:
        name, part = seen[0]
        return [[(f"{name} {'drop' if name.endswith('s') else 'drops'} {part} of {whose}", TEXT)]]
    return [[(f"dropped: {', '.join(f'{part} by {name}' for name, part in seen)}", TEXT)]] if seen else []


def _of_several(attacks: tuple[Attack, ...], snapshot: Snapshot) -> list[Line]:
    titles = ", ".join(attack.title for attack in attacks)
    parts: list[Line] = [
        [(f"{len(attacks)} attacks", STRONG)],
        [(f"{number(attack_pps(snapshot))} pps", TEXT)],
    ]
    return [*parts, [(titles, TEXT)]]


def _of_attack(attack: Attack, snapshot: Snapshot) -> list[Line]:
    rate = min(attack.pps, snapshot.tables.totals.pps)
    parts: list[Line] = [[(attack.title, STRONG)]]
    parts += [[("sources forged", WARN)]] if attack.spoofed else []
    parts.append([(f"{percent(attack.share)} of all packets", TEXT)])
    parts.append([(f"{number(rate)} pps", TEXT)])
    parts.append([(f"for {duration(snapshot.started + snapshot.seconds - attack.since)}", DIM)])
    parts.append([(f"{attack.confidence * 100:.0f} % sure", DIM)])
    return parts
