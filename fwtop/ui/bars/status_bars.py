"""The lines around the panels: tabs, status, keys; and the widgets of all bars but the time bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct, field
from rich.style import Style
from textual import events

from fwtop.model.rule import ACTIVE_STATES, RuleStatus, State
from fwtop.model.text import safe_text
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.ui.bars.graph import Graph
from fwtop.ui.bars.header import HeaderState, header_lines
from fwtop.ui.drawing.format import duration
from fwtop.ui.drawing.layout import MINIMUM, Box, Clicked, Lines
from fwtop.ui.drawing.style import (
    ALARM,
    BAD,
    BRAND,
    DIM,
    NOTICE,
    TEXT,
    TITLE,
    WARN,
    Line,
    fit,
    spread,
    width_of,
)
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.state.history import History
from fwtop.ui.tabs import TABS


def pending(mitigations: Sequence[RuleStatus]) -> list[RuleStatus]:
    """Return the unconfirmed rules, the most urgent first."""
    found = [status for status in mitigations if status.state is State.PROVISIONAL]
    return sorted(found, key=lambda status: status.confirm_by or 0.0)


def not_acting(mitigations: Sequence[RuleStatus]) -> list[RuleStatus]:
    """Return the active rules that are not in effect."""
    return [status for status in mitigations if status.state in ACTIVE_STATES and not status.acting]


def status_line(snapshot: Snapshot | None, message: Line, state: HeaderState, width: int) -> Line:
    """Write the most urgent of: a rule that is not in effect, one to confirm, a message."""
    if snapshot is None:
        return message or [(" waiting for the first numbers …", DIM)]
    waiting = [] if state.readonly else pending(snapshot.mitigations)
    if message and waiting:
        prompt = _confirm_prompt(waiting[0], state.now)
        both = [*prompt, ("  ", TEXT), *message]
        return both if width_of(both) + 1 <= width else message
    if message:
        return message
    return _standing_line(snapshot, waiting, state, width)


def _standing_line(snapshot: Snapshot, waiting: list[RuleStatus], state: HeaderState, width: int) -> Line:
    if snapshot.guardian.startswith("lost"):
        why = snapshot.guardian.removeprefix("lost").removeprefix(":").strip() or "no answer"
        return [(" rules expire by themselves; quit and start fwtop again", BAD), (f"   ({why})", DIM)]
    broken = [] if state.readonly else not_acting(snapshot.mitigations)
    if broken:
        alarm: Line = [(f" RULE {broken[0].rule.id} IS NOT IN EFFECT ", ALARM)]
        alarm += [
            (f"  {KEY_MAP.label('repair')}", TITLE),
            (" restores it  ", TEXT),
            (safe_text(broken[0].not_acting), BAD),
        ]
        return fit(alarm, width)
    if waiting:
        return _confirm_prompt(waiting[0], state.now)
    return [(f" {note}", DIM) for note in snapshot.notes[:1]]


def _confirm_prompt(status: RuleStatus, now: float) -> Line:
    left = duration((status.confirm_by or now) - now)
    prompt: Line = [(f" rule {status.rule.id} is removed in {left} ", NOTICE)]
    prompt += [(f"  {KEY_MAP.label('keep')}", TITLE), (" keeps it  ", TEXT)]
    return [*prompt, (KEY_MAP.label("undo"), TITLE), (" removes it now", TEXT)]


_BUSY = " …"  # what a message ends with while something is being done
_SPINNER = "|/-\\"


class StatusMessage(Struct):
    """The last message, shown for some seconds; one that ends with an ellipsis spins until it is replaced."""

    clock: Callable[[], float]
    line: Line = field(default_factory=list)
    said: float = 0.0

    def say(self, text: str, style: Style = TEXT) -> None:
        """Replace the message."""
        self.line = [(f" {text}", style)]
        self.said = self.clock()

    def current(self) -> Line:
        """Return the message while it is recent, with the time that something has taken so far."""
        passed = self.clock() - self.said
        if not self.line or not self.line[0][0].endswith(_BUSY):
            return self.line if passed < 8.0 else []
        if passed < 0.3:
            return self.line
        turn = _SPINNER[int(passed * 4) % len(_SPINNER)]
        return [(f" {turn}", WARN), *self.line, (f" {passed:.1f} s", DIM)]


class _Choices(Lines):
    """A line of things to click."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._ends: list[tuple[int, str]] = []  # the cell after each, and what it stands for

    def on_click(self, event: events.Click) -> None:
        """Choose what is under the pointer."""
        found = next((value for end, value in self._ends if event.x < end), None)
        if found is not None:
            self.post_message(Clicked(self, found))


