"""Tables of rows: columns and their widths, sort order, filter and selection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.style import Style

from fwtop.model.rule import RuleStatus
from fwtop.model.traffic.counters import ConntrackSample
from fwtop.model.traffic.snapshot import (
    Attack,
    Destination,
    LedgerRow,
    PacketSignature,
    Payload,
    Port,
    Proposal,
    Snapshot,
    Source,
)
from fwtop.ui.drawing.format import bar, duration, error_bar, number, percent, scale_of
from fwtop.ui.drawing.style import BAR, DIM, TEXT, Line, fit, width_of, wrap_line
from fwtop.ui.state.packet_row import PacketRow
from fwtop.ui.state.scope import Scope
from fwtop.ui.state.stages import Stage
from fwtop.ui.state.trends import Trends

_FULL = 0.995  # of the connection-tracking table
_SOON_SECONDS = 300.0
UNEXPLAINED_SHARE = 0.001  # below it the difference between counters read at different times is noise


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of the connection-tracking table."""

    name: str
    value: str
    alarm: bool
    meaning: str


def conntrack_figures(sample: ConntrackSample | None) -> tuple[Figure, ...]:
    """List the table's figures with what they mean; counts are of the window."""
    if sample is None or not sample.max:
        return ()
    tracked = f"{number(sample.count)} of {number(sample.max)}"
    new = "connections entered a second; a flood of forged sources enters one a packet"
    failed = "entries that lost a race or found their bucket full; their packets were dropped"
    return (
        Figure("tracked", tracked, sample.fill >= 0.8, "connections in the table; a full one drops new ones"),
        _fills_up(sample),
        Figure("new", f"{number(sample.new_per_s)}/s", False, new),
        Figure("insert failed", number(sample.insert_failed), sample.insert_failed > 0, failed),
        Figure("dropped", number(sample.drop), sample.drop > 0, "packets dropped because the table was full"),
        Figure(
            "early drop", number(sample.early_drop), sample.early_drop > 0, "entries evicted to make room"
        ),
    )


def _fills_up(sample: ConntrackSample) -> Figure:
    left = sample.seconds_to_full
    if sample.fill >= _FULL or (left is not None and left < 1):
        return Figure("fills up", "FULL", True, "new connections evict others or are dropped")
    if left is None:
        return Figure("fills up", "not growing", False, "as many connections end as begin")
    return Figure("fills up", f"in {duration(left)}", left < _SOON_SECONDS, "at the present growth")


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """A row of the drop ledger with its share of all packets."""

    row: LedgerRow
    share: float


