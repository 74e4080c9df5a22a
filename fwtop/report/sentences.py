"""What a report's first page says in words: headline, summary, and the state at the end."""

from __future__ import annotations

from fwtop.model.traffic.flow import FULL_TABLE, STOPPED
from fwtop.model.traffic.session import SessionInfo
from fwtop.render.numbers import duration_words, percent, plural
from fwtop.report.facts.effects import RuleEffect
from fwtop.report.facts.periods import Protection, Sums
from fwtop.report.facts.spans import AttackSpan
from fwtop.report.facts.users import CONNECTING, UserFigure
from fwtop.report.wording import about, clock, day_and_time, si


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
    worked = [effect for effect in effects if effect.packets]
    if worked:
        best = max(worked, key=lambda effect: effect.packets)
        return (
            f"{plural(len(worked), 'rule')} dropped packets, most of all rule {best.rule.id} "
            f"({best.rule.summary}): {si(best.packets)}.",
        )
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
