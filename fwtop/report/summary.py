"""What a report says about a session, in any format."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from fwtop.model.costs import Costs
from fwtop.model.traffic.history import Trends
from fwtop.model.traffic.session import Event, EventKind, SessionInfo, SessionRecord, Tick
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.render.numbers import duration_words, percent
from fwtop.report.effects import RuleEffect, rule_effects
from fwtop.report.spans import AttackSpan, attack_spans
from fwtop.report.tops import Tops, sum_tables
from fwtop.report.wording import plural, si

_MAX_SNAPSHOTS = 600
_MAX_EVENTS = 300
_SHOWN_PROPOSALS = 3  # of those proposed at once
_MAX_TICK_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Sums:
    """Totals and peaks of the session; packets are rates times their duration."""

    packets: float
    bytes: float
    dropped: float
    accepted: float
    peak_pps: float
    peak_bps: float
    peak_at: float
    lost: int
    one_in_max: float
    conntrack_peak: int | None
    conntrack_max: int | None
    conntrack_new_peak: float
    softirq_peak: float | None


@dataclass(frozen=True, slots=True)
class Digest:
    """Everything that a report shows."""

    info: SessionInfo
    headline: str
    summary: tuple[str, ...]
    sums: Sums
    ticks: tuple[Tick, ...]
    spans: tuple[AttackSpan, ...]
    effects: tuple[RuleEffect, ...]
    tops: Tops
    events: tuple[Event, ...]
    events_left_out: int
    peak: Snapshot | None
    notes: tuple[str, ...]
    trends: Trends | None = None  # of the days up to its end, where there is a history
    costs: Costs | None = None  # of dropping, where they were measured on the machine that reports


def digest(record: SessionRecord, costs: Costs | None = None, trends: Trends | None = None) -> Digest:
    """Condense a session; reads about 600 of its snapshots once."""
    snapshots = list(record.snapshots(_MAX_SNAPSHOTS))
    spans, effects = attack_spans(record, snapshots), rule_effects(record, snapshots)
    sums = _sums(record.ticks, record.info.started)
    events, left_out = _shown_events(record.events)
    return Digest(
        info=record.info,
        headline=_headline(record.info, spans),
        summary=_summary(sums, spans, effects),
        sums=sums,
        ticks=record.ticks,
        spans=spans,
        effects=effects,
        tops=sum_tables(snapshots),
        events=events,
        events_left_out=left_out,
        peak=max(snapshots, key=lambda item: item.tables.totals.pps, default=None),
        notes=_notes(record.info, sums, snapshots),
        trends=trends,
        costs=costs,
    )


def _sums(ticks: tuple[Tick, ...], started: float) -> Sums:
    # A tick's rates are those of the time before it.
    times = [started, *(tick.at for tick in ticks)]
    gaps = [min(max(after - before, 0.0), _MAX_TICK_SECONDS) for before, after in pairwise(times)]
    timed = [
        (tick, gap if tick.seconds is None else tick.seconds) for tick, gap in zip(ticks, gaps, strict=True)
    ]
    peak = max(ticks, key=_peak, default=None)
    tables = [tick for tick in ticks if tick.conntrack is not None]
    fullest = max(tables, key=lambda tick: tick.conntrack or 0, default=None)
    softirq = [tick.softirq_share for tick in ticks if tick.softirq_share is not None]
    return Sums(
        packets=sum(tick.pps * gap for tick, gap in timed),
        bytes=sum(tick.bps / 8 * gap for tick, gap in timed),
        dropped=sum(tick.dropped_pps * gap for tick, gap in timed),
        accepted=sum(tick.accepted_pps * gap for tick, gap in timed),
        peak_pps=_peak(peak) if peak else 0.0,
        peak_bps=max((max(tick.bps, tick.peak_bps) for tick in ticks), default=0.0),
        peak_at=peak.at if peak else 0.0,
        lost=round(sum(tick.lost_per_s * gap for tick, gap in timed)),
        one_in_max=max((tick.one_in for tick in ticks), default=1.0),
        conntrack_peak=fullest.conntrack if fullest else None,
        conntrack_max=fullest.conntrack_max if fullest else None,
        conntrack_new_peak=max((tick.conntrack_new_per_s or 0.0 for tick in tables), default=0.0),
        softirq_peak=max(softirq, default=None),
    )


def _peak(tick: Tick) -> float:
    return max(tick.pps, tick.peak_pps)


def _headline(info: SessionInfo, spans: tuple[AttackSpan, ...]) -> str:
    if not spans:
        return f"No attack in {duration_words(info.seconds)}"
    titles = list(dict.fromkeys(span.title for span in sorted(spans, key=lambda span: -span.peak_pps)))
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


def _summary(sums: Sums, spans: tuple[AttackSpan, ...], effects: tuple[RuleEffect, ...]) -> tuple[str, ...]:
    sentences = [
        f"At the peak {si(sums.peak_pps)} packets and {si(sums.peak_bps, 'bit')} arrived a second; "
        f"{percent(sums.dropped / sums.packets if sums.packets else 0.0, None)} of all packets were dropped."
    ]
    if spans and any(span.ended is None for span in spans):
        sentences.append("The attack was still on when the recording ended.")
    worked = [effect for effect in effects if effect.packets]
    if worked:
        best = max(worked, key=lambda effect: effect.actual_pps)
        sentences.append(
            f"{plural(len(worked), 'rule')} dropped packets, most of all rule {best.rule.id} "
            f"({best.rule.summary}): {si(best.actual_pps)} packets a second."
        )
    elif effects:
        sentences.append(
            f"{plural(len(effects), 'rule')} {'was' if len(effects) == 1 else 'were'} installed, "
            "and matched nothing."
        )
    elif spans:
        sentences.append("No rule was installed.")
    return tuple(sentences)


def _shown_events(events: tuple[Event, ...]) -> tuple[tuple[Event, ...], int]:
    """Fold each run of proposals into one event and keep the last events; return how many are left out."""
    folded: list[Event] = []
    run: list[Event] = []
    for event in (*events, None):
        if event is not None and event.kind is EventKind.RULE_PROPOSED:
            run.append(event)
            continue
        if run:
            folded.append(_folded(run))
            run = []
        if event is not None:
            folded.append(event)
    if len(folded) <= _MAX_EVENTS:
        return tuple(folded), 0
    important = [event for event in folded if event.kind is not EventKind.RULE_PROPOSED][-_MAX_EVENTS:]
    return tuple(important), len(folded) - len(important)


def _folded(run: list[Event]) -> Event:
    texts = list(dict.fromkeys(event.text for event in run))
    if len(texts) == 1:
        return run[0]
    shown = "; ".join(texts[:_SHOWN_PROPOSALS])
    more = f"; and {len(texts) - _SHOWN_PROPOSALS} more" if len(texts) > _SHOWN_PROPOSALS else ""
    return replace(run[0], subject="", text=f"{len(texts)} rules: {shown}{more}")


def _notes(info: SessionInfo, sums: Sums, snapshots: list[Snapshot]) -> tuple[str, ...]:
    notes = []
    if info.state == "crashed":
        notes.append("The session did not end cleanly; everything up to its last snapshot is here.")
    if info.state == "running":
        notes.append("The session was still running when this was written.")
    if sums.lost:
        notes.append(
            f"{plural(sums.lost, 'sample')} did not fit the buffers: totals are exact, shares less precise."
        )
    told = dict.fromkeys(note for snapshot in snapshots for note in snapshot.notes)
    return (*notes, *list(told)[:10])
