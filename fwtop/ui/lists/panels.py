"""The panels: views, columns and the items each takes from a snapshot."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fwtop.model.rule import ACTIVE_STATES, RuleStatus, State
from fwtop.model.traffic.snapshot import LedgerRow, Proposal, Snapshot
from fwtop.render.rows.field import RowType
from fwtop.render.rows.ledger import LEDGER
from fwtop.render.rows.proposal import PROPOSAL
from fwtop.render.rows.rule import RULE
from fwtop.rules.kinds import drops_nothing
from fwtop.rules.overlap import covering_rule
from fwtop.rules.words import describe
from fwtop.ui.drawing.format import duration, gauge, number, percent
from fwtop.ui.drawing.style import BAD, DIM, GOOD, STRONG, TEXT, TITLE, WARN, Line
from fwtop.ui.lists.attacks import ATTACK_VIEW, attack_rows, calm_words
from fwtop.ui.lists.log_view import LOG_VIEW
from fwtop.ui.lists.machine_rules import MACHINE_RULES_VIEW
from fwtop.ui.lists.path import PATH_VIEW
from fwtop.ui.lists.table import Cell, CellContext, Column, View, columns_of, trend_cell, with_columns
from fwtop.ui.lists.traffic import PAYLOAD_VIEW, PORT_VIEW, TRAFFIC_VIEWS, first_view, traffic_items
from fwtop.ui.lists.trends_view import TREND_LISTS
from fwtop.ui.state.path import (
    CONNTRACK_ALARM,
    UNEXPLAINED,
    Figure,
    conntrack_figures,
    share_of_all,
    shown_ledger,
    stages_of,
)

HARM_LIMIT = 0.01  # collateral from which a dialog preselects Cancel
NO_BASELINE = "No baseline yet: client impact is estimated"


def _figure(item: Figure, *_: object) -> Line:
    return [(item.value, BAD if item.alarm else TEXT)]


CONNTRACK_VIEW = View(
    "",
    (
        Column("", 13, lambda item, *_: [(item.name, DIM)]),
        Column("", 16, _figure, right=True),
        Column("", 24, lambda item, *_: [(item.meaning, DIM)], grow=1, keep=10),
    ),
    RowType(key=lambda item: item.name, search=lambda item: f"{item.name} {item.meaning}"),
    header=False,
    empty="connection tracking is not in use",
)


def _layer(item: LedgerRow, *_: object) -> Line:
    good = item.layer == "delivered" or item.rule
    return [(item.layer, WARN if item.layer == UNEXPLAINED else GOOD if good else TEXT)]


def _reason(item: LedgerRow, *_: object) -> Line:
    rule: Line = [(f"rule {item.rule}  ", GOOD)] if item.rule else []
    return [*rule, (item.reason, DIM)]


def _mostly(item: LedgerRow, *_: object) -> Line:
    return [] if item.mostly is None else [(f"{percent(item.mostly_share)} {describe(item.mostly)}", TEXT)]


def _of_all(item: LedgerRow, context: CellContext, _: int) -> Line:
    return [(percent(share_of_all(item, context.snapshot)), DIM)]


LEDGER_VIEW = View(
    "",
    columns_of(LEDGER, {"layer": _layer, "reason": _reason, "mostly": _mostly, "share": _of_all}),
    LEDGER,
    empty="nothing was dropped",
)


def rule_state(status: RuleStatus, now: float) -> Line:
    """Write a rule's state with the time it has left."""
    if status.state in ACTIVE_STATES and status.expires is not None and status.expires <= now:
        return [("over, expired", DIM)]  # the kernel does that, also when the guardian is lost
    if status.state is State.PROVISIONAL and status.confirm_by is not None:
        return [(f"unconfirmed {duration(status.confirm_by - now)}", WARN)]
    if status.state is State.CONFIRMED:
        left = f" {duration(status.expires - now)}" if status.expires is not None else ""
        return [(f"active{left}", GOOD)]
    return [(status.state.value, DIM)]


def _rate(item: RuleStatus, *_: object) -> Line:
    return [(number(item.pps), STRONG if item.state in ACTIVE_STATES else DIM)]


def _expires(item: RuleStatus, *_: object) -> Line:
    if item.expires is None:
        return [("–", DIM)]
    return [(time.strftime("%H:%M:%S", time.gmtime(item.expires)), DIM)]


_RULE_CELLS: dict[str, Cell] = {
    "state": lambda item, context, _: rule_state(item, context.now),
    "summary": lambda item, *_: [(item.rule.summary, TEXT)],
    "pps": _rate,
    "expires": _expires,
    "trend": lambda item, context, width: trend_cell(f"rule {item.rule.id}", context, width),
}
*_WHICH, _PPS, _EXPECTED, _PACKETS, _TREND = columns_of(
    RULE, _RULE_CELLS, "id state summary pps predicted_pps packets trend"
)
_PPS_NOW = replace(_PPS, title="pps now", width=7, sort="pps")
RULES_VIEW = View(
    "",
    (*_WHICH, _PPS_NOW, replace(_EXPECTED, keep=6), _PACKETS, _TREND),
    RULE,
    empty="none: {block} blocks the selected row, 1 to 9 preview a proposal",
)
ALL_RULES_VIEW = View(
    "",
    columns_of(RULE, _RULE_CELLS),
    RULE,
    empty="no rule is active: {block} blocks the selected row of another tab, 1 to 9 preview a proposal",
)


