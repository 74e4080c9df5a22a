"""The list of attacks: what each targets, who drops it, and how much of it reaches services."""

from __future__ import annotations

from collections.abc import Sequence

from fwtop.model.traffic.counters import ConntrackSample
from fwtop.model.traffic.flow import FULL_TABLE, NOTICED, STOPPED, flow_of
from fwtop.model.traffic.snapshot import Attack, Snapshot
from fwtop.ui.drawing.format import about, duration, number, percent
from fwtop.ui.drawing.style import BAD, DIM, ELSEWHERE, GOOD, STRONG, TEXT, TITLE, WARN, Line, width_of
from fwtop.ui.lists.rows import Ordering
from fwtop.ui.lists.table import CellContext, Column, View
from fwtop.ui.state.figures import CONNTRACK_ALARM, FULL
from fwtop.ui.state.trends import TREND_CELLS


def reaching_share(attack: Attack) -> float:
    """Return the share of an attack's own packets that nothing drops, 0 to 1."""
    return min(max(1.0 - attack.mine_share - attack.other_share - attack.kernel_share, 0.0), 1.0)


def _letter(item: Attack, context: CellContext) -> Line:
    return [(context.scope.letter(item.key), TITLE)]


def _title(item: Attack, _: CellContext) -> Line:
    if item.kind == FULL_TABLE:
        return [("conntrack table", STRONG)]
    name = item.title.partition(" on port ")[0] if item.target else item.title
    line: Line = [(name, STRONG)]
    return [*line, (" spoofed", WARN)] if item.spoofed and item.sources != "spoofed" else line


def _pressure(context: CellContext) -> tuple[str, ...]:
    """Say what becomes of connections when the table is full, or how it moves; the long form first."""
    sample = context.snapshot.conntrack if context.snapshot is not None else None
    if sample is None or context.snapshot is None:
        return ()
    if sample.fill < FULL:
        return _movement(sample)
    lost = max(sample.early_drop, sample.drop) / max(context.snapshot.seconds, 1e-3)
    verb = "evicting" if sample.early_drop > sample.drop else "refusing"
    return (f"{verb} {number(lost)}/s" if lost else "full",)


def _movement(sample: ConntrackSample) -> tuple[str, ...]:
    """Say where the table's fill goes, and when it is there."""
    if sample.seconds_to_full is not None:
        return f"filling, full in {about(sample.seconds_to_full)}", "filling"
    if sample.growth_per_s >= 0:
        return ("not growing",)
    left = sample.seconds_to_fill(CONNTRACK_ALARM)
    return ("draining",) if left is None else (f"draining, normal in {about(left)}", "draining")


def _sources(item: Attack, _: CellContext) -> Line:
    return [] if item.kind == FULL_TABLE else [(item.sources or "–", DIM)]


def _target(item: Attack, context: CellContext, width: int) -> Line:
    sample = context.snapshot.conntrack if context.snapshot is not None else None
    if item.kind == FULL_TABLE and sample is not None:
        fill: Line = [(f"{number(sample.count)}/{number(sample.max)}", TEXT)]
        forms: list[Line] = [[*fill, (f" {words}", BAD)] for words in _pressure(context)]
        return next((form for form in forms if width_of(form) <= width), fill)
    protocol, _, port = item.target.partition(" from ")
    short = f"{protocol} {port}→" if port else item.target  # as signatures are written
    return [(short or "–", TEXT if short else DIM)]


def _pps(item: Attack, context: CellContext) -> Line:
    if item.kind == FULL_TABLE:
        return []
    total = context.snapshot.tables.totals.pps if context.snapshot is not None else item.pps
    return [(number(min(item.pps, total)), STRONG)]


def _megabits(item: Attack, _: CellContext) -> Line:
    if item.kind == FULL_TABLE:
        return []
    return [(number(item.bps / 1e6), TEXT)] if item.bps > 0 else [("–", DIM)]


def _known(context: CellContext) -> bool:
    """Whether it is known what became of the packets; a capture doesn't tell."""
    return context.snapshot is not None and flow_of(context.snapshot) is not None


def _mine(item: Attack, context: CellContext) -> Line:
    if item.kind == FULL_TABLE or not _known(context):
        return []
    return [(percent(item.mine_share), GOOD if item.mine_share >= NOTICED else DIM)]


def _other(item: Attack, context: CellContext) -> Line:
    if item.kind == FULL_TABLE or not _known(context):
        return []
    style = ELSEWHERE if item.other_share >= NOTICED else DIM
    return [(percent(item.other_share), style)]


def _reaches(item: Attack, context: CellContext) -> Line:
    if item.kind == FULL_TABLE:
        return _effect(item, context)
    if not _known(context):
        return [("unrecorded", DIM)]
    share = reaching_share(item)
    stopped: Line = [(" ✔", GOOD)] if item.mine_share + item.other_share >= STOPPED else []  # on purpose
    return [(percent(share), BAD)] if share >= NOTICED else [(percent(share), TEXT), *stopped]


def _effect(item: Attack, context: CellContext) -> Line:
    letter = context.scope.letter(item.effect_of)
    return [(f"effect of {letter}", WARN)] if letter else []


def _trend(item: Attack, context: CellContext) -> Line:
    if context.slow:
        return []
    return [(context.trends.spark(f"attack {item.key}", context.now, TREND_CELLS), DIM)]


ATTACK_VIEW = View(
    "",
    (
        Column("", 1, _letter),
        Column("attack", 17, _title, grow=3),
        Column("target", 9, lambda *_: [], grow=1, keep=8, drawn=_target, spills=True),
        Column("pps", 5, _pps, right=True, keep=1),
        Column("Mb/s", 5, _megabits, right=True, keep=7),
        Column("my rules", 8, _mine, right=True, keep=3),
        Column("other", 7, _other, right=True, keep=20),
        Column("reaches you", 11, _reaches, right=True, keep=2),
        Column("sources", 14, _sources, grow=1, keep=25),
        Column("age", 6, lambda item, ctx: [(duration(ctx.seen - item.since), DIM)], right=True, keep=22),
        Column("trend 5m", TREND_CELLS, _trend, right=True, keep=10),
    ),
    Ordering(
        key=lambda item: item.key,
        search=lambda item: f"{item.title} {item.target} {item.sources}",
        sorts=(
            ("pps", lambda item: item.pps),
            ("reaches you", lambda item: item.pps * reaching_share(item)),
        ),
    ),
    empty="",
)


def attack_rows(snapshot: Snapshot, _: str) -> Sequence[Attack]:
    """List the attacks, those with packets of their own first."""
    return sorted(snapshot.judgement.attacks, key=lambda attack: attack.kind == FULL_TABLE)


def calm_words(snapshot: Snapshot) -> str:
    """Say that nothing attacks, or that this isn't known, and at what rate packets arrive."""
    normal = snapshot.judgement.baseline
    known = "Not judged" if snapshot.judgement.not_judged else "No attack"
    words = f"{known}. {number(snapshot.tables.totals.pps)} pps arrive"
    return f"{words}; {normal}" if normal and snapshot.tables.totals.packets else f"{words}."
