"""What users felt, and what rules did: calm time against attack, prediction against measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from statistics import fmean, median

from msgspec import Struct
from msgspec.structs import replace

from fwtop.model.rule import ACTIVE_STATES, Match, Rule, RuleStatus
from fwtop.model.traffic.session import EventKind, SessionRecord, Tick
from fwtop.model.traffic.snapshot import Proposal, Snapshot
from fwtop.render.numbers import si
from fwtop.report.attacks import AttackSpan
from fwtop.report.sums import TimedTick, timed
from fwtop.rules.words import with_mode

_BEFORE_SECONDS = 10.0
_AFTER_SECONDS = 20.0
_MAX_WINDOW_SECONDS = 10.0
_COMPARED_PREFIXES = 256  # of a long rule the store keeps so many with a proposal
_ACTIVE = {state.value for state in ACTIVE_STATES}
_ENDINGS = {EventKind.RULE_UNDONE: "removed", EventKind.RULE_EXPIRED: "expired"}


class Change(Struct, frozen=True):
    """One figure of the machine before a rule and after it; `unit` is "pps", "/s" or "share"."""

    name: str
    unit: str
    before: float
    after: float


class RuleEffect(Struct, frozen=True):
    """One rule's life within the record."""

    rule: Rule
    applied: float | None  # Unix seconds; None: nobody saw it become active
    confirmed: float | None
    ended: float | None
    ending: str  # "", "removed", "expired"
    packets: int
    bytes: int
    actual_pps: float  # median over the time in which it matched anything
    changes: tuple[Change, ...]
    commands: tuple[str, ...]  # as the proposal that it came from showed them, where known
    sources_total: int = 0  # length of its list of sources, of which the record may hold only the first
    users: tuple[tuple[str, float], ...] = ()  # while it was active, as shares of normal
    harm: str = ""  # what clients lost to it, if that is sure
    status: RuleStatus | None = None  # of one that only counted at last: whom it would have hit

    @property
    def dropped(self) -> int:
        """What it dropped: nothing if it only counted at last."""
        return 0 if self.rule.counts_only else self.packets

    @property
    def done(self) -> str:
        """What it did, as the end of a sentence that begins with the rule."""
        if not self.rule.counts_only:
            return f"it dropped {si(self.packets)} packets"
        would = f"it only counted: it would have dropped {si(self.packets)} packets"
        return "; ".join(filter(None, (would, self.status.whom if self.status is not None else "")))

    @property
    def left_out(self) -> str:
        """Say how many of its sources the record does not hold; "" if it holds all."""
        held = len(self.rule.match.sources)
        return f"only {held:,} of its {self.sources_total:,} sources" if self.sources_total > held else ""


def rule_effects(
    record: SessionRecord, snapshots: Iterable[Snapshot], user_figures: Sequence[UserFigure] = ()
) -> tuple[RuleEffect, ...]:
    """Measure all rules of a session, in order of installation; `user_figures` say what is normal."""
    proposals: list[Proposal] = []
    window, last = 0.0, dict[str, RuleStatus]()
    for snapshot in snapshots:
        last |= {status.rule.id: status for status in snapshot.mitigations}
        window = max(window, min(snapshot.seconds, _MAX_WINDOW_SECONDS))
        proposals += [item for item in snapshot.judgement.proposals if item not in proposals[-20:]]
    effects = [
        _as_last(_effect(record, rule, window, proposals, user_figures), last.get(rule.id))
        for rule in record.rules
    ]
    return tuple(sorted(effects, key=lambda effect: effect.applied or effect.rule.created))


def _as_last(effect: RuleEffect, status: RuleStatus | None) -> RuleEffect:
    """Take the mode that a rule had at last, with what it counted since then."""
    if status is None:
        return effect
    effect = replace(
        effect, rule=with_mode(effect.rule, status.rule.mode), sources_total=status.sources_total
    )
    if not status.rule.counts_only:
        return effect
    packets = min(effect.packets, max(status.packets - status.packets_before, 0))
    return replace(effect, packets=packets, status=status)