_ROOMY = 60  # cells in which a proposal says why, too


def _proposal_summary(item: Proposal, context: CellContext, width: int) -> Line:
    """Write a proposal; one that an active rule covers says which."""
    covering = covering_rule(item.rule, context.snapshot.mitigations) if item.rule is not None else ""
    relief = item.rule is not None and drops_nothing(item.rule)
    words = _in_words(item, width)
    if covering:
        return [(f"✔ rule {covering} does this  ", GOOD), (words, DIM)]
    return [("relief, drops nothing: ", DIM), (words, TEXT)] if relief else [(words, TEXT)]


def _in_words(item: Proposal, width: int) -> str:
    """Write what a proposal does with its reasons; where room is short, only with what evades it.

    Nothing is told twice: that a relief drops nothing stands before it.
    """
    rule = item.rule
    if rule is None or not item.summary.startswith(f"{rule.summary} ("):
        return item.summary
    reasons = item.summary.removeprefix(f"{rule.summary} (").removesuffix(")").split("; ")
    reasons = [reason for reason in reasons if reason != "drops nothing"]
    if width < _ROOMY:
        evasions = [reason for reason in reasons if reason.startswith("evaded by")]
        return f"{rule.summary}. E{evasions[0][1:]}" if evasions else rule.summary
    return f"{rule.summary} ({'; '.join(reasons)})"


def _stops(item: Proposal, context: CellContext, _: int) -> Line:
    """Write what a proposal stops, with "+" what it adds to other rules that are active."""
    if item.rule is not None and drops_nothing(item.rule):
        return [("–", DIM)]
    covered = item.rule is not None and covering_rule(item.rule, context.snapshot.mitigations)
    if item.already_share and not covered:
        return [(f"+{percent(item.attack_share - item.already_share)}", STRONG)]
    return [(percent(item.attack_share), STRONG)]


def clients_hit(share: float, known: int, *, guess: bool) -> Line:
    """Write how many of the `known` client-like packets would be dropped; "~" without a baseline.

    Where none are known, or less than half a one is hit, it is the share of them.
    """
    counted = bool(known) and not 0 < share < 0.5 / known
    text = f"{number(round(share * known))} of {number(known)}" if counted else percent(share)
    style = BAD if share >= HARM_LIMIT else WARN if share > 0 else GOOD
    return [(text, style), (" ~", WARN)] if guess else [(text, style)]


def _clients_hit(item: Proposal, context: CellContext, _: int) -> Line:
    if item.rule is not None and drops_nothing(item.rule):
        return [("–", DIM)]
    known = context.snapshot.judgement.baseline_packets
    return clients_hit(item.collateral_share, known, guess=item.guess)


_NUMBER, _LETTER, *_OTHERS = columns_of(
    PROPOSAL,
    {
        "n": lambda item, *_: [(str(item.number), STRONG)],
        "attack": lambda item, context, _: [(context.letter(item.attack), TITLE)],
        "summary": _proposal_summary,
        "attack_share": _stops,
        "collateral_share": _clients_hit,
    },
)
PROPOSAL_VIEW = View(
    "",
    (_NUMBER, replace(_LETTER, when=lambda context: len(context.attacks) > 1), *_OTHERS),
    PROPOSAL,
    empty="none",
)


def _against(context: CellContext) -> str:
    """Title the proposals with the attacks that they are against."""
    letters = sorted(context.scope.letter(attack.key) for attack in context.attacks)
    named = ", ".join(letters) if len(letters) <= 3 else f"{letters[0]}–{letters[-1]}"
    return f"protect against {named}" if letters else "proposals"


def gauge_line(fill: float, width: int) -> Line:
    """Draw the connection-tracking gauge."""
    full, rest = gauge(fill, width)
    return [(full, BAD if fill >= CONNTRACK_ALARM else WARN if fill >= 0.6 else GOOD), (rest, DIM)]


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
        lambda shot, *_: attack_rows(shot),
        inline=True,
        fitted=True,
        title_of=lambda context: "attack" if context.attacks else calm_words(context.snapshot),
    ),
    PanelSpec(
        "proposals",
        "proposals",
        (PROPOSAL_VIEW,),
        lambda shot, *_: shot.judgement.proposals,
        inline=True,
        fitted=True,
        title_of=_against,
    ),
    PanelSpec("rules", "rule", (RULES_VIEW,), _rules, inline=True, fitted=True),
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
    PanelSpec(
        "conntrack", "Conntrack", (CONNTRACK_VIEW,), lambda shot, *_: conntrack_figures(shot.conntrack)
    ),
    PanelSpec("log", "Log", (LOG_VIEW,), lambda _, context, __: context.log),
    PanelSpec(
        "machine_rules", "All on this machine", (MACHINE_RULES_VIEW,), lambda _, context, __: context.machine
    ),
    PanelSpec("all_rules", "Rules", (ALL_RULES_VIEW,), _rules, counted=True, fitted=True),
    *(
        PanelSpec(f"trend_{kind}", title, (view,), items, title_of=title_of)
        for kind, title, view, items, title_of in TREND_LISTS
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