def ledger_lines(snapshot: Snapshot) -> tuple[LedgerLine, ...]:
    """Relate each row of the ledger to all packets."""
    arrived = max(snapshot.tables.totals.packets, 1)
    lines = (LedgerLine(row, row.packets / arrived) for row in snapshot.tables.ledger)
    return tuple(
        line for line in lines if line.row.layer != "unexplained" or abs(line.share) >= UNEXPLAINED_SHARE
    )


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A line of the log."""

    number: int  # in order
    at: float  # Unix seconds
    kind: str
    words: str  # the kind for people
    subject: str  # an attack's kind, a rule's id or a proposal's command; "" for none
    text: str
    style: Style
    count: int = 1
    details: tuple[Line, ...] = ()


Estimate = Source | Destination | Port | Payload | PacketSignature  # what has a share
Item = Estimate | LedgerLine | Figure | RuleStatus | Proposal | Attack | Stage | LogEntry | PacketRow


FREEZE_SECONDS = 3.0  # a key holds the order this long
RESORT_SECONDS = 3.0  # rows change their order at most this often
SEEN_SECONDS = 0.5  # what came under the cursor more recently has not been seen


@dataclass(slots=True)
class Ordering:
    """How to identify, search and sort the items of a list."""

    key: Callable[[Any], str]
    search: Callable[[Any], str]
    sorts: tuple[tuple[str, Callable[[Any], Any]], ...] = ()  # name, value; greatest first
    newest_last: bool = False  # the list grows at its end, and the cursor follows that end
    group: Callable[[Any], str] | None = None  # heading of a group that stands below the others; "": none


@dataclass(slots=True)
class RowList:
    """The rows of one view of one panel, their order, and the selected one.

    The operator acts on rows while they move. So the selection belongs to a key, not to a line; rows
    change places at most every RESORT_SECONDS, and not for FREEZE_SECONDS after a key press; and a
    selected row that drops out of the list stays, marked as gone, until the selection leaves it.
    """

    ordering: Ordering
    items: list[Item] = field(default_factory=list)
    selected: int = 0
    gone: bool = False  # the selected item is no longer in the list
    followed: bool = True  # until the first key the cursor stays on the first row
    sort: int = -1  # index of `sorts`; -1: as the list came
    filter: str = ""
    grouped: bool = False  # in the groups of the ordering
    hidden: int = 0  # rows that the filter hides
    frozen_until: float = 0.0
    sorted_at: float = float("-inf")
    _before: tuple[Item, float] | None = None  # what a following cursor left, and when

    def update(self, items: Sequence[Item], now: float) -> None:
        """Show the next list; the selected key stays selected."""
        chosen = self.current()
        shown = [item for item in items if self._matches(item)]
        self.hidden = len(items) - len(shown)
        if self.sort >= 0:
            shown.sort(key=self.ordering.sorts[self.sort][1], reverse=True)
        if 0 < self.frozen_until - now <= FREEZE_SECONDS or 0 <= now - self.sorted_at < RESORT_SECONDS:
            shown = self._in_frozen_order(shown)
        else:
            self.sorted_at = now
        self._regroup(shown)
        self.gone = False
        if chosen is not None and not self.followed:
            self._keep_selected(shown, chosen)
        self.items = shown
        last = max(len(shown) - 1, 0)
        followed = last if self.ordering.newest_last else 0
        self.selected = followed if self.followed else max(min(self.selected, last), 0)
        if chosen is not None and self.followed and shown and self._key(shown[followed]) != self._key(chosen):
            self._before = chosen, now

    def current(self) -> Item | None:
        """Return the selected item."""
        return self.items[self.selected] if self.selected < len(self.items) else None

    def latest(self, item: Item) -> Item:
        """Return the present figures of an item, or the item itself if it is no longer listed."""
        wanted = self._key(item)
        return next((shown for shown in self.items if self._key(shown) == wanted), item)

    def target(self, now: float) -> Item | None:
        """Return the item that an action applies to, and select it for good.

        It is the item that was seen when the key was pressed: a following cursor that changed rows a
        moment ago still means the row before.
        """
        if self.followed and self._before is not None and 0 <= now - self._before[1] < SEEN_SECONDS:
            self._keep_selected(self.items, self._before[0])
        self.pin(now)
        return self.current()

    def select(self, index: int, now: float) -> None:
        """Move the selection to a line and hold the order."""
        if not self.items:
            return
        last = len(self.items) - 1
        self.selected = max(min(index, last), 0)
        self.pin(now)
        self.followed = self.ordering.newest_last and self.selected == last

    def pin(self, now: float) -> None:
        """Keep the selected item selected, and hold the order for FREEZE_SECONDS."""
        self.followed = False
        self._before = None
        self.freeze(now)

    def follow(self) -> None:
        """Return to the first row and stay with whichever is first, unless the list grows at its end."""
        self.selected = 0
        self.followed = not self.ordering.newest_last
        self._sort_next()

    def freeze(self, now: float) -> None:
        """Hold the present order for FREEZE_SECONDS."""
        self.frozen_until = now + FREEZE_SECONDS

    def _sort_next(self) -> None:
        self.frozen_until, self.sorted_at = 0.0, float("-inf")

    def next_sort(self) -> str:
        """Change to the next order and return its name."""
        self.sort = self.sort + 1 if self.sort + 1 < len(self.ordering.sorts) else -1
        self._sort_next()
        return self.sort_name

    def sort_by(self, name: str) -> None:
        """Change to an order by its name; any other than the list's is its own."""
        names = [known for known, _ in self.ordering.sorts]
        self.sort = names.index(name) if name in names else -1
        self._sort_next()

    @property
    def sort_name(self) -> str:
        """Name of the present order; "" for the list's own."""
        return self.ordering.sorts[self.sort][0] if self.sort >= 0 else ""

    def _key(self, item: Item) -> str:
        return self.ordering.key(item)

    def _matches(self, item: Item) -> bool:
        return not self.filter or self.filter.lower() in self.ordering.search(item).lower()

    def _in_frozen_order(self, shown: list[Item]) -> list[Item]:
        place = {self.ordering.key(item): line for line, item in enumerate(self.items)}
        return sorted(shown, key=lambda item: place.get(self.ordering.key(item), len(place)))

    def _keep_selected(self, shown: list[Item], chosen: Item) -> None:
        wanted = self.ordering.key(chosen)
        for line, item in enumerate(shown):
            if self.ordering.key(item) == wanted:
                self.selected = line
                return
        if self._matches(chosen):
            self.selected = min(self.selected, len(shown))
            shown.insert(self.selected, chosen)
            self._regroup(shown)
            self.selected = shown.index(chosen)
            self.gone = True

    def _regroup(self, shown: list[Item]) -> None:
        shown.sort(key=lambda item: bool(self.heading(item)))

    def heading(self, item: Item) -> str:
        """Return the heading of an item's group; "" if it has none."""
        group = self.ordering.group
        return group(item) if group is not None and self.grouped else ""


GAP = 2


