"""The way of all packets as a funnel: its columns, the same in few lines, and the details of a stage.

A bar's length is the logarithm of a rate, so that little is still seen beside a flood: what passes is solid,
what the stage drops has the glyph of who drops it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.style import Style

from fwtop.model.traffic.snapshot import Snapshot
from fwtop.render.drop_words import help_words, reason_words
from fwtop.render.rows.field import RowType
from fwtop.rules.words import describe
from fwtop.ui.format import number, percent
from fwtop.ui.lists.stages import ACCEPTED, NIC, UNACCOUNTED, Stage, stages_of
from fwtop.ui.lists.table import CellContext, Column, View, fit_columns, header_line, row_lines, within
from fwtop.ui.style import ACCENT, BAD, DIM, ELSEWHERE, GOOD, STRONG, TEXT, WARN, Line, facts, listed

ENDS: dict[str, tuple[str, Style]] = {
    "mine": ("▓", GOOD),
    "other": ("▒", ELSEWHERE),
    "kernel": ("░", DIM),
    "lost": ("░", BAD),  # something was full
}
_DECADES = 3.5  # of the scale: a bar of one cell is a 3,000th of a full one
_ASKS = 8  # shown
_SMALL = 0.01  # of the accepted packets: what no listener got is told from here on
RECORDED = "not recorded: a capture doesn't tell where its packets ended"


def bar_cells(pps: float, whole: float, width: int) -> int:
    """Return the length of a rate's bar; something is never nothing."""
    if pps <= 0 or whole <= 0 or width < 1:
        return 0
    share = 1 + math.log10(min(pps / whole, 1.0)) / _DECADES
    return max(1, min(round(share * width), width))


def _bar(item: Stage, context: CellContext, width: int) -> Line:
    if context.slow:
        return []
    if item.name == UNACCOUNTED:
        return [("╌" * bar_cells(item.enters, item.whole, width), WARN)]
    entered = bar_cells(item.enters, item.whole, width)
    passed = min(bar_cells(item.passes, item.whole, width), entered)
    line: Line = [("█" * passed, BAD if item.reached else ACCENT)]
    sums = {end: sum(drop.pps for drop in item.drops if drop.end == end) for end in ENDS}
    left, weight = entered - passed, sum(sums.values())
    for end, (glyph, style) in ENDS.items():
        cells = round(left * sums[end] / weight) if weight > 0 else 0
        line.append((glyph * cells, style))
        left, weight = left - cells, weight - sums[end]
    return line


def _passes(item: Stage, *_: object) -> Line:
    return [(number(item.passes), WARN if item.name == UNACCOUNTED else STRONG)]


def _drops_cell(item: Stage, *_: object) -> Line:
    """Write the glyphs of those who drop, and how much they drop together."""
    if item.name in (ACCEPTED, UNACCOUNTED):
        return []
    ends = {drop.end for drop in item.drops}
    line: Line = [ENDS[end] for end in ENDS if end in ends]
    return [*line, (f"{number(item.dropped):>6}", TEXT if item.drops else DIM)]


def _by_cell(item: Stage, *_: object) -> Line:
    if item.name == ACCEPTED:
        return _listeners(item)
    rates: dict[tuple[str, str], float] = {}
    for drop in item.drops:
        rates[drop.by, drop.end] = rates.get((drop.by, drop.end), 0.0) + drop.pps
    line: Line = []
    for (by, end), pps in rates.items():
        line += [(" · ", DIM)] if line else []
        line.append((by if len(rates) == 1 else f"{by} {number(pps)}", ENDS[end][1]))
    if item.note:
        line += [(" · ", DIM)] if line else []
        line.append((item.note, BAD if item.alarm else DIM))
    return line


def _listeners(item: Stage) -> Line:
    """Write who got the accepted packets, those that no listener got at the end."""
    shown = item.listeners[:12]
    words = [f"{found.name}:{found.port} {number(found.pps)}" for found in shown]
    rest = item.passes - sum(found.pps for found in shown)
    if shown and rest >= _SMALL * item.passes and rest >= 0.5:
        words.append(f"other {number(rest)}")
    line: Line = [("~ ", WARN)] if words and item.estimated else []
    return [*line, (" · ".join(words), TEXT)]


