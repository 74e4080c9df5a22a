"""The rules of fwtop, all rules and sets of the machine: columns, and everything about one."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.analysis.rule_readings import RatedRule
from fwtop.model.rule import ACTIVE_STATES, Mode, Rule, RuleStatus, State
from fwtop.model.ruleset import ListedSet
from fwtop.model.text import safe_text
from fwtop.model.traffic.counters import TcpService
from fwtop.model.traffic.session import Flow, flow_of
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.render.numbers import utc
from fwtop.render.observation import SPARK, spark, where
from fwtop.render.rows.defence import RULE
from fwtop.render.rows.field import RowType
from fwtop.rules.words import brief
from fwtop.ui.format import duration, number, octets, percent, wrap
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.lists.table import Cell, CellContext, Column, View, columns_of, trend_cell
from fwtop.ui.style import (
    BAD,
    DETAILS_WIDTH,
    DIM,
    GOOD,
    STRONG,
    TEXT,
    TITLE,
    WARN,
    Line,
    detail,
    facts,
    labelled,
    listed,
    wrapped,
)


class MachineFigures(Struct, frozen=True):
    """Load figures of one snapshot; shares are 0 to 1."""

    flow: Flow
    conntrack_fill: float | None
    softirq_share: float | None
    tcp: TcpService | None


def _figures(snapshot: Snapshot) -> MachineFigures:
    conntrack = snapshot.conntrack
    fill = conntrack.fill if conntrack is not None and conntrack.max else None
    return MachineFigures(flow_of(snapshot) or Flow(), fill, snapshot.softirq_share, snapshot.tcp)


class RuleEffects(Struct):
    """For each active rule, the load figures of the last snapshot without it."""

    before: dict[str, MachineFigures] = field(default_factory=dict)
    now: MachineFigures | None = None
    at: float = 0.0  # the end of the window that `now` is of
    _known: frozenset[str] = frozenset()

    def take(self, snapshot: Snapshot) -> None:
        """Record a snapshot's figures; rules active in the first snapshot have no "before".

        Nor have those that were installed long after the last one: a pause, or a jump in a recording.
        """
        rules = {item.rule.id: item.rule for item in snapshot.mitigations if item.state in ACTIVE_STATES}
        active = frozenset(rules)
        if self.now is not None:
            for rule_id in active - self._known:
                if rules[rule_id].created - self.at <= 10.0:  # else they are not those before it
                    self.before[rule_id] = self.now
        for rule_id in self.before.keys() - active:
            del self.before[rule_id]
        self._known = active
        self.now, self.at = _figures(snapshot), snapshot.at


def rule_state(status: RuleStatus, now: float) -> Line:
    """Write a rule's state with the time it has left."""
    if status.state in ACTIVE_STATES and status.expires is not None and status.expires <= now:
        return [("over, expired", DIM)]  # the kernel does that, also when the guardian is lost
    if _on_trial(status) and status.confirm_by is not None:
        return [(f"TRIAL {duration(status.confirm_by - now)}", WARN)]
    if status.state is State.CONFIRMED:
        left = f" {duration(status.expires - now)} left" if status.expires is not None else ""
        if status.rule.counts_only:
            return [(f"off{left}", DIM) if status.rule.mode is Mode.OFF else (f"counts{left}", TITLE)]
        return [(f"active{left}", GOOD)]
    return [(status.state.value, DIM)]


def _on_trial(item: RuleStatus) -> bool:
    return item.state is State.PROVISIONAL and item.confirm_by is not None


def _ends(item: RuleStatus) -> float | None:
    """Return when a rule ends: a trial at its limit, though the kernel's own is moments later."""
    return item.confirm_by if _on_trial(item) else item.expires


def _state(item: RuleStatus, context: CellContext, _: int) -> Line:
    losses = context.snapshot.losses if item.state in ACTIVE_STATES else ()
    harms = any(loss.is_harm and loss.rule == item.rule.id for loss in losses)
    return [("✖ HARM", BAD)] if harms else rule_state(item, context.now)


def _what(item: RuleStatus, context: CellContext, width: int) -> Line:
    """Write what a rule does, on the Overview in one line, if need be as its proposal did."""
    whole = item.rule.summary
    return [(brief(item.rule, width) if context.brief and len(whole) > width else whole, TEXT)]


