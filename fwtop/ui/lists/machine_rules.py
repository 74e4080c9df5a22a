"""The columns of the machine's rules and sets, and the details of one."""

from __future__ import annotations

from fwtop.analysis.rule_rates import RatedRule
from fwtop.model.ruleset import ListedSet
from fwtop.render.rows.field import RowType
from fwtop.render.ruleset import SPARK, spark, where
from fwtop.ui.drawing.format import number, octets
from fwtop.ui.drawing.style import BAD, DIM, GOOD, STRONG, TEXT, WARN, Line
from fwtop.ui.drawing.text import facts
from fwtop.ui.lists.table import CellContext, Column, View
from fwtop.ui.state.rules import Row

_STATES = {"high": "far more than usual", "low": "far less than usual"}


def _rate(item: Row, *_: object) -> Line:
    if isinstance(item, ListedSet):
        return [] if item.fill is None else [(f"{100 * item.fill:.0f} %", BAD if item.nearly_full else DIM)]
    if item.pps is None:
        return [("–", DIM)]
    return [(number(item.pps), BAD if item.abnormal else STRONG if item.pps else DIM)]


def _usual(item: Row, *_: object) -> Line:
    usual = item.usual if isinstance(item, RatedRule) else None
    return [("–" if usual is None else number(usual), DIM)]


def _history(item: Row, context: CellContext, _: int) -> Line:
    if isinstance(item, ListedSet) or context.slow:
        return []
    return [(spark(item.history), BAD if item.abnormal else DIM)]


def _packets(item: Row, *_: object) -> Line:
    count = item.entries if isinstance(item, ListedSet) else item.rule.packets
    return [("–" if count is None else number(count), DIM)]


def _where(item: Row, *_: object) -> Line:
    if isinstance(item, ListedSet):
        return [(f"{item.source} set", GOOD if item.ours else TEXT)]
    return [(where(item.rule), GOOD if item.rule.ours else TEXT)]


def _text(item: Row, *_: object) -> Line:
    if isinstance(item, ListedSet):
        size = f" of {item.size:,}" if item.size else ""
        entries = "?" if item.entries is None else f"{item.entries:,}"
        return [(f"{item.name} ", TEXT), (f"{item.type}, {entries}{size} entries", DIM)]
    state = _STATES.get(item.abnormal, "")
    return [(f"{state}  ", WARN), (item.rule.text, TEXT)] if state else [(item.rule.text, TEXT)]


def key_of(item: Row) -> str:
    """Return what identifies a row."""
    return item.key if isinstance(item, ListedSet) else item.rule.key


def _search(item: Row) -> str:
    if isinstance(item, ListedSet):
        return f"{item.source} set {item.name} {item.type}"
    return f"{where(item.rule)} {item.rule.text} {'fwtop' if item.rule.ours else ''}"


MACHINE_RULES_VIEW = View(
    "",
    (
        Column("pps", 6, _rate, right=True),
        Column("usual", 6, _usual, right=True, keep=20),
        Column("history", SPARK, _history, keep=30),
        Column("packets", 7, _packets, right=True, keep=10),
        Column("where", 20, _where, grow=1, keep=5),
        Column("rule or set", 20, _text, grow=2),
    ),
    RowType(key=key_of, search=_search),
    empty="nothing read yet; only a live screen reads them",
)


def rule_details(item: RatedRule, _: float) -> tuple[str, list[Line]]:
    """Write what is known of a rule."""
    rule = item.rule
    usual = f", usually {number(item.usual)}" if item.usual is not None else ""
    return "rule", facts(
        ("where", where(rule)),
        ("by", "fwtop" if rule.ours else "somebody else"),
        ("rule", rule.text),
        ("packets", "not counted" if rule.packets is None else f"{rule.packets:,}"),
        ("bytes", "" if rule.bytes is None else octets(rule.bytes)),
        ("rate", "" if item.pps is None else f"{number(item.pps)} packets a second{usual}"),
        ("state", _STATES.get(item.abnormal, "")),
    )


def set_details(item: ListedSet, _: float) -> tuple[str, list[Line]]:
    """Write what is known of a set."""
    return "set", facts(
        ("set", item.name),
        ("of", f"{item.source} {item.family}".rstrip()),
        ("by", "fwtop" if item.ours else "somebody else"),
        ("type", item.type),
        ("entries", "not counted" if item.entries is None else f"{item.entries:,}"),
        ("size", "no limit" if item.size is None else f"{item.size:,}"),
    )