class Footer(_Choices):
    """Shows the most important keys of a tab with their words; "" stands for those of the proposals."""

    def write(self, *, tab: str, waiting: bool, readonly: bool, origin: str) -> None:
        """Draw the keys of a tab; `waiting`: a rule waits for confirmation, `origin`: what is watched."""
        line: Line = []
        self._ends = []
        for row in KEY_MAP.footer(self.box.width, tab=tab, pending=waiting, readonly=readonly, origin=origin):
            style = NOTICE if row.name == "keep" else TITLE
            line += [(" ", TEXT), (row.label, style), (f" {row.footer}", TEXT), (" ", TEXT)]
            self._ends.append((width_of(line), "" if row.name == "proposal" else row.keys[0]))
        self.show([line])

    def clear(self) -> None:
        """Show nothing: a dialog has keys of its own."""
        self._ends = []
        self.show([[]])


class TabBar(_Choices):
    """Says which tab is shown, what the others hold, what they are scoped to; a click chooses one."""

    def write(self, shown: str, counts: Mapping[str, int], scope: str) -> None:
        """Draw the bar; `counts` are written behind the titles, `scope` at the right."""
        line: Line = []
        self._ends = []
        for tab in TABS:
            count = counts.get(tab.name, 0)
            title = f" {tab.title} {count} " if count else f" {tab.title} "
            line.append((title, BRAND if tab.name == shown else TEXT))
            self._ends.append((width_of(line), tab.name))
        keys = f"{KEY_MAP.label('previous_tab')} {KEY_MAP.label('next_tab')}"
        right: Line = [(keys, TITLE), (" tab ", DIM)]
        if scope:
            right = [(f"{scope}  ", TITLE), (KEY_MAP.label("unscope"), TITLE), (" shows all ", DIM)]
        self.show([spread(line, right, self.box.width)])


class StatusBars:
    """The widgets of header, graph, status, footer and notice."""

    def __init__(self, message: StatusMessage) -> None:
        self.message = message
        self.history = History()
        self.in_bits = False  # what the graph shows
        self.cursor: int | None = None  # Unix second that the graph's cursor stands on
        self.graph = Graph()
        self._footer = Footer("footer")
        plain = [Lines(name) for name in ("header", "status", "notice")]
        self._lines: dict[str | None, Lines] = {
            line.name: line for line in (*plain, self.graph, self._footer)
        }

    def __iter__(self) -> Iterator[Lines]:
        """Yield the widgets, for the screen to freeze."""
        yield from self._lines.values()

    def __getitem__(self, name: str) -> Lines:
        """Return a widget by its name."""
        return self._lines[name]

    def place(self, boxes: dict[str, Box]) -> None:
        """Give the lines their boxes; those without one hide."""
        for widget in self:
            widget.place(boxes.get(widget.name or ""))

    def show_too_small(self, width: int, height: int) -> None:
        """Show over the whole terminal that it is too small."""
        text = f"fwtop needs {MINIMUM[0]}×{MINIMUM[1]}; this is {width}×{height}"[:width]
        line: Line = [(" " * ((width - len(text)) // 2) + text, WARN)]
        self["notice"].place(Box(0, 0, width, height))
        self["notice"].show([*([[]] * ((height - 1) // 2)), line])

    def draw(self, snapshot: Snapshot | None, state: HeaderState, *, keys: bool, tab: str) -> None:
        """Write all bars; `keys`: the footer's keys are those in force, not a dialog's."""
        status, header = self["status"], self["header"]
        if not status.display:
            return
        width = status.box.width
        with status.guarded():
            status.show([status_line(snapshot, self.message.current(), state, width)])
        with self._footer.guarded():
            self._draw_footer(snapshot, state, tab if keys else "")
        if snapshot is None:
            return
        with header.guarded():
            header.show(header_lines(snapshot, self.history, state, width))
        live = snapshot.origin.kind == "live"
        at = state.now if not live else self.history.second if state.paused else None
        with self.graph.guarded():
            if self.graph.display:
                self.graph.write(self.history, in_bits=self.in_bits, cursor=self.cursor, at=at)

    def _draw_footer(self, snapshot: Snapshot | None, state: HeaderState, tab: str) -> None:
        if not tab:
            self._footer.clear()
            return
        origin, lost, waiting = "live", False, False
        if snapshot is not None:
            lost = snapshot.guardian.startswith("lost")
            origin = "lost" if lost else snapshot.origin.kind
            waiting = bool(pending(snapshot.mitigations))
        self._footer.write(tab=tab, waiting=waiting, readonly=bool(state.readonly) or lost, origin=origin)
