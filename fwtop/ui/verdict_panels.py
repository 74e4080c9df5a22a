"""What becomes of it and what to do: drops, connection tracking, rules and proposals, as views."""

from __future__ import annotations

import time

from fwtop.model.rule import ACTIVE_STATES, RuleStatus, State
from fwtop.model.snapshot import Proposal
from fwtop.model.wording import describe
from fwtop.ui.cells import Line
from fwtop.ui.columns import Column, Scene, View
from fwtop.ui.format import duration, gauge, nanoseconds, number, octets, percent
from fwtop.ui.items import LedgerLine
from fwtop.ui.palette import BAD, DIM, GOOD, STRONG, TEXT, WARN
from fwtop.ui.table import Ordering

HARM_LIMIT = 0.01  # collateral above this turns the default of the dialog to Cancel


CONNTRACK_VIEW = View(
    "",
    (
        Column("", 13, lambda item, _: [(item.name, DIM)]),
        Column("", 16, lambda item, _: [(item.value, BAD if item.alarm else TEXT)], right=True),
        Column("", 24, lambda item, _: [(item.meaning, DIM)], grow=1, keep=10),
    ),
    Ordering(key=lambda item: item.name, search=lambda item: f"{item.name} {item.meaning}"),
    header=False,
    empty="connection tracking is not in use",
)


def _ledger_style(item: LedgerLine, _: Scene) -> Line:
    row = item.row
    if row.layer == "unexplained":
        return [(row.layer, WARN)]
    return [(row.layer, GOOD if row.layer == "delivered" or row.rule else TEXT)]


def _ledger_reason(item: LedgerLine, _: Scene) -> Line:
    rule: Line = [(f"rule {item.row.rule}  ", GOOD)] if item.row.rule else []
    return [*rule, (item.row.reason, DIM)]


def _ledger_mostly(item: LedgerLine, _: Scene) -> Line:
    row = item.row
    return [] if row.mostly is None else [(f"{percent(row.mostly_share)} {describe(row.mostly)}", TEXT)]


LEDGER_VIEW = View(
    "",
    (
        Column("where", 11, _ledger_style),
        Column("why", 15, _ledger_reason, grow=1, keep=5),
        Column("mostly", 24, _ledger_mostly, keep=9),
        Column("packets", 7, lambda item, _: [(number(item.row.packets), DIM)], right=True, keep=10),
        Column("part", 7, lambda item, _: [(percent(item.part), DIM)], right=True, keep=8),
        Column("pps", 5, lambda item, _: [(number(item.row.pps), TEXT)], right=True, keep=1),
    ),
    Ordering(
        key=lambda item: f"{item.row.layer}/{item.row.reason}/{item.row.rule}",
        search=lambda item: f"{item.row.layer} {item.row.reason} rule {item.row.rule}",
        sorts=(("layer", lambda item: tuple(-ord(char) for char in item.row.layer)),),
    ),
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


def _rate(item: RuleStatus, _: Scene) -> Line:
    return [(number(item.pps), STRONG if item.state in ACTIVE_STATES else DIM)]


def _predicted(item: RuleStatus, _: Scene) -> Line:
    predicted = item.rule.predicted_pps
    return [("–" if predicted is None else number(predicted), DIM)]


RULES_VIEW = View(
    "",
    (
        Column("id", 3, lambda item, _: [(item.rule.id, TEXT)]),
        Column("state", 16, lambda item, scene: rule_state(item, scene.now)),
        Column("rule", 20, lambda item, _: [(item.rule.summary, TEXT)], grow=1, keep=3),
        Column("pps", 5, _rate, right=True, keep=1),
        Column("foreseen", 8, _predicted, right=True, keep=6),
        Column("packets", 7, lambda item, _: [(number(item.packets), DIM)], right=True, keep=9),
    ),
    Ordering(
        key=lambda item: item.rule.id,
        search=lambda item: f"{item.rule.id} {item.state.value} {item.rule.summary}",
        sorts=(("pps", lambda item: item.pps),),
    ),
    empty="none: b blocks what is selected, 1 to 9 take a proposal",
)


def _expires(item: RuleStatus, _: Scene) -> Line:
    if item.expires is None:
        return [("–", DIM)]
    return [(time.strftime("%H:%M:%S", time.gmtime(item.expires)), DIM)]


ALL_RULES_VIEW = View(
    "",
    (
        Column("id", 3, lambda item, _: [(item.rule.id, TEXT)]),
        Column("state", 16, lambda item, scene: rule_state(item, scene.now)),
        Column("by", 9, lambda item, _: [(item.rule.kind.value, DIM)], keep=30),
        Column("rule", 20, lambda item, _: [(item.rule.summary, TEXT)], grow=1, keep=3),
        Column("pps", 5, _rate, right=True, keep=1),
        Column("foreseen", 8, _predicted, right=True, keep=2),
        Column("packets", 7, lambda item, _: [(number(item.packets), DIM)], right=True, keep=9),
        Column("bytes", 7, lambda item, _: [(octets(item.bytes), DIM)], right=True, keep=25),
        Column("ends UTC", 8, _expires, right=True, keep=20),
    ),
    RULES_VIEW.ordering,
    empty="no rule is active: b blocks what is selected on the main screen, 1 to 9 take a proposal",
)


def harm(share: float, *, guess: bool) -> Line:
    """Write the share of normal traffic that would be hit; a guess is marked."""
    style = BAD if share >= HARM_LIMIT else WARN if share > 0 else GOOD
    return [(percent(share), style), (" ?", WARN)] if guess else [(percent(share), style)]


def _cost(item: Proposal, _: Scene) -> Line:
    return [("–" if item.cost_ns is None else nanoseconds(item.cost_ns), DIM)]


PROPOSAL_VIEW = View(
    "",
    (
        Column("", 1, lambda item, _: [(str(item.number), STRONG)]),
        Column("proposal", 26, lambda item, _: [(item.summary, TEXT)], grow=1),
        Column("stops", 7, lambda item, _: [(percent(item.attack_share), STRONG)], right=True, keep=1),
        Column("harms", 8, lambda item, _: harm(item.collateral_share, guess=item.guess), right=True, keep=2),
        Column("cost", 6, _cost, right=True, keep=9),
    ),
    Ordering(
        key=lambda item: f"{item.kind} {item.summary}",
        search=lambda item: f"{item.kind} {item.summary}",
        sorts=(("least harm", lambda item: -item.collateral_share),),
    ),
    empty="none: nothing needs to be stopped",
)


def gauge_line(fill: float, width: int) -> Line:
    """Draw the connection-tracking gauge."""
    full, rest = gauge(fill, width)
    return [(full, BAD if fill >= 0.8 else WARN if fill >= 0.6 else GOOD), (rest, DIM)]