def _effect(
    record: SessionRecord,
    rule: Rule,
    window: float,
    proposals: list[Proposal],
    user_figures: Sequence[UserFigure],
) -> RuleEffect:
    events = [event for event in record.events if event.subject == rule.id]
    points = [point for point in record.rule_ticks if point.rule_id == rule.id]
    when = {event.kind: event.at for event in reversed(events)}  # the first of each kind
    applied = when.get(EventKind.RULE_APPLIED)
    harm = next((event.text for event in events if event.kind is EventKind.RULE_HARMS), "")
    end = next((event for event in reversed(events) if event.kind in _ENDINGS), None)
    was_there = rule.created < record.info.started  # what it had counted by then is no part of the record
    packets, size = (
        sum(max(now - then, 0) for then, now in pairwise([counts[0] if was_there else 0, *counts]))
        for counts in ([point.packets for point in points] or [0], [point.bytes for point in points] or [0])
    )
    rates = [point.pps for point in points if point.state in _ACTIVE and point.pps > 0]
    since, until = (applied or 0.0) + window, end.at if end else float("inf")
    return RuleEffect(
        rule=rule,
        applied=applied,
        confirmed=when.get(EventKind.RULE_CONFIRMED),
        ended=end.at if end else None,
        ending=_ENDINGS[end.kind] if end else "",
        packets=packets,
        bytes=size,
        actual_pps=median(rates) if rates else 0.0,
        changes=_changes(record.ticks, applied, since, until) if applied is not None else (),
        commands=_commands(rule, proposals),
        users=_users(record, user_figures, since, until) if applied is not None else (),
        harm=harm,
    )


def _users(
    record: SessionRecord, user_figures: Sequence[UserFigure], since: float, until: float
) -> tuple[tuple[str, float], ...]:
    """Measure the rule's harm where it shows: what users did meanwhile, against what is normal."""
    inside = [one for one in timed(record.ticks, record.info.started) if since <= one[0].at < until]
    return tuple(
        (item.name, share)
        for item in user_figures
        if (share := item.of_normal(mean_of(inside, dict(FIGURES)[item.name]))) is not None
    )


def _changes(ticks: tuple[Tick, ...], applied: float, first: float, until: float) -> tuple[Change, ...]:
    """Compare the seconds before with those after, leaving out the windows that hold both."""
    last = min(first + _AFTER_SECONDS, until)
    before = [tick for tick in ticks if applied - _BEFORE_SECONDS <= tick.at < applied]
    after = [tick for tick in ticks if first <= tick.at < last]
    figures: tuple[tuple[str, str, Callable[[Tick], float | None]], ...] = (
        ("arrived", "pps", lambda tick: tick.pps),
        ("dropped", "pps", lambda tick: tick.dropped_pps),
        ("delivered", "pps", lambda tick: tick.accepted_pps),
        ("handshakes that clients finished", "/s", lambda tick: tick.tcp_handshakes_per_s),
        ("segments that clients acknowledged", "pps", lambda tick: tick.tcp_acknowledged_per_s),
        ("connection tracking", "share", lambda tick: tick.conntrack_fill),
        ("CPU time in softirq", "share", lambda tick: tick.softirq_share),
    )
    changes = []
    for name, unit, take in figures:
        old = [value for tick in before if (value := take(tick)) is not None]
        new = [value for tick in after if (value := take(tick)) is not None]
        if old and new:
            changes.append(Change(name, unit, fmean(old), fmean(new)))
    return tuple(changes)


def _commands(rule: Rule, proposals: list[Proposal]) -> tuple[str, ...]:
    wanted = rule.kind, _beginning(rule.match)
    for proposal in proposals:
        if proposal.rule is not None and (proposal.rule.kind, _beginning(proposal.rule.match)) == wanted:
            return proposal.commands
    return ()


