"""The panels: views, columns and the items each takes from a snapshot."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fwtop.model.rule import RuleStatus
from fwtop.model.traffic.session import EventKind, PastAttack, is_lost
from fwtop.model.traffic.snapshot import LedgerRow, Snapshot
from fwtop.render.numbers import utc
from fwtop.render.observation import rfc3339
from fwtop.render.rows.defence import LEDGER
from fwtop.render.rows.field import RowType
from fwtop.render.rows.service import SERVICE
from fwtop.rules.words import describe
from fwtop.ui.format import percent
from fwtop.ui.lists.attacks import ATTACK_VIEW, calm_words
from fwtop.ui.lists.path import PATH_VIEW
from fwtop.ui.lists.proposals import PROPOSAL_VIEW, against_words
from fwtop.ui.lists.rows import LogEntry
from fwtop.ui.lists.rules import ALL_RULES_VIEW, MACHINE_RULES_VIEW, RULES_VIEW
from fwtop.ui.lists.stages import UNEXPLAINED, conntrack_figures, share_of_all, shown_ledger, stages_of
from fwtop.ui.lists.table import CellContext, Column, View, columns_of, with_columns
from fwtop.ui.lists.traffic import (
    PAYLOAD_VIEW,
    PORT_VIEW,
    TRAFFIC_VIEWS,
    TREND_LISTS,
    first_view,
    traffic_items,
)
from fwtop.ui.style import BAD, DIM, ELSEWHERE, GOOD, TEXT, WARN, Line, Span, facts

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def ago(seconds: float) -> str:
    """Write an age in one unit, so that it seldom changes: 3 m ago."""
    whole = int(seconds)
    if whole < 1:
        return "now"
    size, unit = next((size, unit) for size, unit in _UNITS if whole >= size)
    return f"{whole // size} {unit} ago"


def _text(item: LogEntry, *_: object) -> Line:
    rule = item.kind.startswith("rule") and item.subject.isalnum()
    line: Line = [(f"{item.subject}: " if rule else "", TEXT), (item.text, TEXT)]
    return [*line, (f"  ×{item.count}", DIM)] if item.count > 1 else line


def entry_details(item: LogEntry, now: float) -> tuple[str, list[Line]]:
    """Return the title of an entry's details and its own lines."""
    times = f"{item.count:,}, the last one at this time" if item.count > 1 else ""
    at = f"{rfc3339(item.at)}, {ago(now - item.at)}"
    return item.words, facts(("at", at), ("event", item.words), ("times", times), ("what", item.text))


LOG_VIEW = View(
    "",
    (
        Column("time", 9, lambda item, *_: [(utc(item.at), DIM)]),
        Column("", 10, lambda item, context, _: [(f"({ago(context.seen - item.at)})", DIM)], keep=9),
        Column("event", 16, lambda item, *_: [(item.words, item.style)], keep=2),
        Column("", 24, _text, grow=1, whole=True),
    ),
    RowType(
        key=lambda item: str(item.number), search=lambda item: f"{item.words} {item.subject} {item.text}"
    ),
    newest_last=True,
    empty="nothing has happened yet",
)


def past_attacks(log: Sequence[LogEntry], earlier: Sequence[PastAttack]) -> list[LogEntry]:
    """Return the attacks that are over, those of earlier sessions too, the latest first."""
    own = [entry for entry in reversed(log) if entry.kind == EventKind.ATTACK_ENDED]
    begins = min((_began(entry, log) for entry in own), default=math.inf)  # a recorder beside stores the same
    return [*own, *(_stored(one) for one in earlier if one.ended < begins)]


def _began(item: LogEntry, log: Sequence[LogEntry]) -> float:
    """Return when its attack began; its end where the log no longer has it, as under a list that is held."""
    return min((entry.at for entry in log if entry.incident == item.incident), default=item.at)


def _stored(one: PastAttack) -> LogEntry:
    stopped = [("your firewall", ELSEWHERE)] if one.elsewhere else [("nothing was done", DIM)]
    done = [_rule_names(one.rules)] if one.rules else stopped
    kind = EventKind.ATTACK_ENDED
    return LogEntry(-int(one.ended), one.ended, kind, "", one.kind, one.text, TEXT, details=(done,))


def _done(item: LogEntry, context: CellContext, _: int) -> Line:
    """Write which rules were installed while an attack lasted."""
    if item.number < 0:
        return item.details[0]
    since = _began(item, context.log)
    applied = (entry for entry in context.log if entry.kind == EventKind.RULE_APPLIED)
    rules = sorted({entry.subject for entry in applied if since <= entry.at <= item.at})
    return [_rule_names(rules)] if rules else [("nothing was done", DIM)]


def _rule_names(rules: Sequence[str]) -> Span:
    return f"rule{'s' if len(rules) > 1 else ''} {', '.join(rules)}", GOOD


PAST_VIEW = View(
    "",
    (
        Column("", 24, lambda item, *_: [(item.text, TEXT)], grow=1),
        Column("done", 16, _done, keep=5),
        Column("ended", 9, lambda item, context, _: [(ago(context.seen - item.at), DIM)], right=True),
    ),
    LOG_VIEW.row,
)
SERVICE_VIEW = View("", columns_of(SERVICE, {}), SERVICE, empty="")


