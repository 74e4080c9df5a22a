"""How rules on trial do, in the badge's line: what they drop or closed of what was foretold, what is left."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fwtop.model.rule import RuleStatus
from fwtop.model.traffic.session import FULL_TABLE, NOTICED, STOPPED
from fwtop.model.traffic.snapshot import Incident, Snapshot
from fwtop.render.rows.defence import holding
from fwtop.render.verdict import Verdict, held_off
from fwtop.rules.kinds import drops_nothing
from fwtop.ui.format import number, percent
from fwtop.ui.style import BAD, DIM, STRONG, TEXT, WARN, Line, Span


def trial_parts(verdict: Verdict, attacks: tuple[Incident, ...], snapshot: Snapshot) -> list[Line]:
    """Write what a rule costs clients, or what those on trial drop; what matters less comes later."""
    status, loss = verdict.rule, verdict.loss
    if loss is not None or status is None:
        return [[(f"rule {loss.rule}: {loss.words} since it is in", BAD)]] if loss is not None else []
    rule = status.rule
    if drops_nothing(rule) and len(verdict.trials) == 1:
        return [[(f"rule {rule.id} drops nothing by itself: ", TEXT), (rule.summary, STRONG)]]
    several = len(verdict.trials) > 1
    who = f"rules {', '.join(verdict.trials)} drop" if several else f"rule {rule.id} drops"
    drops: Line = [(f"{who} {number(verdict.trial_pps)} pps", STRONG)]
    is_new = rule.created > snapshot.started  # a share of what arrived partly before it says nothing
    if is_new or not attacks or verdict.attack_pps <= 0 or holding(attacks[0]):
        return [*_without_share(drops, attacks, verdict, snapshot)]
    if verdict.trial_share < STOPPED <= verdict.stopped and verdict.other >= NOTICED:
        return _beside_another(drops, who, verdict)
    wanted = None if several or len(attacks) > 1 else rule.predicted_attack_share  # it was one attack's
    return _of_share(drops, verdict.trial_share, wanted, attacks, snapshot)


def _closed(status: RuleStatus) -> str:
    """Say how many of an attack's connections a rule closed; "" if it closed none, or is against none."""
    parts = status.note.split("; ") if status.rule.predicted_attack_share else []
    found = next((part for part in parts if re.match("closed [1-9]", part)), "")
    return found and f"rule {status.rule.id} {found}"


_SETTLES_SECONDS = 5.0  # after an attack's last packet: until then it isn't known whether its senders go on


def _without_share(
    drops: Line, attacks: tuple[Incident, ...], verdict: Verdict, snapshot: Snapshot
) -> Iterator[Line]:
    """Write how a trial does while no share of the attacks tells."""
    if attacks and (held := holding(attacks[0])):  # what was expected is a share of these
        yield from (drops, [(f"the attack still {held}", WARN)], [("open until the server ends them", DIM)])
        return
    closed = _closed(verdict.rule) if verdict.rule is not None else ""
    yield [(closed, STRONG)] if closed and verdict.trial_pps < 1 else drops
    if not attacks and (closed or held_off(snapshot)):
        yield [("attack stopped", TEXT), (" ✔", STRONG)]
        return
    last = max((one.last for one in snapshot.judgement.attacks if not one.is_on), default=0.0)
    is_known = not attacks or verdict.attack_pps <= 0
    is_over = is_known and snapshot.at - last >= _SETTLES_SECONDS
    yield [("no attack now" if is_over else "measuring …", DIM)]


def _beside_another(drops: Line, who: str, verdict: Verdict) -> list[Line]:
    """Write what is stopped together with another firewall; a rule that drops nothing has no part in it."""
    if verdict.trial_share < NOTICED and verdict.other >= STOPPED:
        return [drops, [(f"other firewall stops {percent(verdict.other)} already", DIM)]]
    stops = f"{who.rpartition(' ')[0]} and other firewall stop {percent(verdict.stopped)}"
    return [[(stops, STRONG), (" ✔", STRONG)], [(f"{number(verdict.trial_pps)} pps on trial", TEXT)]]


def _of_share(
    drops: Line, part: float, wanted: float | None, attacks: tuple[Incident, ...], snapshot: Snapshot
) -> list[Line]:
    """Write which share of the attacks a trial drops, against what was foretold, and what it leaves."""
    of = "the attack" if len(attacks) == 1 else "all attacks"
    told = percent(part)
    drops = [*drops, (f" {'= ' if told[0].isdigit() else ''}{told}", TEXT), (f" of {of}", TEXT)]
    if wanted is None:
        return [[*drops, (" ✔", STRONG)] if part >= STOPPED else drops]
    effects = (one for one in snapshot.judgement.on if one.cause == attacks[0].id)
    left = [one.title for one in effects if one.kind != FULL_TABLE]
    why = f"not yet: {', '.join(left)}" if left else "not yet"
    fulfilled: Span = ("✔", STRONG) if part >= wanted * 0.9 else (why, WARN)
    return [drops, [(f"expected {percent(wanted)} ", DIM), fulfilled]]
