"""What is left to do after a session, most urgent first; each step is a sentence, perhaps with a command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fwtop.model.rule import ACTIVE_STATES, State
from fwtop.model.traffic.flow import STOPPED
from fwtop.model.traffic.session import SessionRecord
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.render.numbers import percent, plural
from fwtop.report.facts.effects import RuleEffect
from fwtop.report.facts.periods import Protection
from fwtop.report.facts.spans import AttackSpan
from fwtop.report.wording import clock

_FULL = 0.8  # of the connection table
_MOST = 8


def next_steps(
    record: SessionRecord,
    protection: Protection,
    spans: Sequence[AttackSpan],
    effects: Sequence[RuleEffect],
    last: Snapshot | None,
) -> tuple[str, ...]:
    """Return the steps; there is always one."""
    steps = [
        *_attack_steps(protection, last),
        *_rule_steps(effects, last),
        *_source_steps(spans),
        *_machine_steps(record),
    ]
    if not steps:
        steps = ["Nothing. Keep 'fwtop record' running, so that the next report knows what is normal."]
    return tuple(steps[:_MOST])


def _attack_steps(protection: Protection, last: Snapshot | None) -> Iterator[str]:
    if protection.attacked_at_end and (protection.at_end is None or protection.at_end < STOPPED):
        offers = last.judgement.proposals if last is not None else ()
        best = next((offer for offer in offers if offer.fwtop), None)
        yield (
            f"The attack was not stopped: preview '{best.fwtop[:200]} --preview' ({best.summary})."
            if best is not None
            else "The attack was not stopped, and no rule was offered: call the provider."
        )
    offers = last.judgement.proposals if last is not None else ()
    if any(offer.kind == "upstream" for offer in offers):
        yield "This host can't stop all of it: send the provider what 'fwtop report --bundle' writes."


def _rule_steps(effects: Sequence[RuleEffect], last: Snapshot | None) -> Iterator[str]:
    present = {status.rule.id: status for status in last.mitigations} if last is not None else {}
    active = [item for item in present.values() if item.state in ACTIVE_STATES]
    trial = [item.rule.id for item in active if item.state is State.PROVISIONAL]
    if trial:
        yield f"{_rules(trial)} on trial and will be removed: 'fwtop keep {trial[0]}' confirms."
    kept = [item for item in active if item.state is State.CONFIRMED]
    if kept:
        first = min(kept, key=lambda item: item.expires or float("inf"))
        one = " the first" if len(kept) > 1 else ""
        when = f"{',' if one else ''}{one} at {clock(first.expires)} UTC" if first.expires else ""
        shown = _rules([item.rule.id for item in kept])
        yield f"{shown} still active and will expire{when}: 'fwtop status' shows them."
    worked = {effect.rule.id for effect in effects if effect.packets}
    idle = [item.rule.id for item in kept if item.rule.id not in worked]
    if idle:
        yield f"{_rules(idle)} without a single match: 'fwtop undo {' '.join(idle[:10])}' removes them."
    broken = [item for item in active if not item.acting]
    for item in broken[:2]:
        yield f"Rule {item.rule.id} does not act ({item.not_acting}): 'fwtop repair {item.rule.id}'."
    if any(effect.rule.predicted_guess for effect in effects):
        yield (
            "Harm was predicted without a record of normal traffic (marked ?): "
            "let 'fwtop record' run in calm time, so that predictions are measured."
        )


def _rules(ids: Sequence[str]) -> str:
    shown = ", ".join(ids[:6]) + (f" and {len(ids) - 6} more" if len(ids) > 6 else "")
    return f"Rule {shown} is" if len(ids) == 1 else f"Rules {shown} are"


def _source_steps(spans: Sequence[AttackSpan]) -> Iterator[str]:
    forged = [span.title for span in spans if span.spoofed]
    real = [
        span.title
        for span in spans
        if not (span.spoofed or span.uncertain) and span.detail.tables.get("address")
    ]
    if real:
        yield (
            f"Report the senders of {', '.join(dict.fromkeys(real))} to their networks: "
            "'fwtop report --bundle' writes the mails."
        )
    if forged:
        yield (
            f"Do not complain to the owners of the addresses in {', '.join(dict.fromkeys(forged))}: "
            "they look forged. Their way in can only be found by providers."
        )


def _machine_steps(record: SessionRecord) -> Iterator[str]:
    fullest = max((tick.conntrack_fill or 0.0 for tick in record.ticks), default=0.0)
    if fullest >= _FULL:
        yield (
            f"The connection table was up to {percent(fullest, None)} full: raise "
            "net.netfilter.nf_conntrack_max, or keep floods out of it with 'fwtop notrack'."
        )
    lost = sum(tick.lost_per_s > 0 for tick in record.ticks)
    if lost > len(record.ticks) / 10:
        yield f"Samples were lost in {plural(lost, 'tick')}: shares are less precise."