CONNTRACK_VIEW = View(
    "",
    (
        Column("", 13, lambda item, *_: [(item.name, DIM)]),
        Column("", 16, lambda item, *_: [(item.value, BAD if item.alarm else TEXT)], right=True),
        Column("", 24, lambda item, *_: [(item.meaning, DIM)], grow=1, keep=10),
    ),
    RowType(key=lambda item: item.name, search=lambda item: f"{item.name} {item.meaning}"),
    header=False,
    empty="connection tracking is not in use",
)


def _layer(item: LedgerRow, *_: object) -> Line:
    return [(item.layer, WARN if item.layer == UNEXPLAINED else GOOD if item.rule else TEXT)]


def _reason(item: LedgerRow, *_: object) -> Line:
    rule: Line = [(f"rule {item.rule}  ", GOOD)] if item.rule else []
    return [*rule, (item.reason, BAD if is_lost(item) else DIM)]


def _mostly(item: LedgerRow, *_: object) -> Line:
    return [] if item.mostly is None else [(f"{percent(item.mostly_share)} {describe(item.mostly)}", TEXT)]


LEDGER_VIEW = View(
    "",
    columns_of(
        LEDGER,
        {
            "layer": _layer,
            "reason": _reason,
            "mostly": _mostly,
            "share": lambda item, context, _: [(percent(share_of_all(item, context.snapshot)), DIM)],
        },
    ),
    LEDGER,
    empty="nothing was dropped",
)


class PanelSpec(Struct, frozen=True):
    """A panel: `items` lists what a view of it shows."""

    name: str
    title: str
    views: tuple[View, ...]
    items: Callable[[Snapshot, CellContext, str], Sequence[Any]]
    counted: bool = False  # the title says how many there are
    inline: bool = False  # the title stands in the line of the column heads
    fitted: bool = False  # its place is as high as its rows are
    title_of: Callable[[CellContext], str] | None = None  # a title that changes
    first: Callable[[Snapshot], str] | None = None  # the view to show until the operator chooses one


def _rules(snapshot: Snapshot, *_: object) -> Sequence[RuleStatus]:
    return snapshot.mitigations


def _traffic(snapshot: Snapshot, _: CellContext, view: str) -> Sequence[Any]:
    return traffic_items(snapshot, view)


PANELS = (
    PanelSpec(
        "attacks",
        "attack",
        (ATTACK_VIEW,),
        lambda shot, context, _: context.proposals.attacks(shot.judgement.attacks),
        inline=True,
        fitted=True,
        title_of=lambda context: "attack" if context.attacks else calm_words(context.snapshot),
    ),
    PanelSpec(
        "proposals",
        "proposals",
        (PROPOSAL_VIEW,),
        lambda _, context, __: context.proposals.rows(),
        inline=True,
        fitted=True,
        title_of=against_words,
    ),
    PanelSpec("rules", "rule", (RULES_VIEW,), _rules, inline=True, fitted=True),
    PanelSpec(
        "services",
        "service",
        (SERVICE_VIEW,),
        lambda shot, *_: shot.judgement.services,
        inline=True,
        fitted=True,
        title_of=lambda context: (
            "service" if context.snapshot.judgement.services else "no service listens here"
        ),
    ),
    PanelSpec(
        "past",
        "last attacks",
        (PAST_VIEW,),
        lambda _, context, __: past_attacks(context.log, context.earlier),
        inline=True,
        fitted=True,
        title_of=lambda context: (
            "last attacks" if past_attacks(context.log, context.earlier) else "no attack in this session"
        ),
    ),
    PanelSpec(
        "sources",
        "Traffic",
        TRAFFIC_VIEWS,
        _traffic,
        title_of=lambda context: f"Traffic {context.part}".rstrip(),
        first=first_view,
    ),
    PanelSpec("ports", "Ports", (PORT_VIEW,), _traffic),
    PanelSpec("payloads", "Payloads", (PAYLOAD_VIEW,), _traffic),
    PanelSpec("ledger", "Drops", (LEDGER_VIEW,), lambda shot, *_: shown_ledger(shot)),
    PanelSpec("path", "Path of all packets", (PATH_VIEW,), lambda shot, *_: stages_of(shot)),
    PanelSpec("conntrack", "Conntrack", (CONNTRACK_VIEW,), lambda shot, *_: conntrack_figures(shot)),
    PanelSpec("log", "Log", (LOG_VIEW,), lambda _, context, __: context.log),
    PanelSpec(
        "machine_rules", "All on this machine", (MACHINE_RULES_VIEW,), lambda _, context, __: context.machine
    ),
    PanelSpec("all_rules", "Rules", (ALL_RULES_VIEW,), _rules, counted=True, fitted=True),
    *(
        PanelSpec(f"trend_{kind}", title, views, items, title_of=title_of)
        for kind, title, views, items, title_of in TREND_LISTS
    ),
)
PANEL = {spec.name: spec for spec in PANELS}


def with_chosen(spec: PanelSpec, columns: Mapping[str, tuple[str, ...]]) -> PanelSpec:
    """Return a panel with the columns that the operator chose for it."""
    names = columns.get(spec.name)
    if names is None:
        return spec
    return replace(spec, views=tuple(with_columns(view, names) for view in spec.views))


def column_names(spec: PanelSpec) -> tuple[str, ...]:
    """Return the columns of a list that can be chosen."""
    columns = [column for view in spec.views if view.header for column in view.columns]
    return tuple(dict.fromkeys(column.name for column in columns if column.name))
