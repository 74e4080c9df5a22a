"""The panel widget: title, column heads and the rows around the selection."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from msgspec import Struct
from msgspec.structs import replace
from rich.style import Style
from textual import events

from fwtop.model.text import safe_text
from fwtop.model.traffic.snapshot import NOTHING, Snapshot
from fwtop.render.rows.traffic import SOURCE_LISTS
from fwtop.ui.format import shortened
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.layout import Clicked, Lines
from fwtop.ui.lists.panels import PANEL, PanelSpec
from fwtop.ui.lists.rows import Fold, RowList
from fwtop.ui.lists.table import (
    GAP,
    MOST_LINES,
    CellContext,
    Column,
    View,
    bar_scale,
    columns_now,
    fit_columns,
    header_line,
    indent_of,
    row_lines,
    within,
)
from fwtop.ui.style import ACCENT, BRAND, DIM, SELECTED, STRONG, TEXT, WARN, Line, beside, width_of

_MEASURED = 200  # rows whose first cell decides how wide its column is, and how many lines a list wants


class Panel(Lines):
    """Shows one PanelSpec; keeps a RowList for each of its views."""

    def __init__(self, spec: PanelSpec) -> None:
        super().__init__(spec.name)
        self.spec = spec
        self.slot: tuple[str, ...] = ()  # panels that share its place
        self.active = False  # the panel that keys refer to
        self.view_index = 0
        self.view_chosen = spec.first is None  # by the operator
        self.lists = [
            RowList(view.row, view.newest_last, view.group, view.numbered, view.begins) for view in spec.views
        ]
        self._top = 0
        self._shown = 0  # rows
        self.wanted = 0  # lines that all rows need, of the first _MEASURED; of fitted panels
        self._line_items: list[int] = []  # the row behind each line
        self._layout: list[tuple[Column, int]] = []
        self._snapshot = NOTHING
        self._cell_context = CellContext(0.0)

    @property
    def view(self) -> View:
        """The present view."""
        return self.spec.views[self.view_index]

    @property
    def rows(self) -> RowList:
        """The rows of the present view."""
        return self.lists[self.view_index]

    def current(self) -> Struct | None:
        """Return the selected item, as it was last shown."""
        return self.rows.current()

    def take(self, snapshot: Snapshot, context: CellContext) -> None:
        """Show a snapshot; only cells that changed are repainted."""
        self._snapshot = snapshot
        self._cell_context = context
        if self.spec.first is not None and not self.view_chosen:
            names = [view.name for view in self.spec.views]
            self.view_index = names.index(self.spec.first(snapshot))
        self.rows.grouped = bool(context.attacks)
        self.rows.forged = any(attack.spoofed for attack in context.attacks)
        self.rows.update(self.spec.items(snapshot, context, self.view.name), context.now, context.attacks)
        self.draw()

    def reload(self) -> None:
        """Apply a changed filter, sort order or view to the last snapshot."""
        if self._snapshot is not NOTHING:
            self.take(self._snapshot, self._cell_context)

    @property
    def filter_text(self) -> str:
        """The text that rows must contain."""
        return self.rows.filter

    def set_filter(self, text: str) -> None:
        """Show only rows that contain a text."""
        self.rows.filter = safe_text(text, limit=60)
        self.reload()

    def next_view(self) -> None:
        """Change to the next view."""
        self.show_view(self.spec.views[(self.view_index + 1) % len(self.spec.views)].name)

    def show_view(self, name: str) -> None:
        """Show a view, and stay with it."""
        self.view_index = [view.name for view in self.spec.views].index(name)
        self.view_chosen = True
        self._top = 0
        self.reload()

    def move(self, delta: int, now: float) -> None:
        """Move the selection by lines; a page is the panel's height."""
        self.rows.select(self.rows.selected + delta, now)
        self.draw()

    def follow(self) -> None:
        """Select the first row, and from now on whichever is first."""
        self.rows.follow()
        self.reload()

    @property
    def _titled(self) -> bool:
        """Whether the title has a line of its own."""
        return not self.spec.inline or bool(self.slot)

    @property
    def page(self) -> int:
        """Rows that fit."""
        return max(self._shown, 1)

    def empty(self) -> None:
        """Show no rows, so that no key refers to one that isn't seen."""
        for rows in self.lists:
            rows.clear()
        self._line_items = []
        super().empty()

    def draw(self) -> None:
        """Compose the lines again."""
        with self.guarded():
            self._draw()

    def _draw(self) -> None:
        if not self.display or self.box.width == 0:
            return
        rows, view = self.rows, self.view
        width = self.box.width - 2
        context = replace(self._cell_context, scale=bar_scale(view, rows.items), width=width)
        measured = [item for item in rows.items[:_MEASURED] if not isinstance(item, Fold)]
        layout = fit_columns(columns_now(view, measured or rows.items, context, width), width)
        self._layout = layout
        room = max(self.box.height - int(self._titled) - int(view.header), 1)

        @cache  # rows are drawn once, to measure and to show them
        def lines_of(place: int, most: int = MOST_LINES) -> list[Line]:
            lines = row_lines(layout, rows.items[place], context, most)
            return [*lines, *(below(place)[: max(most - len(lines), 0)] if place == rows.selected else ())]

        def below(place: int) -> list[Line]:
            if view.below is None:
                return []
            indent = indent_of(layout)
            lines = view.below(rows.items[place], context, width - indent)
            return [[(" " * indent, TEXT), *line] for line in lines]

        cut = within(room, len(rows.items), lines_of) if view.all_rows else None
        blocks = self._visible(room, lines_of, cut)
        self._shown = len(blocks)
        if self.spec.fitted:
            places = range(min(len(rows.items), _MEASURED))
            self.wanted = sum(len(lines_of(place)) for place in places)
            if view.below is not None and rows.items:  # wherever the selection goes, the list is as high
                self.wanted += max(len(below(place)) for place in places) - len(below(rows.selected))
        heads = [self._title(self.box.width)] if self._titled else []
        self._line_items = []
        if not rows.items and not rows.hidden and not self._titled and self.spec.title_of is not None:
            self.show([[("  ", TEXT), (self._title_text(), BRAND if self.active else TEXT)]])
            return
        if view.header and (rows.items or not self._titled):
            heads.append([("  ", TEXT), *header_line(self._headed(layout))])
        over = self._append(blocks, heads)
        if not rows.items:
            heads.append([("  ", TEXT), (self._empty_text(), DIM)])
        self.show(heads, over)

    def _append(self, blocks: list[list[Line]], lines: list[Line]) -> dict[int, Style]:
        """Append the lines of the rows that are shown; return how the selected one's are styled."""
        over: dict[int, Style] = {}
        mark = ("▸ ", ACCENT) if self.active else ("▹ ", DIM)
        for place, block in enumerate(blocks, start=self._top):
            chosen = place == self.rows.selected
            first = len(self._heading(place))
            for number_of, line in enumerate(block):
                style = self._row_style(chosen=chosen and number_of >= first)
                if style is not None:
                    over[len(lines)] = style
                self._line_items.append(place)
                lines.append([mark if chosen and number_of == first else ("  ", TEXT), *line])
        return over

    def _row_style(self, *, chosen: bool) -> Style | None:
        if not chosen or self.view.drawn:
            return None
        if self.rows.gone:
            return SELECTED + DIM if self.active else DIM
        return SELECTED if self.active else None

    def _heading(self, place: int) -> list[Line]:
        """Return a line above the first row of a group."""
        rows = self.rows
        name = rows.heading(rows.items[place])
        before = rows.heading(rows.items[place - 1]) if place else ""
        return [[(name or "others, perhaps forged", DIM)]] if name != before else []

    def _visible(
        self, room: int, lines_of: Callable[..., list[Line]], cut: list[list[Line]] | None
    ) -> list[list[Line]]:
        """Scroll so that the selected row is whole, and return the lines of each row that fits.

        `cut` are the lines of all rows, where all of them must fit.
        """
        items, selected = self.rows.items, self.rows.selected

        def block(place: int) -> list[Line]:
            return [*self._heading(place), *(cut[place] if cut is not None else lines_of(place))]

        def height(place: int) -> int:
            return len(block(place))

        if not items:
            self._top = 0
            return []
        self._top = min(self._top, selected)
        first, used = selected, height(selected)
        while first > 0 and used + height(first - 1) <= room:
            first -= 1
            used += height(first)
        self._top = max(self._top, first)
        last, used = self._top, 0
        while last < len(items) and used + height(last) <= room:
            used += height(last)
            last += 1
        while last == len(items) and self._top > 0 and used + height(self._top - 1) <= room:
            self._top -= 1
            used += height(self._top)
        last = max(last, self._top + 1)
        blocks = [block(place) for place in range(self._top, last)]
        if last < len(items) and used < room:  # as much of the next row as there is room for
            heading = self._heading(last)
            left = room - used - len(heading)
            blocks.append([*heading, *lines_of(last, left)] if left > 0 else heading)
        return blocks

    def _headed(self, layout: list[tuple[Column, int]]) -> list[tuple[Column, int]]:
        """Put an inline panel's title into the head of its widest column."""
        if self._titled:
            return layout
        widest = max(range(len(layout)), key=lambda place: layout[place][0].grow)
        title, room = self._title_text(), layout[widest][1]
        if self.rows.filter:
            hides = f"/{self.rows.filter} hides {self.rows.hidden}"
            title = f"{title}  {hides}" if len(title) + 2 + len(hides) <= room else hides
        if (many := len(self.rows.items)) > self._shown > 0:
            place = f"{self._top + 1}–{self._top + self._shown}"
            brief = len(title) + len(place) + len(f"   of {many}") > room
            place += f"/{many}" if brief else f" of {many}"
            title = f"{shortened(title, room - len(place) - 2)}  {place}"
        style = BRAND if self.active else STRONG
        return [
            (replace(column, title=shortened(title, room), head=style) if place == widest else column, width)
            for place, (column, width) in enumerate(layout)
        ]

    def _title_text(self) -> str:
        if self.spec.title_of is None or self._snapshot is NOTHING:
            return self.spec.title
        return self.spec.title_of(self._cell_context)

    def _empty_text(self) -> str:
        if self._snapshot is NOTHING:  # what it would say isn't known yet
            return ""
        if self.rows.hidden:
            return f"nothing matches /{self.rows.filter}"
        return KEY_MAP.words(self.view.empty) or self._cell_context.history.problem

    def _title(self, width: int) -> Line:
        line = self._slot_line(width) if self.slot else self._label(self.spec, active=True)
        right = self._details(width - width_of(line) - 4)
        line.append((" ", TEXT))
        rule = width - width_of(line) - width_of(right) - (1 if right else 0)
        line.append(("─" * max(rule, 0), DIM))
        return [*line, (" ", TEXT), *right] if right else line

    def _slot_line(self, width: int) -> Line:
        """Write the titles of the panels that share the place; the active one is among those that fit."""
        labels = [self._label(PANEL[name], active=name == self.spec.name) for name in self.slot]
        first, last = 0, self.slot.index(self.spec.name)
        while first < last and sum(width_of(one) + 1 for one in labels[first : last + 1]) + 1 > width:
            first += 1
        line: Line = [("…", DIM)] if first else []
        for place, label in enumerate(labels[first:]):
            line += [(" ", TEXT)] if place else []
            line += label
        return line

    def _label(self, spec: PanelSpec, *, active: bool) -> Line:
        count = len(spec.items(self._snapshot, self._cell_context, "")) if spec.counted else 0
        title = self._title_text() if spec.name == self.spec.name else spec.title
        text = f"{title} {count}" if count else title
        if not active:
            return [(text, DIM)]
        return [(f" {text} ", BRAND)] if self.active else [(text, STRONG)]

    def _details(self, room: int) -> Line:
        """Write position, sort order, filter and view, as far as there is room."""
        rows = self.rows
        details: list[Line] = []
        if rows.filter:  # first: nothing is hidden without a word
            details.append([(f"/{rows.filter}", WARN), (f" hides {rows.hidden}", DIM)])
        if len(rows.items) > self.page:
            last = min(self._top + self.page, len(rows.items))
            details.append([(f"{self._top + 1}–{last} of {len(rows.items)}", DIM)])
        if self.view.name in SOURCE_LISTS and any(attack.spoofed for attack in self._cell_context.attacks):
            details.append([("forged: these need not be the senders", WARN)])
        stale = self._snapshot.tables.sources.stale
        if stale and self.view.name in SOURCE_LISTS:
            details.append([(f"countries of {stale}: fwtop geoip update", WARN)])
        if rows.sort_name:
            details.append([(f"by {rows.sort_name}", ACCENT)])
        if len(self.spec.views) > 1:
            details.append(self._views(room))
        return beside(details, room)

    def _views(self, room: int) -> Line:
        key = KEY_MAP.label("view")
        if room < 60:
            return [(f"{key} ", ACCENT), (self.view.name, STRONG)]
        line: Line = [(f"{key} ", ACCENT)]
        for view in self.spec.views:
            line.append((f"{view.name} ", STRONG if view is self.view else DIM))
        return [*line[:-1], (line[-1][0].rstrip(), line[-1][1])]

    def on_click(self, event: events.Click) -> None:
        """Select the row under the pointer; sort by the column whose head is clicked."""
        heads = int(self._titled) + int(self.view.header)
        line = event.y - heads
        if 0 <= line < len(self._line_items):
            self.post_message(Clicked(self, self._line_items[line]))
        elif self.view.header and event.y == heads - 1:
            self._sort_by(event.x - 2)

    def _sort_by(self, x: int) -> None:
        """Sort by the column at cell `x`, or as the list came where it is sorted so already."""
        end = 0
        for column, width in self._layout:
            end += width
            if x < end:
                name = column.sort or column.title
                self.rows.sort_by("" if self.rows.sort_name == name else name)
                self.reload()
                return
            end += GAP

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Scroll by the wheel."""
        self._wheel(event, 3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Scroll by the wheel."""
        self._wheel(event, -3)

    def _wheel(self, event: events.MouseEvent, delta: int) -> None:
        event.stop()
        self.move(delta, self._cell_context.now)