def _beginning(match: Match) -> Match:
    cut = _COMPARED_PREFIXES
    return replace(match, sources=tuple(match.sources[:cut]), destinations=tuple(match.destinations[:cut]))


_MARGIN_SECONDS = 5.0  # around an attack: windows that hold both
_LEAST_SECONDS = 3.0  # of calm time that tell what is normal
_WORST_SECONDS = 10.0
# Their own connections finish handshakes too, and look like users'
CONNECTING = frozenset(
    {"http_flood", "tls_flood", "slow_headers", "slow_body", "slow_read", "idle_connections"}
)


class UserFigure(Struct, frozen=True):
    """One figure of users, a second; None where there was no such time in the record."""

    name: str
    normal: float | None  # median of the calm time before the first attack, else of any
    attacked: float | None  # mean
    worst: float | None  # lowest mean of 10 s under attack
    worst_at: float | None
    at_end: float | None  # mean of the last 10 s

    def of_normal(self, value: float | None) -> float | None:
        """Return a value as a share of what is normal; None if either isn't known."""
        return value / self.normal if value is not None and self.normal else None


FIGURES: tuple[tuple[str, Callable[[Tick], float | None]], ...] = (
    ("TCP handshakes", lambda tick: tick.tcp_handshakes_per_s),
    ("acknowledged segments", lambda tick: tick.tcp_acknowledged_per_s),
)


def measure_users(ticks: Sequence[TimedTick], spans: Sequence[AttackSpan]) -> tuple[UserFigure, ...]:
    """Measure both figures; empty if the session has neither."""
    found = (_user_figure(name, take, ticks, spans) for name, take in FIGURES)
    return tuple(item for item in found if item is not None)


def mean_of(ticks: Iterable[TimedTick], take: Callable[[Tick], float | None]) -> float | None:
    """Return the mean of one figure over time, None if it is not known."""
    return _mean((tick.at, seconds, value) for tick, seconds in ticks if (value := take(tick)) is not None)


def _user_figure(
    name: str, take: Callable[[Tick], float | None], ticks: Sequence[TimedTick], spans: Sequence[AttackSpan]
) -> UserFigure | None:
    known = [(tick.at, seconds, value) for tick, seconds in ticks if (value := take(tick)) is not None]
    if not known:
        return None
    attacked = [row for row in known if any(span.began < row[0] <= span.until for span in spans)]
    worst, worst_at = _worst(attacked)
    end = known[-1][0]
    return UserFigure(
        name,
        _normal(known, spans),
        _mean(attacked),
        worst,
        worst_at,
        _mean([row for row in known if row[0] > end - _WORST_SECONDS]),
    )


_Rows = list[tuple[float, float, float]]  # time, seconds, value


def _normal(rows: _Rows, spans: Sequence[AttackSpan]) -> float | None:
    calm = [
        row
        for row in rows
        if not any(span.began - _MARGIN_SECONDS < row[0] <= span.until + _MARGIN_SECONDS for span in spans)
    ]
    first = min((span.began for span in spans), default=float("inf"))
    before = [row for row in calm if row[0] < first]
    for chosen in (before, calm):
        if sum(row[1] for row in chosen) >= _LEAST_SECONDS:
            return median(row[2] for row in chosen)
    return None


def _mean(rows: Iterable[tuple[float, float, float]]) -> float | None:
    whole = total = 0.0
    for _, seconds, value in rows:
        whole, total = whole + seconds, total + seconds * value
    return total / whole if whole > 0 else None


def _worst(rows: _Rows) -> tuple[float | None, float | None]:
    """Return the lowest mean over ten seconds, and when it ended."""
    groups: dict[int, _Rows] = {}
    for row in rows:
        groups.setdefault(int(row[0] // _WORST_SECONDS), []).append(row)
    whole = [group for group in groups.values() if sum(row[1] for row in group) >= _WORST_SECONDS / 2]
    means = [(mean, group[-1][0]) for group in whole or [rows] if (mean := _mean(group)) is not None]
    return min(means) if means else (None, None)
