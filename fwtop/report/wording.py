"""What a report says in words: numbers and times, headline, summary, state at the end, what is left to do."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from fwtop.model.rule import ACTIVE_STATES, State
from fwtop.model.text import safe_text
from fwtop.model.traffic.session import FULL_TABLE, STOPPED, SessionInfo, SessionRecord
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.render.numbers import CLOCK, duration_words, percent, plural, si, utc
from fwtop.report.attacks import AttackSpan
from fwtop.report.effects import CONNECTING, RuleEffect, UserFigure
from fwtop.report.sums import Protection, Sums


def clock(at: float, *, seconds: bool = True) -> str:
    """Write the time of day in UTC."""
    return utc(at, CLOCK if seconds else "%H:%M")


def day_and_time(at: float) -> str:
    """Write date and time in UTC."""
    return utc(at, "%Y-%m-%d %H:%M:%S UTC")


def comment(text: str) -> str:
    """Keep a text within its comment: no line break or control character is left in it."""
    return safe_text(text, limit=400)


def about(share: float) -> str:
    """Return a share that is an estimate; a bound such as ">99.9 %" says so itself."""
    words = percent(share, None)
    return words if words.startswith(("<", ">")) else f"about {words}"


def headline(info: SessionInfo, spans: tuple[AttackSpan, ...], *, is_judged: bool = True) -> str:
    """Name the largest attacks and how long they were on; without any, whether all of it was judged."""
    if not spans:
        seen = "No attack" if is_judged else "No attack seen, but not all was judged,"
        return f"{seen} in {duration_words(info.seconds)}"
    ranked = sorted(spans, key=lambda span: (span.kind == FULL_TABLE, -span.peak_pps))
    titles = list(dict.fromkeys(span.title for span in ranked))
    if len(titles) > 3:
        titles = [*titles[:2], f"{len(titles) - 2} more attacks"]
    named = " and ".join([", ".join(titles[:-1]), titles[-1]]) if len(titles) > 1 else titles[0]
    return f"{named}, {duration_words(_covered(spans))}"


def _covered(spans: tuple[AttackSpan, ...]) -> float:
    """Return the time in which at least one attack was on."""
    total, reached = 0.0, float("-inf")
    for span in spans:  # in the order of their beginning
        total += max(span.until - max(span.began, reached), 0.0)
        reached = max(reached, span.until)
    return total


def summary_sentences(
    sums: Sums,
    spans: tuple[AttackSpan, ...],
    effects: tuple[RuleEffect, ...],
    protection: Protection,
    user_figures: tuple[UserFigure, ...],
) -> tuple[str, ...]:
    """Say when, how big, what was stopped, what users felt, and what was done."""
    return (
        *_attack(sums, spans),
        *_stopped(sums, protection),
        *_users(spans, user_figures),
        *_rules(spans, effects),
    )


def _attack(sums: Sums, spans: tuple[AttackSpan, ...]) -> tuple[str, ...]:
    size = f"{si(sums.peak_pps)} packets and {si(sums.peak_bps, 'bit')} arrived a second"
    if not spans:
        return (f"At the peak {size}.",)
    first, last = spans[0].began, max(span.until for span in spans)
    open_end = any(span.ended is None for span in spans)
    until = "the end of the record" if open_end else _moment(last, first)
    return (
        f"The attack was on from {day_and_time(first)} until {until}; "
        f"at its height, at {clock(sums.peak_at)}, {size}.",
    )


def _moment(at: float, after: float) -> str:
    return clock(at) if day_and_time(at)[:10] == day_and_time(after)[:10] else day_and_time(at)


def _stopped(sums: Sums, protection: Protection) -> tuple[str, ...]:
    whole = percent(sums.dropped / sums.packets if sums.packets else 0.0, None)
    if not protection.packets:
        return (f"{whole} of all packets were dropped.",)
    droppers = (("fwtop's rules", protection.mine), ("other firewalls", protection.other))
    parts = [f"{who} dropped {about(n / protection.packets)}" for who, n in droppers if n]
    stopped = " and ".join(parts) or "firewalls dropped nothing"
    reached = percent(protection.reached / protection.packets, None)
    return (f"Of the attack's {si(protection.packets)} packets {stopped}; about {reached} reached services.",)


def _users(spans: tuple[AttackSpan, ...], user_figures: tuple[UserFigure, ...]) -> tuple[str, ...]:
    told = [
        f"{percent(share, None)} of the usual {item.name}"
        for item in user_figures
        if (share := item.of_normal(item.attacked)) is not None
    ]
    if not spans or not told:
        return ()
    connecting = any(span.kind in CONNECTING for span in spans)
    note = " (the attack's own connections count among them)" if connecting else ""
    return (f"Under attack users made {' and '.join(told)}{note}.",)


def _rules(spans: tuple[AttackSpan, ...], effects: tuple[RuleEffect, ...]) -> tuple[str, ...]:
    worked = [effect for effect in effects if effect.dropped]
    if worked:
        best = max(worked, key=lambda effect: effect.packets)
        return (
            f"{plural(len(worked), 'rule')} dropped packets, most of all rule {best.rule.id} "
            f"({best.rule.summary}): {si(best.packets)}.",
        )
    if counting := [effect for effect in effects if effect.rule.counts_only]:
        would = si(sum(effect.packets for effect in counting))
        return (f"{plural(len(counting), 'rule')} only counted, and would have dropped {would} packets.",)
    if effects:
        was = "was" if len(effects) == 1 else "were"
        return (f"{plural(len(effects), 'rule')} {was} installed, and matched nothing.",)
    return ("No rule was installed.",) if spans else ()


def state_at_end(
    protection: Protection,
    effects: tuple[RuleEffect, ...],
    spans: tuple[AttackSpan, ...],
    *,
    is_judged: bool = True,
) -> str:
    """Say whether the attack was over, and what was still in place."""
    left = [effect for effect in effects if effect.ended is None]
    rules = f"{plural(len(left), 'rule')} still active" if left else "no rule of fwtop active"
    if protection.attacked_at_end:
        if protection.at_end is None:
            return f"The attack was still on when the recording ended; {rules}."
        share = percent(protection.at_end, None)
        verdict = "and stopped" if protection.at_end >= STOPPED else "and not stopped"
        return (
            f"The attack was still on when the recording ended, {verdict}: about {share} of its packets were "
            f"dropped; {rules}."
        )
    if not is_judged:
        return f"It is not known whether there was an attack at the end: judging failed; {rules}."
    return f"The attack was over; {rules}." if spans else f"Calm; {rules}."


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
        yield f"{_rules_named(trial)} on trial and will be removed: 'fwtop keep {trial[0]}' confirms."
    kept = [item for item in active if item.state is State.CONFIRMED]
    if kept:
        first = min(kept, key=lambda item: item.expires or float("inf"))
        one = " the first" if len(kept) > 1 else ""
        when = f"{',' if one else ''}{one} at {clock(first.expires)} UTC" if first.expires else ""
        shown = _rules_named([item.rule.id for item in kept])
        yield f"{shown} still active and will expire{when}: 'fwtop status' shows them."
    worked = {effect.rule.id for effect in effects if effect.packets}
    idle = [item.rule.id for item in kept if item.rule.id not in worked]
    if idle:
        yield f"{_rules_named(idle)} without a single match: 'fwtop undo {' '.join(idle[:10])}' removes them."
    broken = [item for item in active if not item.acting]
    for item in broken[:2]:
        yield f"Rule {item.rule.id} does not act ({item.not_acting}): 'fwtop repair {item.rule.id}'."
    if any(effect.rule.predicted_guess for effect in effects):
        yield (
            "Harm was predicted without a record of normal traffic (marked ?): "
            "let 'fwtop record' run in calm time, so that predictions are measured."
        )


def _rules_named(ids: Sequence[str]) -> str:
    shown = ", ".join(ids[:6]) + (f" and {len(ids) - 6} more" if len(ids) > 6 else "")
    return f"Rule {shown} is" if len(ids) == 1 else f"Rules {shown} are"


def _source_steps(spans: Sequence[AttackSpan]) -> Iterator[str]:
    forged = [span for span in spans if span.spoofed]
    real = [
        span for span in spans if not (span.spoofed or span.uncertain) and span.detail.tables.get("address")
    ]
    both = {span.title for span in forged} & {span.title for span in real}
    if real:
        yield (
            f"Report the senders of {_titles(real, both)} to their networks: "
            "'fwtop report --bundle' writes the mails."
        )
    if forged:
        yield (
            f"Do not complain to the owners of the addresses in {_titles(forged, both)}: "
            "they look forged. Their way in can only be found by providers."
        )


def _titles(spans: Sequence[AttackSpan], ambiguous: Container[str]) -> str:
    """Name each once, with its time if attacks of another sort have the same title."""
    named = (f"{one.title} of {clock(one.began)}" if one.title in ambiguous else one.title for one in spans)
    return ", ".join(dict.fromkeys(named))


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