_CELLS: dict[str, Cell] = {
    "state": _state,
    "summary": _what,
    "pps": lambda item, *_: [(number(item.pps), STRONG if item.state in ACTIVE_STATES else DIM)],
    "expires": lambda item, *_: [(utc(ends, "%H:%M:%S") if (ends := _ends(item)) else "–", DIM)],
    "trend": lambda item, context, width: trend_cell(f"rule {item.rule.id}", context, width),
}
*_WHICH, _PPS, _EXPECTED, _PACKETS, _TREND = columns_of(
    RULE, _CELLS, "id state summary pps predicted_pps packets trend"
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
    columns_of(RULE, _CELLS),
    RULE,
    empty="no rule is active: {block} blocks a row of another tab, 1 to 9 preview a proposal",
)
_SHOWN_SOURCES = 200


def rule_details(item: RuleStatus, now: float) -> tuple[str, list[Line]]:
    """Return the title and the lines of the details dialog."""
    rule = item.rule
    return f"rule {rule.id}", [
        *wrapped("rule", rule.summary),
        labelled("state", rule_state(item, now)),
        *facts(("note", item.note), ("mode", item.would_have)),
        labelled("now", [*rate_line(item), *_ask_why(item)]),
        *_prediction(rule),
        *rule_facts(item, now),
    ]


def rule_facts(item: RuleStatus, now: float) -> list[Line]:
    """Write a rule's kind, what it has matched, when it ends, and its sources with their counts."""
    rule, ends = item.rule, _ends(item)
    at = "" if ends is None else f"{utc(ends, '%H:%M:%S UTC')}, in {duration(ends - now)}"
    how = "unless it is kept" if _on_trial(item) else "without any process"
    counts = [(prefix, item.entries.get(str(prefix))) for prefix in rule.match.sources[:_SHOWN_SOURCES]]
    sources = [
        f"{prefix}" if hits is None else f"{prefix}  {number(hits)} packets" for prefix, hits in counts
    ]
    more = len(rule.match.sources) - len(sources)
    lines = facts(
        ("kind", f"{rule.kind.value}, created by {rule.created_by or 'unknown'}"),
        ("matched", f"{item.packets:,} packets, {octets(item.bytes)}"),
        ("expires", f"{at}, {how}" if at else ""),
    )
    return [*lines, *listed("sources", [*sources, *([f"… and {more:,} more"] if more else [])])]


def effect_lines(item: RuleStatus, effects: RuleEffects, now: float | None = None) -> list[Line]:
    """Write what a rule does and what changed since it was installed; at a time also the rest about it."""
    rule = item.rule
    below = [
        labelled("matches", [*rate_line(item), *_ask_why(item)]),
        *_prediction(rule),
        *facts(("note", item.note), ("mode", item.would_have)),
    ]
    before, after = effects.before.get(rule.id), effects.now
    age = f"{duration(effects.at - rule.created)} ago" if rule.created else "at a time not known"
    if before is None or after is None:
        below.append(detail("machine", f"it was installed {age}; no figures from before that"))
    else:
        below += [[], [(f"what changed since it was installed {age}", DIM)], *_changes(before, after)]
    first: Line = [(f" rule {rule.id}  ", STRONG), (rule.summary, TEXT)]
    below += [] if now is None else [[], *rule_facts(item, now)]
    return [first, *([(" ", TEXT), *line] if line else line for line in below)]


def rate_line(item: RuleStatus) -> Line:
    """Write the present rate against the predicted one, if any."""
    line: Line = [(f"{number(item.pps)} packets a second", WARN if ineffective(item) else STRONG)]
    if item.rule.predicted_pps is not None:
        line.append((f"; {number(item.rule.predicted_pps)} expected", DIM))
    return line


def ineffective(item: RuleStatus) -> bool:
    """Whether a rule does less than 1 % of what was predicted."""
    predicted = item.rule.predicted_pps
    return predicted is not None and predicted >= 1 and item.pps < predicted / 100


def _ask_why(item: RuleStatus) -> Line:
    return [(f"   {KEY_MAP.label('why')}", TITLE), (" says why", WARN)] if ineffective(item) else []