PATH_VIEW = View(
    "",
    (
        Column("stage", 9, lambda item, *_: [(item.name, WARN if item.name == UNACCOUNTED else TEXT)]),
        Column("log scale", 9, _bar, grow=1, keep=30, label="bar"),
        Column("passes", 6, _passes, right=True),
        Column("drops", 9, _drops_cell, right=True),
        Column("by", 14, _by_cell, grow=1, keep=5, whole=True),
    ),
    RowType(key=lambda item: item.name, search=lambda item: f"{item.name} {item.note}"),
    empty=RECORDED,
    all_rows=True,
    drawn=True,
)


def path_lines(snapshot: Snapshot, width: int, height: int) -> list[Line]:
    """Draw the funnel in at most `height` lines: stages that drop nothing go first."""
    stages = stages_of(snapshot)
    if not stages:
        return [[(RECORDED, DIM)]][:height]
    layout = fit_columns(PATH_VIEW.columns, width)
    context = CellContext(snapshot.at)
    lines = [header_line(layout)]
    kept = _fitting(stages, height - 1)
    rows = within(height - 1, len(kept), lambda place, most: row_lines(layout, kept[place], context, most))
    lines += [line for block in rows for line in block]
    return lines[:height]


def _fitting(stages: Sequence[Stage], room: int) -> list[Stage]:
    """Leave out stages until the rest fits: the least important first."""
    kept = list(stages)
    while len(kept) > max(room, 1):
        kept.remove(min(kept, key=_importance))
    return kept


def _importance(stage: Stage) -> tuple[int, float]:
    ends = {ACCEPTED: 4, NIC: 3, UNACCOUNTED: 1}
    return ends.get(stage.name, 2 if stage.drops or stage.alarm else 0), stage.dropped


def stage_details(item: Stage, _: float) -> tuple[str, list[Line]]:
    """Write what happens at a stage: all that it drops, with what that mostly is."""
    share = percent(item.dropped / item.enters) if item.enters > 0 else "0 %"
    drops = f"{number(item.dropped)} pps, {share} of what gets here"
    lines = facts(
        ("stage", _MEANINGS[item.name]),
        ("passes", f"{number(item.passes)} pps"),
        ("drops", "" if item.name in (ACCEPTED, UNACCOUNTED) else drops),
        ("state", item.note),
    )
    for drop in item.drops:
        row = drop.row
        mostly = f"{describe(row.mostly)}: {percent(row.mostly_share)} (sampled)" if row.mostly else ""
        lines.append([])
        lines += facts(
            ("by", drop.by if drop.end in ("mine", "other") else "the kernel"),
            ("reason", row.reason),
            ("", reason_words(row.reason)),
            ("helps", help_words(row.reason) if drop.end == "lost" else ""),
            ("rate", f"{number(drop.pps)} pps, {row.packets:,} packets"),
            ("mostly", mostly),
        )
    heard = (
        f"{found.name or 'no process'}: {found.words}, {number(found.pps)} pps" for found in item.listeners
    )
    chains = (chain.name + (", policy drop" if chain.drops_by_policy else "") for chain in item.chains)
    asks = listed("asks others", (f"{found.name or 'service'}: {found.words}" for found in item.asks[:_ASKS]))
    works = [line for label, texts in item.works for line in listed(label, texts)]
    may_drop = listed("may drop", chains)
    return f"path: {item.name}", [*lines, *works, *listed("listeners", heard), *asks, *may_drop]


_MEANINGS = {
    "NIC": "the network interface and its driver",
    "XDP": "BPF programs in the driver, before the kernel allocates anything",
    "backlog": "the queue between driver and network stack, one for each CPU",
    "tc": "filters at tc ingress and nftables at netdev ingress",
    "raw": "netfilter before routing: tables raw and mangle, nftables at prerouting",
    "conntrack": "connection tracking",
    "IP": "the IP layer: header checks, reassembly, routing",
    "filter": "netfilter behind routing: input and forward, where most firewalls drop",
    "socket": "TCP, UDP and the sockets of this host",
    "accepted": "what processes of this host get, or what it forwards",
    "unaccounted": "packets that were on their way when the counters were read, or that nothing counted",
}
