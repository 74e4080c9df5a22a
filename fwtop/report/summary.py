"""What a report says about a session, in any format."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from fwtop.dissect.client import Dissect
from fwtop.model.traffic.session import (
    Event,
    EventKind,
    SessionInfo,
    SessionRecord,
    Tick,
    Trends,
    Unstored,
    unstored,
)
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.render.numbers import duration, plural
from fwtop.report.attacks import AttackSpan, attack_spans
from fwtop.report.effects import RuleEffect, UserFigure, measure_users, rule_effects
from fwtop.report.sums import (
    Protection,
    Sums,
    Tops,
    attack_packets,
    protection_of,
    sum_tables,
    sums_of,
    timed,
)
from fwtop.report.wording import clock, headline, next_steps, state_at_end, summary_sentences
from fwtop.rules.costs import Costs

_MAX_SNAPSHOTS = 600
_MAX_EVENTS = 300
_MOST_GAPS = 10
_SHOWN_PROPOSALS = 3  # of those proposed at once


class Digest(Struct, frozen=True):
    """Everything that a report shows."""

    info: SessionInfo
    headline: str
    summary: tuple[str, ...]
    state: str  # at the end, in one sentence
    next_steps: tuple[str, ...]
    protection: Protection
    user_figures: tuple[UserFigure, ...]
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
    unstored: tuple[Unstored, ...] = ()  # times that are missing
    costs: Costs | None = None  # of dropping, where they were measured on the machine that reports


def digest(
    record: SessionRecord,
    costs: Costs | None = None,
    trends: Trends | None = None,
    dissect: Dissect | None = None,
) -> Digest:
    """Condense a session; reads about 600 of its snapshots once. `dissect` decodes packets."""
    snapshots = list(record.snapshots(_MAX_SNAPSHOTS))
    ticks = timed(record.ticks, record.info.started)
    counted = attack_packets(record, snapshots)
    spans = attack_spans(record, snapshots, counted, dissect)
    user_figures = measure_users(ticks, spans)
    effects = rule_effects(record, snapshots, user_figures)
    protection = protection_of(record, counted)
    sums = sums_of(ticks)
    judging = [
        one.kind for one in record.events if one.kind in {EventKind.NOT_JUDGED, EventKind.JUDGED_AGAIN}
    ]
    events, left_out = _shown_events(record.events)
    missing = unstored(record.events)
    return Digest(
        info=record.info,
        headline=headline(record.info, spans, is_judged=not judging),
        summary=summary_sentences(sums, spans, effects, protection, user_figures),
        state=state_at_end(protection, effects, spans, is_judged=judging[-1:] != [EventKind.NOT_JUDGED]),
        next_steps=next_steps(record, protection, spans, effects, snapshots[-1] if snapshots else None),
        protection=protection,
        user_figures=user_figures,
        sums=sums,
        ticks=record.ticks,
        spans=spans,
        effects=effects,
        tops=sum_tables(snapshots),
        events=events,
        events_left_out=left_out,
        peak=max(snapshots, key=lambda item: item.tables.totals.pps, default=None),
        notes=_notes(record.info, sums, snapshots, missing),
        unstored=missing,
        trends=trends,
        costs=costs,
    )


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


def _notes(
    info: SessionInfo, sums: Sums, snapshots: list[Snapshot], missing: tuple[Unstored, ...]
) -> tuple[str, ...]:
    notes = []
    if info.state == "crashed":
        notes.append("The session did not end cleanly; everything up to its last snapshot is here.")
    if info.state == "running":
        notes.append("The session was still running when this was written.")
    if sums.lost:
        notes.append(
            f"{plural(sums.lost, 'sample')} did not fit the buffers: totals are exact, shares less precise."
        )
    for gap in missing[:_MOST_GAPS]:
        long = duration(gap.until - gap.since)
        notes.append(f"Nothing was stored from {clock(gap.since)} to {clock(gap.until)} ({long}): {gap.why}.")
    told = dict.fromkeys(note for snapshot in snapshots for note in snapshot.notes)
    return (*notes, *list(told)[:10])