def _prediction(rule: Rule) -> list[Line]:
    if rule.predicted_attack_share is None:
        return []
    text = f"stops {percent(rule.predicted_attack_share)} of the attack"
    if rule.predicted_collateral_share is not None:
        guess = " ~" if rule.predicted_guess else ""
        text += f", hits {percent(rule.predicted_collateral_share)} of client-like packets{guess}"
    if rule.predicted_clients is not None and rule.predicted_clients.known:
        text += f"; {rule.predicted_clients.words}"
    return wrapped("expected", text)


def _changes(before: MachineFigures, after: MachineFigures) -> list[Line]:
    was, now = before.flow, after.flow
    rates = (
        ("arrives", was.arrives, now.arrives),
        ("reaches you", was.reaches, now.reaches),
        ("other drops", was.other + was.kernel, now.other + now.kernel),
    )
    shares = (
        ("conntrack", before.conntrack_fill, after.conntrack_fill, "full"),
        ("softirq", before.softirq_share, after.softirq_share, "of the CPU"),
    )
    lines = [_change(name, number(old), number(new), "packets a second") for name, old, new in rates]
    if before.tcp is not None and after.tcp is not None:
        lines += _service_changes(before.tcp, after.tcp)
    for name, old_share, share, unit in shares:
        if old_share is not None and share is not None:
            lines.append(_change(name, percent(old_share), percent(share), unit))
    return lines


def _service_changes(before: TcpService, after: TcpService) -> list[Line]:
    """Write how clients fare: nothing forged finishes handshakes, though bots of some attacks do."""
    bots = before.bots or after.bots
    name, unit = (
        ("handshakes", "a second, bots included") if bots else ("clients", "handshakes finished a second")
    )
    figures = (
        (name, before.handshakes_per_s, after.handshakes_per_s, unit),
        ("acked", before.acknowledged_per_s, after.acknowledged_per_s, "segments a second"),
    )
    return [_change(name, number(old), number(new), unit) for name, old, new, unit in figures if old or new]


def _change(name: str, old: str, new: str, unit: str) -> Line:
    return labelled(name, [(f"{old:>7} → ", DIM), (f"{new:>7}", STRONG), (f"  {unit}", DIM)])


def why_details(status: RuleStatus, sentences: Sequence[str]) -> list[Line]:
    """Write the guardian's sentences under what the rule does now."""
    lines: list[Line] = [[(row, STRONG)] for row in wrap(safe_text(status.rule.summary), DETAILS_WIDTH)]
    lines.append([("matches ", DIM), *rate_line(status)])
    for sentence in sentences:
        first, *rest = wrap(safe_text(sentence, limit=600), DETAILS_WIDTH - 2)
        lines += [[], [("▪ ", WARN), (first, TEXT)], *([("  " + row, TEXT)] for row in rest)]
    return lines


Row = RatedRule | ListedSet
_STATES = {"high": "far more than usual", "low": "far less than usual"}


def _rate(item: Row, *_: object) -> Line:
    if isinstance(item, ListedSet):
        return [] if item.fill is None else [(f"{100 * item.fill:.0f} %", BAD if item.nearly_full else DIM)]
    if item.pps is None:
        return [("–", DIM)]
    return [(number(item.pps), BAD if item.abnormal else STRONG if item.pps else DIM)]


def _count(value: float | None) -> Line:
    return [("–" if value is None else number(value), DIM)]


def _history(item: Row, context: CellContext, _: int) -> Line:
    if isinstance(item, ListedSet) or context.slow:
        return []
    return [(spark(item.history), BAD if item.abnormal else DIM)]


def _packets(item: Row) -> int | None:
    return item.entries if isinstance(item, ListedSet) else item.rule.packets


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
        Column("usual", 6, lambda item, *_: _count(getattr(item, "usual", None)), right=True, keep=20),
        Column("history", SPARK, _history, keep=30),
        Column("packets", 7, lambda item, *_: _count(_packets(item)), right=True, keep=10),
        Column("where", 20, _where, grow=1, keep=5),
        Column("rule or set", 20, _text, grow=2),
    ),
    RowType(key=key_of, search=_search),
    empty="nothing read yet; only a live screen reads them",
)


def listed_rule_details(item: RatedRule, _: float) -> tuple[str, list[Line]]:
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