@dataclass(frozen=True, slots=True)
class CellContext:
    """What cells need besides their item."""

    now: float  # Unix seconds
    scale: float = 1.0  # share that a full bar stands for
    slow: bool = False
    attack: bool = False  # an attack is under way
    forged: bool = False  # one with forged sources: the addresses listed are not the senders'
    mitigations: Sequence[RuleStatus] = ()
    snapshot: Snapshot | None = None
    scope: Scope = field(default_factory=Scope)
    trends: Trends = field(default_factory=Trends)
    log: Sequence[LogEntry] = ()
    part: str = ""  # which part of the traffic is shown, in words


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `width` is fixed; with `grow` it takes its share of the spare width.

    `whole` texts are broken into several lines rather than cut.
    """

    title: str
    width: int
    cell: Callable[[Any, CellContext], Line]
    right: bool = False
    grow: int = 0
    keep: int = 0  # the smaller, the longer the column stays when the panel gets narrow
    whole: bool = False
    head: Style = DIM  # of its title
    sort: str = ""  # name of the order that its head chooses, if not its title
    drawn: Callable[[Any, CellContext, int], Line] | None = None  # instead of `cell`, told its width
    label: str = ""  # its name in screen.toml, if that is not the title

    @property
    def name(self) -> str:
        """The name in screen.toml; "" if the operator can't leave the column out."""
        if not self.keep:
            return ""
        return self.label or self.title.partition("  ")[0].replace(" ", "_").lower()


@dataclass(frozen=True, slots=True)
class View:
    """One way of listing things; `v` cycles through a panel's views."""

    name: str
    columns: tuple[Column, ...]
    ordering: Ordering
    share: Callable[[Any], float] | None = None  # for the scale of the bars
    header: bool = True
    empty: str = "nothing yet"
    whole: bool = False  # the first column is never cut: others give way
    drawn: bool = False  # rows hold drawings, which the bar of the selected row would spoil


def with_columns(view: View, names: Sequence[str]) -> View:
    """Return a view with the columns that were chosen, in their order; those that say what a row is stay."""
    by_name = {column.name: column for column in view.columns if column.name}
    fixed = [column for column in view.columns if not column.name]
    return replace(view, columns=(*fixed, *(by_name[name] for name in names if name in by_name)))


def fit_columns(columns: Sequence[Column], width: int) -> list[tuple[Column, int]]:
    """Choose the columns that fit into `width` cells and give each its width."""
    chosen = list(columns)
    while len(chosen) > 1 and sum(c.width for c in chosen) + GAP * (len(chosen) - 1) > width:
        chosen.remove(max(chosen, key=lambda column: column.keep))
    spare = width - sum(c.width for c in chosen) - GAP * (len(chosen) - 1)
    parts = sum(column.grow for column in chosen)
    widths = []
    for column in chosen:
        extra = spare * column.grow // parts if parts and spare > 0 else 0
        spare -= extra
        parts -= column.grow
        widths.append((column, column.width + min(extra, spare + extra)))
    return widths


def whole_first(view: View, items: Sequence[Any], context: CellContext) -> list[Column]:
    """Return the columns, the first one widened to fit all its cells if the view asks for that."""
    columns = list(view.columns)
    if view.whole and items:
        widest = max(width_of(columns[0].cell(item, context)) for item in items)
        columns[0] = replace(columns[0], width=max(columns[0].width, widest))
    return columns


def header_line(layout: Sequence[tuple[Column, int]]) -> Line:
    """Write the column titles."""
    return _join(fit([(column.title, column.head)], width, right=column.right) for column, width in layout)


MOST_LINES = 4  # of one row


def row_lines(layout: Sequence[tuple[Column, int]], item: Item, context: CellContext) -> list[Line]:
    """Write an item's cells, in as many lines as its `whole` columns need."""
    cells: list[list[Line]] = []
    for column, width in layout:
        drawn = column.drawn
        cell = drawn(item, context, width) if drawn is not None else column.cell(item, context)
        cells.append(wrap_line(cell, width) if column.whole and width_of(cell) > width else [cell])
    height = min(max((len(cell) for cell in cells), default=1), MOST_LINES)
    return [
        _join(
            fit(cell[row] if row < len(cell) else [], width, right=column.right)
            for (column, width), cell in zip(layout, cells, strict=True)
        )
        for row in range(height)
    ]


def bar_scale(view: View, items: Sequence[Any]) -> float:
    """Return the share that a full bar stands for."""
    return scale_of([view.share(item) for item in items]) if view.share else 1.0


def share_columns(*, bar_width: int, keep: int) -> tuple[Column, ...]:
    """Return the columns common to panels of estimates: bar, share with error, rate."""

    def drawn(item: Estimate, context: CellContext) -> Line:
        if context.slow:
            return []
        share = item.share
        sure, maybe = bar(
            share.share, share.share_low, share.share_high, scale=context.scale, width=bar_width
        )
        return [(sure, BAR), (maybe, DIM)]

    def written(item: Estimate, _: CellContext) -> Line:
        share = item.share
        error = error_bar(share.share_low, share.share_high)
        return [(percent(share.share), TEXT), (f" {error:>6}", DIM)]

    return (
        Column("", bar_width, drawn, keep=keep + 40, label="bar"),
        Column("share  ±95 %", 14, written, right=True, keep=keep + 1),
        Column("pps", 5, lambda item, _: [(number(item.share.pps), TEXT)], right=True, keep=keep),
    )


def _join(cells: Iterable[Line]) -> Line:
    line: Line = []
    for cell in cells:
        if line:
            line.append((" " * GAP, TEXT))
        line += cell
    return line
